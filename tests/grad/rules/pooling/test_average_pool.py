"""AveragePool and GlobalAveragePool: windows of every form, the elements of padding counted or not."""

import pytest

from tests.grad.numeric import check_op, distinct

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
