"""The numbers that every verdict rests on: floors by dtype, a model's own noise, what rounding recomputed weights costs."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto

from onnxgrad.verify import tolerance
from onnxgrad.verify.tolerance import (
    EXACT,
    EXACT_LIMIT,
    FLOOR,
    NOISE_FACTOR,
    ROUNDED_FACTOR,
    Allowance,
)


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
    assert tolerance.floor_of(np.dtype(dtype).name) == floor


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
        (I64, 0.5, 0.0),  # exact elements are excused one by one
        (I64, math.inf, math.inf),  # of another shape in some runs
        ([F32, F16], 0.0, 4e-3),
        ([], 0.0, 0.0),
        ({"a": 1.5, "b": np.float32(2)}, 0.0, 1e-6),
        (None, 0.0, 0.0),
    ],
)
def test_in_onnxruntime_the_larger_of_floor_and_noise(
    value: Any, noise: float, limit: float
) -> None:
    found = tolerance.in_onnxruntime({"y": value}, {"y": noise})["y"]
    assert (found.most, found.noise) == (limit, noise)
    assert tolerance.in_onnxruntime({"y": value}, {}) == tolerance.in_onnxruntime(
        {"y": value}, {"y": 0.0}
    )


@pytest.mark.parametrize(
    ("value", "on_its_paths", "cap"),
    [
        (F32, ["float32", "int64"], 1e-2),
        (F32, [], 1e-2),
        (np.zeros(2), ["float32"], 1e-2),
        (F16, ["float16"], 0.1),
        (F32, ["float32", "float16"], 0.1),
        (F32, ["bfloat16"], 0.1),
        (F32, ["float8e4m3fn"], 0.3),
        (I64, ["float32"], 1e-2),
        (I64, [], 0.0),
    ],
)
def test_the_cap_is_that_of_the_coarsest_float_on_the_outputs_paths(
    value: Any, on_its_paths: list[str], cap: float
) -> None:
    paths, new = {"y": on_its_paths}, {"y": [TensorProto.FLOAT]}
    for found in (
        tolerance.in_onnxruntime({"y": value}, {"y": 2.0}, paths)["y"],
        tolerance.in_float64({"y": value}, new, paths)["y"],
    ):
        assert found.cap == cap and found.equal == min(cap, found.most)


@pytest.mark.parametrize(
    ("value", "on_its_paths", "lowest"),
    [(F32, ["float32"], 1e-6), (F32, ["float16"], 4e-3), (F16, ["float32"], 4e-3), (I64, ["float16"], 0.0)],
)  # fmt: skip
def test_the_floor_is_that_of_the_coarsest_float_on_the_outputs_paths(
    value: Any, on_its_paths: list[str], lowest: float
) -> None:
    assert tolerance.in_onnxruntime({"y": value}, {}, {"y": on_its_paths})["y"].most == lowest


def test_every_cap_is_wider_than_what_one_reordered_sum_costs() -> None:
    assert all(FLOOR[dtype] < tolerance.CAP[dtype] for dtype in FLOOR)
    assert tolerance.COARSE_FLOOR < tolerance.COARSE_CAP


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


def test_in_float64_recomputed_weights_cost_their_rounding() -> None:
    computed = {"y": [TensorProto.FLOAT], "i": [TensorProto.FLOAT]}
    found = tolerance.in_float64({"y": F32, "i": I64, "z": F32}, computed)
    assert {name: limit.most for name, limit in found.items()} == {"y": 1e-6, "i": 0.0, "z": EXACT}


@pytest.mark.parametrize(
    ("moved", "limit"), [(0.0, 1e-6), (1e-7, 1e-6), (1e-5, ROUNDED_FACTOR * 1e-5)]
)
def test_other_roundings_of_constants_widen_the_limits_of_floats(
    moved: float, limit: float
) -> None:
    given = {"y": Allowance(1e-6, 1e-2), "i": Allowance(0.0)}
    found = tolerance.for_rounding(given, {"y": moved, "i": 1.0})
    assert {name: limit.most for name, limit in found.items()} == {"y": limit, "i": 0.0}
    assert found["y"].cap == 1e-2


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
        (0.0, 1.0, 0.0),
        (0.0, math.inf, math.inf),
    ],
)
def test_a_model_that_moves_by_itself_is_excused_up_to_a_limit(
    limit: float, moved: float, wider: float
) -> None:
    given = {"y": Allowance(limit, 1e-2)}
    found = tolerance.for_condition(given, {"y": moved})["y"]
    assert found.most == pytest.approx(wider) and found.cap == 1e-2
    assert tolerance.for_condition(given, {}) == given
