"""onnxgrad/grad/rules/reductions.py"""

import numpy as np
import pytest

from onnxgrad import gradient
from onnxgrad.verify.running.session import run
from tests.grad.numeric import check_op, distinct, op_model, positive

NAMES = ["Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSum", "LogSumExp"]


def operand(name: str) -> np.ndarray:
    return positive(2, 3, 4) if name == "LogSum" else distinct(2, 3, 4)


@pytest.mark.covering(2)
@pytest.mark.parametrize("axes", [[1], [-1, 0], []])
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("name", NAMES)
def test_axes_constant_and_at_run_time(name: str, keepdims: int, axes: list[int]) -> None:
    given = {"a": np.array(axes, np.int64)}
    node = f"y = Reduce{name} <keepdims = {keepdims}> (x, a)"
    check_op(node, {"x": operand(name)}, constants=given, symbolic=True)
    check_op(node, {"x": operand(name), **given}, symbolic=False)


@pytest.mark.parametrize("name", NAMES)
def test_no_axes(name: str) -> None:
    check_op(f"y = Reduce{name} <keepdims = 0> (x)", {"x": operand(name)})
    noop = f"y = Reduce{name} <keepdims = 0, noop_with_empty_axes = 1> (x, a)"
    empty = np.array([], np.int64)
    check_op(noop, {"x": operand(name)}, constants={"a": empty}, symbolic=False)
    check_op(noop, {"x": operand(name), "a": empty}, symbolic=False)


def adjoint_of_ones(node: str, x: list[float]) -> np.ndarray:
    feeds = {"x": np.array(x, np.float32)}
    return run(gradient(op_model(node, feeds)), feeds)["x_grad"]


def test_a_product_with_a_zero_is_exact() -> None:
    np.testing.assert_array_equal(
        adjoint_of_ones("y = ReduceProd <keepdims = 0> (x)", [0, 2, 3]), [6, 0, 0]
    )
    np.testing.assert_array_equal(
        adjoint_of_ones("y = ReduceProd <keepdims = 0> (x)", [0, 0, 3]), [0, 0, 0]
    )


def test_the_norm_at_zero_has_gradient_zero() -> None:
    np.testing.assert_array_equal(
        adjoint_of_ones("y = ReduceL2 <keepdims = 0> (x)", [0, 0]), [0, 0]
    )


def test_equal_maxima_share_evenly() -> None:
    np.testing.assert_array_equal(
        adjoint_of_ones("y = ReduceMax <keepdims = 0> (x)", [1, 2, 2]), [0, 0.5, 0.5]
    )
