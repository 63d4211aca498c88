"""Tolerances: every number on which a proof's verdict rests.

The float64 check allows the cost of reordered float64 sums and of rounding recomputed weights. The
onnxruntime check allows a floor by dtype or a multiple of the original's own noise
(`compare.noise`), whichever is larger. If this allowance is above a cap by dtype, a difference
between the two proves nothing: it is neither equal nor different.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
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
# An allowance above this would excuse a wrong model: what differs by more is "not proved". The
# noisiest of models/ allows 2.4e-5, in float16 1e-2.
CAP = {"float64": 1e-2, "float32": 1e-2, "float16": 0.1, "bfloat16": 0.1}
COARSE_CAP = 2 * COARSE_FLOOR
# Exact elements that may differ because a float beside them lies at a tie: more of them than this
# share of an output, and nothing is proved.
AT_TIES = 0.01
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
# or this many times the original's own error against float64, if that is larger
ROUNDED_FACTOR = 3.0


@dataclass(frozen=True)
class Allowance:
    """How far an output may be from the original's, of its largest value.

    Up to `most` and up to `cap` it is equal, above `most` different, between them neither.
    `noise`: how far the original is from itself.
    """

    most: float
    cap: float = math.inf
    noise: float = 0.0

    @property
    def equal(self) -> float:
        """The largest difference that counts as none."""
        return min(self.most, self.cap)


def is_float(array: np.ndarray[Any, Any]) -> bool:
    """True for numpy's floats and for ml_dtypes' (bfloat16, float8, float4)."""
    return bool(array.dtype.kind == "f" or array.dtype.name.startswith(("bfloat", "float")))


def cap(dtypes: Iterable[str]) -> float:
    """The cap of an output on whose paths values of these dtypes are computed: that of the
    coarsest float; 0 if there is none.
    """
    floats = (d for d in dtypes if "float" in d)
    return max((CAP.get(d, COARSE_CAP) for d in floats), default=0.0)


def at_tie(dtypes: Iterable[str]) -> float:
    """How near to a tie a float of these dtypes may be decided otherwise, of the largest beside
    it; 0 if there is no float.
    """
    floors = [floor_of(d) for d in dtypes if "float" in d]
    return min(NOISE_FACTOR * max(floors), cap(dtypes)) if floors else 0.0


@dataclass(frozen=True)
class Range:
    """The least and the largest value that each element of an exact output legally takes."""

    low: np.ndarray[Any, Any]
    high: np.ndarray[Any, Any]

    def over(self, value: np.ndarray[Any, Any]) -> Range:
        """With one more of the same shape."""
        return Range(np.minimum(self.low, value), np.maximum(self.high, value))

    def excuses(self, value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The elements that change between legal runs, and that stay in their range here."""
        inside = (self.low <= value) & (value <= self.high)
        return np.asarray((self.low != self.high) & inside, bool)


Ranges = dict[str, Range]


def widened(ranges: Ranges, first: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    """Take the exact outputs of one more legal run into the ranges; `first` begins them."""
    for name, value in first.items():
        a, b = exact(value), exact(other.get(name))
        if a is not None and b is not None and a.shape == b.shape:
            ranges[name] = ranges.get(name, Range(a, a)).over(b)


def exact(value: Any) -> np.ndarray[Any, Any] | None:
    """A tensor of integers, booleans or strings; None for anything else."""
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "biuOUS":
        return None
    return value.astype(object) if value.dtype.kind in "US" else value


def floor_of(dtype: str) -> float:
    """Returns the smallest tolerance of a dtype, by its name; 0 if values must be equal."""
    return FLOOR.get(dtype, COARSE_FLOOR if dtype.startswith("float") else 0.0)


def _dtypes(value: Any) -> set[np.dtype[Any]]:
    if isinstance(value, (list, dict)):
        values = value.values() if isinstance(value, dict) else value
        return {dtype for v in values for dtype in _dtypes(v)}
    return set() if value is None else {np.asarray(value).dtype}


def _floor_of(value: Any) -> float:
    return max((floor_of(dtype.name) for dtype in _dtypes(value)), default=0.0)


def in_onnxruntime(
    expected: Mapping[str, Any],
    own_noise: Mapping[str, float],
    dtypes: Mapping[str, Collection[str]] | None = None,
) -> dict[str, Allowance]:
    """Per output: the larger of its dtype's floor and NOISE_FACTOR times the original's own
    noise. `dtypes`: the dtypes on each output's paths, beside its own.
    """
    return {
        name: _allowance(name, value, _most(lowest, noise), noise, dtypes)
        for name, value in expected.items()
        for noise in [own_noise.get(name, 0.0)]
        for lowest in [_floor_on(value, (dtypes or {}).get(name, ()))]
    }


def _floor_on(value: Any, on_its_paths: Collection[str]) -> float:
    """The floor of a value's dtypes, or of a coarser one in which it is computed."""
    own = _floor_of(value)
    return max([own, *map(floor_of, on_its_paths)]) if own else 0.0


def _most(floor: float, noise: float) -> float:
    """Exact values have no tolerance, unless the original's own runs have other shapes."""
    if not floor:
        return math.inf if math.isinf(noise) else 0.0
    return max(floor, NOISE_FACTOR * noise)


def _allowance(
    name: str,
    value: Any,
    most: float,
    noise: float,
    dtypes: Mapping[str, Collection[str]] | None,
) -> Allowance:
    own = {dtype.name for dtype in _dtypes(value)}
    return Allowance(most, cap([*own, *(dtypes or {}).get(name, ())]), noise)


def rounded(computed: Collection[int]) -> float:
    """Returns the tolerance of weights that were recomputed and rounded to these types
    (TensorProto.DataType); 0 for none.
    """
    return max((ROUNDED.get(dtype, ROUNDED[TensorProto.FLOAT]) for dtype in computed), default=0.0)


def in_float64(
    expected: Mapping[str, Any],
    own_noise: Mapping[str, float],
    computed: Mapping[str, Collection[int]],
    dtypes: Mapping[str, Collection[str]] | None = None,
) -> dict[str, Allowance]:
    """Per output: EXACT, or for weights recomputed on its paths (`computed`: in these types) what
    `rounded` says or ROUNDED_FACTOR times the original's own error against float64. What is no
    float must be equal.
    """
    limits = {}
    for name, value in expected.items():
        most, noise = rounded(computed.get(name, ())), own_noise.get(name, 0.0)
        limit = max(most, ROUNDED_FACTOR * noise) if most else EXACT
        limit = limit if _floor_of(value) else 0.0
        limits[name] = _allowance(name, value, limit, noise, dtypes)
    return limits


def for_condition(
    limits: Mapping[str, Allowance], moved: Mapping[str, float]
) -> dict[str, Allowance]:
    """The float64 limits of a model whose outputs move by `moved` when the last bits of every sum
    do.

    Floats are excused up to EXACT_LIMIT, and beyond it only if the model itself moves further
    (values that are rounded to integers on their way).
    """
    wider = {}
    for name, limit in limits.items():
        own = moved.get(name, 0.0)
        more = NOISE_FACTOR * own
        if own <= EXACT_LIMIT:
            more = min(more, EXACT_LIMIT)
        if not limit.most and math.isfinite(own):
            more = 0.0
        if more > limit.most:
            limit = Allowance(more, limit.cap, own)
        wider[name] = limit
    return wider
