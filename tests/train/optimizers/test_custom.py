"""A user's function is an optimiser: over arrays, in the graph, and refused where it does not fit."""

from __future__ import annotations

import json
from dataclasses import asdict
from textwrap import dedent
from typing import Any

import numpy as np
import pytest

from onnxgrad import op
from onnxgrad.errors import InputError
from onnxgrad.train import SGD, Optimizer
from onnxgrad.train.optimizers import Custom
from tests.train.optimizers.problem import START, by_arrays, by_graph, flat


def momentum(math: Any, p: Any, g: Any, state: Any, at: Any) -> Any:
    v = 0.9 * state["v"] + g
    return p - at.rate * v, {"v": v}


def test_the_example_of_the_docstring_is_sgd_with_momentum() -> None:
    example = dedent((Custom.__doc__ or "").partition("another name.\n")[2])
    made: list[Optimizer] = []
    exec(
        example,
        {
            "training_step": lambda m, optimizer: made.append(optimizer),
            "model": None,
            "Custom": Custom,
        },
    )
    (optimizer,), expected = made, by_arrays(SGD(momentum=0.9), 2**-6)[0]
    np.testing.assert_allclose(flat(by_arrays(optimizer, 2**-6)[0]), flat(expected), rtol=1e-13)
    found, step = by_graph(optimizer, 2**-6)
    np.testing.assert_allclose(flat(found), flat(expected), rtol=1e-5)
    assert json.loads(step.manifest.to_json())["optimizer"] == {
        "name": "custom:momentum",
        "lr": 1e-3,
        "maximize": False,
    }


def test_no_name_of_ours_stands_for_a_rule_of_yours() -> None:
    def adam(math: Any, p: Any, g: Any, state: Any, at: Any) -> Any:
        return p - at.rate * g, {}

    class Adam(SGD):
        pass

    assert Custom(adam).name == "custom:adam" and Adam().name == f"{__name__}:Adam"


def test_any_operator_the_step_and_states_of_other_shapes() -> None:
    def signs(
        math: Any, p: Any, g: Any, state: Any, at: Any
    ) -> Any:  # against the largest gradient so far
        largest = math.Max(state["largest"], math.Sqrt(math.ReduceSumSquare(g, keepdims=0)))
        rate = at.number(1.0 / math.Sqrt(at.step)) * at.rate
        return p - rate * (g / largest), {"largest": largest}

    optimizer = Custom(signs, lambda p: {"largest": np.zeros((), p.dtype)}, lr=0.25)
    p = {k: v.copy() for k, v in START.items()}
    expected, states = by_arrays(optimizer, 2**-6, 3)
    assert states["w"]["largest"].shape == () and not optimizer.elementwise and optimizer.lr == 0.25
    np.testing.assert_allclose(flat(by_graph(optimizer, 2**-6, 3)[0]), flat(expected), rtol=1e-5)
    assert (flat(expected) != flat(p)).all()


def test_maximize_and_elementwise_are_options() -> None:
    up = Custom(momentum, {"v": 0.0}, maximize=True, elementwise=True)
    expected, _ = by_arrays(SGD(momentum=0.9, maximize=True), 2**-8)
    np.testing.assert_allclose(flat(by_arrays(up, 2**-8)[0]), flat(expected), rtol=1e-13)
    assert up.elementwise and asdict(up)["maximize"]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda p, g, v: p, "not a pair"),
        (lambda p, g, v: (p, {}), r"returned the states \[\], it was given \['v'\]"),
        (lambda p, g, v: (p, {"v": v, "w": v}), r"\['v', 'w'\]"),
        (lambda p, g, v: (0.5, {"v": v}), "the new parameter is 0.5, the old one"),
        (
            lambda p, g, v: (p, {"v": op.ReduceSum(v) if hasattr(v, "name") else v.sum()}),
            "the new state 'v' is",
        ),
        (
            lambda p, g, v: (p > 0 if isinstance(p, np.ndarray) else op.Greater(p, 0.0), {"v": v}),
            "the new parameter",
        ),
    ],
)
def test_what_does_not_fit(answer: Any, words: str) -> None:
    optimizer = Custom(lambda math, p, g, state, at: answer(p, g, state["v"]), {"v": 0.0})
    for made in (by_arrays, by_graph):
        with pytest.raises(InputError, match=words):
            made(optimizer, 0.5, 1)


def test_a_state_that_is_no_array() -> None:
    with pytest.raises(InputError, match="the state 'v' is"):
        Custom(momentum, lambda p: {"v": "zero"}).state(START["w"])  # type: ignore[dict-item,return-value]
