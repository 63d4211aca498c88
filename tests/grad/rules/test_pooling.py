"""AveragePool and GlobalAveragePool: windows of every form, the elements of padding counted or not."""

from __future__ import annotations

import numpy as np
import pytest

from onnxgrad import gradient
from onnxgrad.verify.reference.evaluate import reference
from onnxgrad.verify.running.session import run
from tests.grad.numeric import check_op, distinct, normal, op_model, positive


def test_max_unpool() -> None:
    places = np.array([[[[1, 3], [8, 15]]]])
    check_op(
        "y = MaxUnpool <kernel_shape = [2, 2], strides = [2, 2]> (x, i)",
        {"x": normal(1, 1, 2, 2), "i": places},
    )


def test_max_unpool_into_a_larger_output() -> None:
    """onnxruntime counts in the output, as the MaxPool that it undoes did; the reference has to agree about that."""
    feeds = {"x": np.arange(5, 9, dtype=np.float32).reshape(1, 1, 2, 2)}
    constants = {"i": np.array([[[[5, 7], [13, 15]]]]), "s": np.array([1, 1, 5, 5])}
    node = "y = MaxUnpool <kernel_shape = [2, 2], strides = [2, 2]> (x, i, s)"
    model = op_model(node, feeds, constants=constants)
    y = run(model, feeds)["y"]
    np.testing.assert_array_equal(y, reference(model, feeds)["y"])
    u = np.arange(25, dtype=np.float32).reshape(1, 1, 5, 5)
    found = run(gradient(model, adjoint="input"), {**feeds, "y_grad": u})
    np.testing.assert_array_equal(
        found["x_grad"].reshape(-1), [u[y == v].item() for v in feeds["x"].reshape(-1)]
    )
    check_op(node, feeds, constants=constants)


WINDOWS = [
    "kernel_shape = [2, 2]",
    "kernel_shape = [3, 3], strides = [2, 2]",
    "kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]",
    "kernel_shape = [3, 2], strides = [2, 2], ceil_mode = 1",
    "kernel_shape = [3, 3], strides = [3, 2], pads = [1, 0, 1, 1], ceil_mode = 1",
    "kernel_shape = [3, 2], strides = [2, 3], ceil_mode = 1",  # a window would start behind x
    'kernel_shape = [3, 3], strides = [2, 2], auto_pad = "SAME_UPPER"',
    'kernel_shape = [3, 2], strides = [2, 2], auto_pad = "SAME_LOWER"',
    'kernel_shape = [3, 2], auto_pad = "SAME_LOWER"',
    "kernel_shape = [2, 3], dilations = [2, 2], pads = [1, 1, 1, 1]",
]


@pytest.mark.parametrize("window", WINDOWS)
def test_windows(window: str) -> None:
    x = distinct(2, 3, 7, 9)
    check_op(f"y = AveragePool <{window}> (x)", {"x": x})
    check_op(f"y = AveragePool <{window}, count_include_pad = 1> (x)", {"x": x})
    check_op(f"y = AveragePool <{window}> (x)", {"x": x}, symbolic=True)


def test_three_axes() -> None:
    node = "y = AveragePool <kernel_shape = [2, 1, 3], pads = [0, 0, 1, 0, 0, 1]> (x)"
    check_op(node, {"x": distinct(2, 3, 4, 3, 5)})


def test_global_pooling() -> None:
    check_op("y = GlobalAveragePool (x)", {"x": distinct(2, 3, 7, 9)})


def test_column_major_indices() -> None:
    node = "y, i = MaxPool <kernel_shape = [2, 2], storage_order = 1> (x)"
    check_op(node, {"x": distinct(2, 3, 5, 4)}, outputs=["y"])


@pytest.mark.parametrize("node", ["y = MaxPool <kernel_shape = [4]> (x)", "y = GlobalMaxPool (x)"])
def test_the_first_of_equal_maxima(node: str) -> None:
    feeds = {"x": np.array([[[1, 2, 2, 0]]], np.float32)}
    graph = gradient(op_model(node, feeds), adjoint="input")
    found = run(graph, {**feeds, "y_grad": np.ones((1, 1, 1), np.float32)})
    np.testing.assert_array_equal(found["x_grad"], [[[0, 1, 0, 0]]])


@pytest.mark.parametrize("window", WINDOWS)
def test_windows_of_max_pool(window: str) -> None:
    check_op(f"y = MaxPool <{window}> (x)", {"x": distinct(2, 3, 7, 9)})


def test_one_axis() -> None:
    check_op("y = MaxPool <kernel_shape = [2]> (x)", {"x": distinct(2, 3, 7)})


def test_global_max_pool() -> None:
    check_op("y = GlobalMaxPool (x)", {"x": distinct(2, 3, 7, 9)})


@pytest.mark.parametrize("p", [1, 2, 3])
def test_lp_pools(p: int) -> None:
    x = positive(1, 2, 5, 6) * np.sign(distinct(1, 2, 5, 6))
    check_op(f"y = GlobalLpPool <p = {p}> (x)", {"x": x})
    check_op(
        f"y = LpPool <p = {p}, kernel_shape = [3, 2], strides = [2, 1], pads = [1, 0, 1, 1]> (x)",
        {"x": x},
    )
