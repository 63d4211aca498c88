"""Pad against central differences."""

from __future__ import annotations

import numpy as np
import pytest

from tests.grad.numeric import check_op, normal


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
@pytest.mark.parametrize("at_run_time", [False, True])
def test_pad(mode: str, at_run_time: bool) -> None:
    pads = {"p": np.array([1, 0, 2, 1])}
    given = ({}, pads) if at_run_time else (pads, {})
    check_op(
        f'y = Pad <mode = "{mode}"> (x, p)', {"x": normal(3, 4), **given[1]}, constants=given[0]
    )


def test_pad_that_crops() -> None:
    check_op("y = Pad (x, p)", {"x": normal(3, 4)}, constants={"p": np.array([-1, 1, 0, -2])})


def test_pad_along_some_axes_and_its_value() -> None:
    check_op(
        "y = Pad (x, p, v, a)",
        {"x": normal(3, 4, 2), "v": np.float32(0.7)},
        constants={"p": np.array([1, 2, 0, -1]), "a": np.array([2, 0])},
    )
