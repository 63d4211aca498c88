"""AffineGrid: the suite's cases, batch of one, symbolic sizes."""

from __future__ import annotations

import numpy as np
import pytest

from tests.grad.numeric import check_op, normal


@pytest.mark.parametrize("align_corners", [0, 1])
@pytest.mark.parametrize("size", [(2, 3, 4, 5), (1, 1, 2, 2), (2, 3, 2, 4, 5)])
def test_theta(size: tuple[int, ...], align_corners: int) -> None:
    d = len(size) - 2
    node = f"y = AffineGrid <align_corners = {align_corners}> (theta, size)"
    check_op(node, {"theta": normal(size[0], d, d + 1)}, constants={"size": np.array(size)})


def test_a_size_known_at_run_time() -> None:
    feeds = {"theta": normal(2, 2, 3), "size": np.array([2, 1, 3, 4])}
    check_op("y = AffineGrid (theta, size)", feeds, ["theta"], symbolic=False)
