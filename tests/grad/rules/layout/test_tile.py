"""Tile, Trilu and ReverseSequence against central differences."""

from __future__ import annotations

import numpy as np
import pytest

from tests.grad.numeric import check_op, normal


@pytest.mark.parametrize("repeats", [[2, 1], [1, 3], [2, 2]])
def test_tile(repeats: list[int]) -> None:
    check_op("y = Tile (x, r)", {"x": normal(2, 3)}, constants={"r": np.array(repeats)})
    check_op("y = Tile (x, r)", {"x": normal(2, 3), "r": np.array(repeats)})


@pytest.mark.parametrize("upper", [0, 1])
def test_trilu(upper: int) -> None:
    check_op(f"y = Trilu <upper = {upper}> (x)", {"x": normal(2, 3, 4)})
    check_op(f"y = Trilu <upper = {upper}> (x, k)", {"x": normal(3, 4), "k": np.array(-1)})
    check_op(
        f"y = Trilu <upper = {upper}> (x, k)", {"x": normal(3, 4)}, constants={"k": np.array(1)}
    )


def test_reverse_sequence() -> None:
    lengths = np.array([1, 3, 2])
    check_op(
        "y = ReverseSequence <batch_axis = 1, time_axis = 0> (x, n)",
        {"x": normal(4, 3), "n": lengths},
    )
    check_op(
        "y = ReverseSequence <batch_axis = 0, time_axis = 1> (x, n)",
        {"x": normal(3, 4, 2), "n": lengths},
    )
