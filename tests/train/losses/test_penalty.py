"""Penalties of weights by name."""

from __future__ import annotations

import numpy as np
import pytest

import onnxgrad
from onnxgrad.errors import InputError
from onnxgrad.train.losses import L1Penalty, L2Penalty
from onnxgrad.verify.running.session import run
from tests.grad.numeric import scalar_model
from tests.train.losses.common import with_loss

TEXT = """
<ir_version: 8, opset_import: ["": 18]>
g (float[N, 2] x) => (float[N, 2] y)
{ h = Add (x, a_weight)  i = Add (h, a_bias)  c = Cast <to = 1> (b_weight)  j = Add (i, c)  y = Expand (j, n) }
"""
WEIGHTS: dict[str, np.ndarray] = {
    "a_weight": np.array([1, -2], np.float32),
    "a_bias": np.array([3], np.float32),
    "b_weight": np.array([0, -0.5], np.float16),
    "n": np.array([1]),
}


def penalized(loss: L1Penalty | L2Penalty, *wrt: str) -> list[np.ndarray]:
    model = scalar_model(TEXT, **WEIGHTS)
    graph = onnxgrad.gradient(with_loss(model, loss), wrt) if wrt else with_loss(model, loss)
    return list(run(graph, {"x": np.zeros((1, 2), np.float32)}).values())


@pytest.mark.parametrize(
    ("params", "l2", "l1"),
    [
        ("*", 7.125, 6.5),
        ("a_weight", 2.5, 3.0),
        ("*_weight", 2.625, 3.5),
        ("*,!*_bias", 2.625, 3.5),
        ("* ; !b_* ; !*_bias", 2.5, 3.0),
        ("!*, a_bias", 4.5, 3.0),
    ],
)
def test_globs_add_and_take_away(params: str, l2: float, l1: float) -> None:
    assert penalized(L2Penalty(params)) == [l2]
    assert penalized(L1Penalty(params)) == [l1]


def test_the_gradients_are_the_weight_and_its_sign() -> None:
    _, weight, half = penalized(L2Penalty("*_weight"), "a_weight", "b_weight")
    assert (weight.tolist(), half.tolist(), half.dtype) == ([1.0, -2.0], [0.0, -0.5], np.float16)
    _, weight, half = penalized(L1Penalty("*_weight"), "a_weight", "b_weight")
    assert (weight.tolist(), half.tolist()) == ([1.0, -1.0], [0.0, -1.0])


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ("c_*", "'c_*' matches no floating-point weight of the model; there are "),
        ("n", "'n' matches no floating-point weight"),
        ("x", "'x' matches no floating-point weight"),
        ("a_*,!*", "leaves no weight"),
        ("a_*,!d", "'d' matches no floating-point weight"),
    ],
)
def test_names_that_mean_nothing(params: str, words: str) -> None:
    with pytest.raises(InputError, match=words.replace("*", r"\*")):
        penalized(L2Penalty(params))


def test_it_needs_names() -> None:
    with pytest.raises(InputError, match="params must be names or globs"):
        L2Penalty(" , ")
