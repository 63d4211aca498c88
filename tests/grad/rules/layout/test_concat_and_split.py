"""Concat and Split against central differences."""

import numpy as np
import pytest

from tests.grad.numeric import check_op, normal


@pytest.mark.parametrize("wrt", [None, ["b"]])
@pytest.mark.parametrize("axis", [1, -1])
def test_concat(axis: int, wrt: list[str] | None) -> None:
    feeds = {"a": normal(2, 3), "b": normal(2, 1), "c": normal(2, 2)}
    check_op(f"y = Concat <axis = {axis}> (a, b, c)", feeds, wrt)


def test_split() -> None:
    parts = {"s": np.array([2, 3])}
    check_op("y, z = Split <axis = 1> (x, s)", {"x": normal(2, 5)}, constants=parts)
    check_op("y, z = Split <axis = 1> (x, s)", {"x": normal(2, 5)}, constants=parts, outputs=["z"])
    check_op("y, z = Split <axis = 1, num_outputs = 2> (x)", {"x": normal(2, 5)})
