"""The numbers that every verdict rests on: floors by dtype, a model's own noise, what rounding recomputed weights costs."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto

from onnxgrad.verify import tolerance
from onnxgrad.verify.tolerance import EXACT, EXACT_LIMIT, FLOOR, NOISE_FACTOR, ROUNDED_FACTOR


@pytest.mark.parametrize(
    ("dtype", "floor"),
    [
        (np.float64, 1e-13),
        (np.float32, 1e-6),
        (np.float16, 4e-3),
        (ml_dtypes.bfloat16, 3e-2),
        (ml_dtypes.float8_e4m3fn, tolerance.COARSE_FLOOR),
        (np.int64, 0.0),
        (np.bool_, 0.0),
        (object, 0.0),
    ],
)
def test_what_is_no_float_must_be_equal(dtype: Any, floor: float) -> None:
    assert tolerance.floor(np.dtype(dtype)) == floor


def test_floors_are_wider_than_the_dtypes_last_bit_and_narrower_than_a_hundred() -> None:
    for name, bits in (("float64", 53), ("float32", 24), ("float16", 11), ("bfloat16", 8)):
        assert 2.0**-bits < FLOOR[name] < 1000 * 2.0**-bits


F32, F16, I64 = np.zeros(2, np.float32), np.zeros(2, np.float16), np.zeros(2, np.int64)


@pytest.mark.parametrize(
    ("value", "noise", "limit"),
    [
        (F32, 0.0, 1e-6),
        (F32, 1e-8, 1e-6),
        (F32, 1e-5, NOISE_FACTOR * 1e-5),
        (I64, 0.0, 0.0),
        (I64, 0.5, NOISE_FACTOR * 0.5),
        ([F32, F16], 0.0, 4e-3),
        ([], 0.0, 0.0),
        ({"a": 1.5, "b": np.float32(2)}, 0.0, 1e-6),
        (None, 0.0, 0.0),
    ],
)
def test_in_onnxruntime_the_larger_of_floor_and_noise(
    value: Any, noise: float, limit: float
) -> None:
    assert tolerance.in_onnxruntime({"y": value}, {"y": noise}) == {"y": limit}
    assert tolerance.in_onnxruntime({"y": value}, {}) == {
        "y": tolerance.in_onnxruntime({"y": value}, {"y": 0.0})["y"]
    }


@pytest.mark.parametrize(
    ("computed", "most"),
    [
        ([], 0.0),
        ([TensorProto.DOUBLE], EXACT),
        ([TensorProto.FLOAT], 1e-6),
        ([TensorProto.FLOAT, TensorProto.FLOAT16], 4 * 2.0**-11),
        ([TensorProto.BFLOAT16, TensorProto.DOUBLE], 4 * 2.0**-8),
        ([TensorProto.FLOAT8E4M3FN], 1e-6),
    ],
)
def test_rounding_costs_what_the_coarsest_type_does(computed: list[int], most: float) -> None:
    assert tolerance.rounded(computed) == most


def test_in_float64_nothing_recomputed_is_exact_whatever_the_noise() -> None:
    assert tolerance.in_float64({"y": F32, "i": I64}, {"y": 0.1}, []) == {"y": EXACT, "i": 0.0}


@pytest.mark.parametrize(
    ("noise", "limit"), [(0.0, 1e-6), (1e-7, 1e-6), (1e-5, ROUNDED_FACTOR * 1e-5)]
)
def test_in_float64_recomputed_weights_cost_their_rounding(noise: float, limit: float) -> None:
    found = tolerance.in_float64({"y": F32, "i": I64}, {"y": noise}, [TensorProto.FLOAT])
    assert found == {"y": limit, "i": 0.0}


@pytest.mark.parametrize(
    ("limit", "moved", "wider"),
    [
        (EXACT, 0.0, EXACT),
        (EXACT, 1e-9, NOISE_FACTOR * 1e-9),
        (EXACT, 9e-8, EXACT_LIMIT),  # ill-conditioned, and still a change beyond this is a change
        (
            EXACT,
            1e-3,
            NOISE_FACTOR * 1e-3,
        ),  # rounded to integers on the way: the model itself moves that far
        (1e-6, 9e-8, 1e-6),
        (0.0, 0.0, 0.0),
        (0.0, 1.0, NOISE_FACTOR),
    ],
)
def test_a_model_that_moves_by_itself_is_excused_up_to_a_limit(
    limit: float, moved: float, wider: float
) -> None:
    assert tolerance.for_condition({"y": limit}, {"y": moved}) == {"y": pytest.approx(wider)}
    assert tolerance.for_condition({"y": limit}, {}) == {"y": limit}
