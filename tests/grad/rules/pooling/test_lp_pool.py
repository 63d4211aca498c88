"""LpPool and GlobalLpPool against central differences."""

from __future__ import annotations

import numpy as np
import pytest

from tests.grad.numeric import check_op, distinct, positive


@pytest.mark.parametrize("p", [1, 2, 3])
def test_lp_pools(p: int) -> None:
    x = positive(1, 2, 5, 6) * np.sign(distinct(1, 2, 5, 6))
    check_op(f"y = GlobalLpPool <p = {p}> (x)", {"x": x})
    check_op(
        f"y = LpPool <p = {p}, kernel_shape = [3, 2], strides = [2, 1], pads = [1, 0, 1, 1]> (x)",
        {"x": x},
    )
