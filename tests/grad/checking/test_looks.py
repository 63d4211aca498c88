"""onnxgrad/grad/checking/looks.py: directions in which small derivatives count, NaN where differences are finite."""

from __future__ import annotations

import numpy as np
import pytest

from onnxgrad import check_gradient, op, vjp
from onnxgrad.grad.checking.looks import along_gradients
from tests.helpers import parse


def test_elements_of_large_gradients_move_less() -> None:
    g = {"a": np.array([1000.0, 1.0, 0.0]), "b": np.array([1e-3])}
    ones = {n: np.ones(v.shape) for n, v in g.items()}
    plain = along_gradients({}, g, ones)
    assert plain.slopes == {"a": 1001.0, "b": 1e-3} and plain.sizes["a"] > 1000
    found = plain.balanced(1e-3)
    products = g["a"] * found.moves["a"]
    assert products[0] == products[1] > 0 and found.moves["a"][2] >= found.moves["a"][1]
    assert found.slopes["a"] == pytest.approx(products.sum())
    assert found.sizes["a"] == pytest.approx(found.sizes["b"], rel=0.5)


def test_values_without_known_gradients_are_balanced_as_a_whole() -> None:
    found = along_gradients({}, {"a": np.full(4, 50.0), "b": np.ones(4)}, {n: np.ones(4) for n in "ab"})  # fmt: skip
    whole = type(found)({}, found.moves, found.slopes, found.sizes).balanced(0.1)
    assert whole.slopes["b"] == 4.0 and whole.slopes["a"] == pytest.approx(20.0)


def test_a_gradient_that_is_nan_at_large_values_is_wrong_only_if_the_numbers_are_in_range() -> None:
    given = parse(
        "g (float[4,4] x) => (float y) { u = Sigmoid (x) y = ReduceSum <keepdims = 0> (u) }"
    )
    vjp("Sigmoid", lambda g, y, x: op.Where(op.Greater(x, 70.0), g / (g - g), g * y * (1.0 - y)), replace=True)  # fmt: skip
    report = check_gradient(given, "x")
    assert report.verdict == "differs"
    assert "the derivative is" in str(report) and "at scale 100" in str(report)
    # exp(-x) is infinite in the model itself, and so is the quotient's gradient
    chain = """g (float[4,4] x) => (float y) <float one = {1}, float k = {30}> { z = Mul (x, k) n = Neg (z) e = Exp (n)
      d = Add (e, one) q = Div (z, d) y = ReduceSum <keepdims = 0> (q) }"""
    assert check_gradient(parse(chain), "x").verdict == "agrees"
