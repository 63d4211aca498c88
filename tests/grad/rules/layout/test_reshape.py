"""onnxgrad/grad/rules/layout/reshape.py"""

import pytest

from tests.grad.numeric import check_op, normal
from tests.grad.rules.layout.test_slice import ints


@pytest.mark.parametrize("sizes", [(4, -1), (4, 6), (0, 12), (24,)])
def test_reshape(sizes: tuple[int, ...]) -> None:
    check_op("y = Reshape (x, s)", {"x": normal(2, 3, 4)}, constants={"s": ints(*sizes)})
    check_op("y = Reshape (x, s)", {"x": normal(2, 3, 4), "s": ints(*sizes)}, symbolic=True)


@pytest.mark.parametrize("axis", [0, 2, -1])
def test_flatten(axis: int) -> None:
    check_op(f"y = Flatten <axis = {axis}> (x)", {"x": normal(2, 3, 4)})


def test_squeeze_and_unsqueeze() -> None:
    check_op("y = Squeeze (x, a)", {"x": normal(2, 1, 4)}, constants={"a": ints(1)})
    check_op("y = Squeeze (x)", {"x": normal(2, 1, 4)}, symbolic=False)
    check_op("y = Squeeze (x, a)", {"x": normal(2, 1, 4), "a": ints(1)}, symbolic=False)
    check_op("y = Unsqueeze (x, a)", {"x": normal(2, 4)}, constants={"a": ints(1, -1)})


def test_transpose() -> None:
    check_op("y = Transpose <perm = [2, 0, 1]> (x)", {"x": normal(2, 3, 4)})
    check_op("y = Transpose (x)", {"x": normal(2, 3, 4)})


@pytest.mark.parametrize("sizes", [(2, 3, 4), (1, 1), (3, 1)])
def test_expand(sizes: tuple[int, ...]) -> None:
    check_op("y = Expand (x, s)", {"x": normal(3, 1)}, constants={"s": ints(*sizes)})
    check_op("y = Expand (x, s)", {"x": normal(3, 1), "s": ints(*sizes)})
