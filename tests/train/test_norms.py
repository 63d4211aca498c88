"""Norms to the last digits of float32, of tensors of any size and dtype."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnxgrad.train import array_math
from onnxgrad.train.norms import global_norm, sum_of_squares
from tests.train.emitted import computed


@pytest.mark.parametrize(
    "shape", [(), (3,), (7, 5), (1000, 2000), (1, 1500, 900), (3, 4, 200, 300), (2, 100_000)]
)
def test_squares_add_up_exactly(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).normal(0, 3, shape).astype(np.float32)
    exact = np.square(x, dtype=np.float64).sum()
    found = computed(lambda v: {"y": sum_of_squares(v["x"])}, {"x": x})["y"]
    assert found.dtype == np.float32 and found.shape == ()
    np.testing.assert_allclose(found, exact, rtol=3e-6)
    np.testing.assert_allclose(sum_of_squares(x, array_math), exact, rtol=1e-6)


@pytest.mark.parametrize(
    ("dtypes", "expected"),
    [
        ((np.float32, np.float32), np.float32),
        ((np.float16, np.float32), np.float32),
        ((np.float16, np.float16), np.float32),
        ((np.float16, np.float64), np.float64),
    ],
)
def test_a_norm_over_tensors(dtypes: Any, expected: Any) -> None:
    a, b = (
        np.full((2, 3), 300, dtypes[0]),
        np.full(2, 4000, dtypes[1]),
    )  # whose squares float16 does not hold
    for found in (
        computed(lambda v: {"y": global_norm([v["a"], v["b"]])}, {"a": a, "b": b})["y"],
        global_norm([a, b], array_math),
    ):
        assert found.dtype == expected
        np.testing.assert_allclose(found, np.sqrt(6 * 300.0**2 + 2 * 4000.0**2), rtol=1e-6)
