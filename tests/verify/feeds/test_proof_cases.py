"""onnxgrad/verify/feeds/proof_cases.py: at which sizes a model is run."""

from __future__ import annotations

from typing import Any

import pytest

from onnxgrad.errors import InputError
from onnxgrad.verify.feeds.proof_cases import runnable
from onnxgrad.verify.running.process import RunFailed
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

    with pytest.raises(InputError, match="broken"):
        runnable(MODEL, None, 0, broken)
    assert len(asked) == 1
