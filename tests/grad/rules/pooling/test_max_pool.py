"""MaxPool and GlobalMaxPool: windows of every form, and which of equal maxima is the one."""

import numpy as np
import pytest

from onnxgrad.grad import gradient
from onnxgrad.verify.running.run import run
from tests.grad.numeric import check_op, distinct, op_model
from tests.grad.rules.pooling.test_average_pool import WINDOWS


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
def test_windows(window: str) -> None:
    check_op(f"y = MaxPool <{window}> (x)", {"x": distinct(2, 3, 7, 9)})


def test_one_axis() -> None:
    check_op("y = MaxPool <kernel_shape = [2]> (x)", {"x": distinct(2, 3, 7)})


def test_global_pooling() -> None:
    check_op("y = GlobalMaxPool (x)", {"x": distinct(2, 3, 7, 9)})
