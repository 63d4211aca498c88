"""onnxgrad/grad/rules/pooling/pool.py"""

import numpy as np
import pytest

from onnxgrad.grad import gradient
from onnxgrad.verify.running.run import run
from tests.grad.numeric import check_op, distinct, op_model

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
    check_op(f"y = MaxPool <{window}> (x)", {"x": x})
    check_op(f"y = AveragePool <{window}> (x)", {"x": x})
    check_op(f"y = AveragePool <{window}, count_include_pad = 1> (x)", {"x": x})
    check_op(f"y = AveragePool <{window}> (x)", {"x": x}, symbolic=True)


def test_one_and_three_axes() -> None:
    check_op("y = MaxPool <kernel_shape = [2]> (x)", {"x": distinct(2, 3, 7)})
    node = "y = AveragePool <kernel_shape = [2, 1, 3], pads = [0, 0, 1, 0, 0, 1]> (x)"
    check_op(node, {"x": distinct(2, 3, 4, 3, 5)})


def test_column_major_indices() -> None:
    node = "y, i = MaxPool <kernel_shape = [2, 2], storage_order = 1> (x)"
    check_op(node, {"x": distinct(2, 3, 5, 4)}, outputs=["y"])


def test_global_pooling() -> None:
    check_op("y = GlobalMaxPool (x)", {"x": distinct(2, 3, 7, 9)})
    check_op("y = GlobalAveragePool (x)", {"x": distinct(2, 3, 7, 9)})


@pytest.mark.parametrize("node", ["y = MaxPool <kernel_shape = [4]> (x)", "y = GlobalMaxPool (x)"])
def test_the_first_of_equal_maxima(node: str) -> None:
    feeds = {"x": np.array([[[1, 2, 2, 0]]], np.float32)}
    graph = gradient(op_model(node, feeds), seed="input")
    found = run(graph, {**feeds, "y_grad": np.ones((1, 1, 1), np.float32)})
    np.testing.assert_array_equal(found["x_grad"], [[[0, 1, 0, 0]]])
