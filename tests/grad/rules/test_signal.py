"""DFT and STFT: real and complex, one-sided, inverse, padded and cut, constant and run-time operands."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import onnxgrad
from onnxgrad.verify.reference.evaluate import reference
from tests.grad.numeric import check_op, normal
from tests.helpers import parse

ATTRIBUTES = ["", "<inverse = 1>", "<onesided = 1>"]


@pytest.mark.parametrize("attributes", ATTRIBUTES)
@pytest.mark.parametrize("length", [None, 3, 5, 8])
@pytest.mark.parametrize("parts", [1, 2])
def test_dft(attributes: str, length: int | None, parts: int) -> None:
    if "onesided" in attributes and parts == 2:
        return  # a complex signal has no one-sided spectrum
    constants: dict[str, Any] = {"a": np.array(1, np.int64)}
    if length is not None:
        constants["n"] = np.array(length, np.int64)
    node = f"y = DFT {attributes} (x, {'n' if length else ''}, a)"
    check_op(
        node,
        {"x": normal(2, 5, parts)},
        constants=constants,
        symbolic=False,
        onnxruntime=length is None,
        seeds=(0,),
    )


@pytest.mark.parametrize("length", [None, 5, 8])
def test_inverse_of_a_one_sided_spectrum(length: int | None) -> None:
    constants: dict[str, Any] = {"a": np.array(1, np.int64)}
    if length is not None:
        constants["n"] = np.array(length, np.int64)
    node = f"y = DFT <inverse = 1, onesided = 1> (x, {'n' if length else ''}, a)"
    check_op(
        node,
        {"x": normal(2, 4, 2)},
        constants=constants,
        symbolic=False,
        onnxruntime=False,
        seeds=(0,),
    )


def test_one_side_shows_whether_the_operand_is_real() -> None:
    """Its last axis need not be known."""
    feeds = {"x": normal(2, 5, 1)}
    check_op("y = DFT <onesided = 1> (x)", feeds, symbolic=True, seeds=(0,))
    node = "y = DFT <inverse = 1, onesided = 1> (x)"
    check_op(node, {"x": normal(2, 4, 2)}, symbolic=True, onnxruntime=False, seeds=(0,))


@pytest.mark.parametrize("fed", ["", "n", "a", "na"])
@pytest.mark.parametrize("attributes", [*ATTRIBUTES, "<inverse = 1, onesided = 1>"])
def test_what_only_the_run_knows(attributes: str, fed: str) -> None:
    """The sizes of the operand, the length of the transform, its axis."""
    known = {"a": np.array(-2, np.int64), "n": np.array(6, np.int64)}
    parts = 1 if attributes == "<onesided = 1>" else 2
    check_op(
        f"y = DFT {attributes} (x, n, a)",
        {"x": normal(2, 4, parts), **{k: v for k, v in known.items() if k in fed}},
        wrt=["x"],
        constants={k: v for k, v in known.items() if k not in fed},
        symbolic=False,
        onnxruntime=False,
        seeds=(0,),
    )


def test_axis_is_an_attribute_before_opset_20() -> None:
    check_op(
        "y = DFT <axis = 2> (x)", {"x": normal(1, 2, 6, 1)}, opset=18, symbolic=False, seeds=(0,)
    )


def test_axis_at_run_time() -> None:
    feeds = {"x": normal(1, 4, 3, 2), "a": np.array(-3, np.int64)}
    check_op("y = DFT (x, , a)", feeds, wrt=["x"], symbolic=False, onnxruntime=False, seeds=(0,))


@pytest.mark.parametrize("onesided", [0, 1])
@pytest.mark.parametrize("window", [False, True])
def test_stft(onesided: int, window: bool) -> None:
    feeds = {"x": normal(2, 14, 1)}
    if window:
        feeds["w"] = normal(4, seed=1)
    node = f"y = STFT <onesided = {onesided}> (x, s, {'w' if window else ''}, n)"
    constants = {"s": np.array(3, np.int64), "n": np.array(4, np.int64)}
    check_op(node, feeds, constants=constants, symbolic=False, seeds=(0,))


def test_the_second_derivative_of_a_transform_whose_length_is_a_shape() -> None:
    """The gradient pads its operand, whose last axis must be known to be that of real or complex numbers."""
    model = parse("""g (float[2,6] x) => (float y) { l = Constant <value_ints = [-1]> () u = Unsqueeze (x, l)
      s = Shape <start = 1, end = 2> (u) n = Squeeze (s) a = Constant <value_int = 1> ()
      f = DFT <onesided = 1> (u, n, a) i = Constant <value_int = 0> () r = Gather <axis = 2> (f, i)
      q = Mul (r, r) p = Mul (q, r) y = ReduceSum <keepdims = 0> (p) }""")
    product = onnxgrad.hessian_vector_product(model, "x", "y")
    x, v = np.arange(12.0).reshape(2, 6), np.cos(np.arange(12.0)).reshape(2, 6)
    found = reference(product, {"x": x.astype("f"), "x_tangent": v.astype("f")})["x_hvp"]
    cosines = np.cos(2 * np.pi * np.outer(np.arange(6), np.arange(4)) / 6)
    expected = (6 * (x @ cosines) * (v @ cosines)) @ cosines.T
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)
