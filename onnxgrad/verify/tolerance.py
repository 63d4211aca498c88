"""By how much two results may differ: every number that a proof's verdict rests on.

The float64 leg asks for what reordered float64 sums, or rounding recomputed weights, cost. The
onnxruntime leg asks for a floor by dtype, or a multiple of the original's own noise
(`compare.noise`), whichever is larger.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from onnx import TensorProto

# A candidate may differ by this many times the original's own noise. That noise is the worst of a
# few runs out of many legal ones, so a factor near 1 would cry wolf; 10 is what the proof promises
# to catch.
NOISE_FACTOR = 8.0
# What one reordered sum costs in well-conditioned models, relative to max|y|: the tolerance where
# the original shows no noise at all.
FLOOR = {"float64": 1e-13, "float32": 1e-6, "float16": 4e-3, "bfloat16": 3e-2}
COARSE_FLOOR = 0.15  # float8, float4: one step of a 2- or 3-bit mantissa
UNSTABLE = 0.05  # noise beyond which a comparison says little; such outputs are named in the report
EXACT = 1e-9  # no weight was recomputed: the two graphs differ by the order of float64 sums only
# and however ill-conditioned the model, what moves by more than this is a change
EXACT_LIMIT = 1e-7
# Weights were recomputed and rounded to their type again, by at most 2**-24, 2**-11, 2**-8 each;
# depth adds to that.
ROUNDED: dict[int, float] = {
    TensorProto.DOUBLE: EXACT,
    TensorProto.FLOAT: 1e-6,
    TensorProto.FLOAT16: 4 * 2.0**-11,
    TensorProto.BFLOAT16: 4 * 2.0**-8,
}
# or this many times the original's own error against float64, where that is larger
ROUNDED_FACTOR = 3.0


def floor(dtype: np.dtype[Any]) -> float:
    """The smallest tolerance of a dtype; 0 for what must be equal."""
    if dtype.name in FLOOR:
        return FLOOR[dtype.name]
    return COARSE_FLOOR if dtype.name.startswith("float") else 0.0


def _floor_of(value: Any) -> float:
    if isinstance(value, list):
        return max((_floor_of(v) for v in value), default=0.0)
    if isinstance(value, dict):
        return max((_floor_of(np.asarray(v)) for v in value.values()), default=0.0)
    return 0.0 if value is None else floor(np.asarray(value).dtype)


def in_onnxruntime(expected: Mapping[str, Any], own_noise: Mapping[str, float]) -> dict[str, float]:
    """Per output: the larger of its dtype's floor and NOISE_FACTOR times the original's own
    noise.
    """
    return {
        name: max(_floor_of(value), NOISE_FACTOR * own_noise.get(name, 0.0))
        for name, value in expected.items()
    }


def rounded(computed: Collection[int]) -> float:
    """What rounding to these types (TensorProto.DataType) may cost where weights were recomputed
    in them; 0 of none.
    """
    return max((ROUNDED.get(dtype, ROUNDED[TensorProto.FLOAT]) for dtype in computed), default=0.0)


def in_float64(
    expected: Mapping[str, Any], own_noise: Mapping[str, float], computed: Collection[int]
) -> dict[str, float]:
    """Per output: EXACT, or for recomputed weights what `rounded` says or ROUNDED_FACTOR times the
    original's own error against float64. What is no float must be equal.
    """
    most = rounded(computed)
    limits = {}
    for name, value in expected.items():
        limit = max(most, ROUNDED_FACTOR * own_noise.get(name, 0.0)) if most else EXACT
        limits[name] = limit if _floor_of(value) else 0.0
    return limits


def for_condition(limits: Mapping[str, float], moved: Mapping[str, float]) -> dict[str, float]:
    """The float64 limits of a model whose outputs move by `moved` when the last bits of every sum
    do.

    Floats are excused up to EXACT_LIMIT, and beyond it only where the model itself moves further
    (values that are rounded to integers on their way).
    """
    wider = {}
    for name, limit in limits.items():
        own = moved.get(name, 0.0)
        chaotic = own > EXACT_LIMIT or not limit
        wider[name] = max(
            limit, NOISE_FACTOR * own if chaotic else min(NOISE_FACTOR * own, EXACT_LIMIT)
        )
    return wider
