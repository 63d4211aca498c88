"""onnxgrad/laws/quantized/forms.py: how far a float32 sum of integers may be off."""

from __future__ import annotations

import numpy as np
import pytest

from onnxgrad.laws.quantized.forms import shortfall


@pytest.mark.parametrize(
    ("terms", "largest", "error"),
    # n u / (1 - n u) with u = 2^-24: a quarter gives a third, a half gives 1; from n u = 1 on nothing is known but |sum|
    [
        (1 << 22, 3 << 24, 1 << 24),
        (1 << 23, 5 << 24, 5 << 24),
        (1 << 24, 5 << 24, 5 << 24),
        (1 << 25, 7 << 24, 7 << 24),
    ],
)
def test_the_bound_is_highams(terms: int, largest: int, error: int) -> None:
    found = shortfall((terms, largest))
    assert found is not None and found.error == error


def test_sums_that_float32_holds_fall_short_of_nothing() -> None:
    assert shortfall((1 << 30, 1 << 24)) is None
    assert shortfall((2, (1 << 24) + 1)) is not None  # the first integer that float32 lacks
    unknown = shortfall(None)
    assert unknown is not None and unknown.error is None


def test_a_sum_in_float32_is_off_by_no_more() -> None:
    products = np.random.default_rng(0).integers(0, 256, (2, 4000)).prod(axis=0)
    added = np.cumsum(products.astype(np.float32), dtype=np.float32)[-1]  # one after the other
    off = abs(int(added) - int(products.sum()))
    found = shortfall((products.size, int(products.sum())))
    assert found is not None and found.error is not None
    assert 0 < off <= found.error < products.sum() / 1000
