"""LRN against central differences."""

from __future__ import annotations

import pytest

from tests.grad.numeric import check_op, normal


@pytest.mark.parametrize("size", [3, 4])
def test_lrn(size: int) -> None:
    check_op(
        f"y = LRN <size = {size}, alpha = 0.5, beta = 0.7, bias = 1.3> (x)",
        {"x": normal(2, 5, 3, 2)},
        onnxruntime=size % 2 == 1,
    )
