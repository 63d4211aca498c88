"""onnxgrad/verify/feeds/proof_cases.py: at which sizes a model is run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnxgrad.errors import InputError
from onnxgrad.verify.feeds.proof_cases import choose_cases, runnable
from onnxgrad.verify.running.child_process import RunFailed
from tests.helpers import parse

MODEL = parse("g (float[batch,length] x) => (float[batch,length] y) { y = Neg(x) }")


def test_sizes_that_the_model_refuses_are_passed_over() -> None:
    def alone(feeds: Any) -> Any:
        if feeds["x"].shape[0] != 1:
            raise RunFailed("run", "one at a time")
        return {}

    found = runnable(MODEL, None, 0, alone)
    assert len(found) == 2 and {plan["batch"] for plan in found} == {1}


def test_a_model_that_refuses_all_sizes_says_why() -> None:
    def never(feeds: Any) -> Any:
        raise RunFailed("run", f"no {feeds['x'].shape[0]} of them")

    with pytest.raises(
        InputError, match=r"does not run on generated inputs: no 2 of them; .*dims="
    ):
        runnable(MODEL, None, 0, never)


def test_a_model_that_does_not_load_is_asked_once() -> None:
    asked = []

    def broken(feeds: Any) -> Any:
        asked.append(feeds)
        raise RunFailed("load", "broken")

    with pytest.raises(InputError, match=r"does not load in onnxruntime: broken$"):
        runnable(MODEL, None, 0, broken)
    assert len(asked) == 1


_X = {"x": np.zeros((1, 3), np.float32)}


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        (iter([_X]), "can be read only once: pass a list"),
        ((x for x in [_X]), "can be read only once: pass a list"),
        (_X["x"], "or files, not ndarray"),
        ([_X["x"]], "or files, not list of ndarray"),
        ([_X, "x.npz"], "or files, not list of dict, str"),
        ([], "or files, not list of nothing"),
        (3, "or files, not int"),
    ],
)
def test_inputs_that_would_be_passed_over_are_refused(inputs: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        choose_cases(MODEL, inputs, None, (0,), lambda feeds: {})


def test_inputs_are_one_set_or_several() -> None:
    for inputs, count in ((_X, 1), ([_X], 1), ((_X, _X), 2)):
        assert len(choose_cases(MODEL, inputs, None, (0,), lambda feeds: {})) == count


def test_a_size_that_is_named_like_a_formula_need_not_obey_it() -> None:
    model = parse("g (float[N] a, float[M] b, float[K] x) => (float[K] y) { y = Neg (x) }")
    model.graph.input[2].type.tensor_type.shape.dim[0].dim_param = "N+M"
    cases = choose_cases(model, None, None, (0,), lambda feeds: feeds)
    sizes = {(len(c.feeds["a"]) + len(c.feeds["b"]), len(c.feeds["x"])) for c in cases}
    assert any(a == b for a, b in sizes) and any(a != b for a, b in sizes)

    def strict(feeds: Any) -> Any:
        if len(feeds["a"]) + len(feeds["b"]) != len(feeds["x"]):
            raise RunFailed("run", "another size")
        return feeds

    cases = choose_cases(model, None, None, (0,), strict)
    assert cases and all("N+M" not in c.case.dims for c in cases)
