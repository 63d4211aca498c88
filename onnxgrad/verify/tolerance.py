"""Tolerances: every number on which a proof's verdict rests.

The float64 check allows the cost of reordered float64 sums and of rounding recomputed weights. The
onnxruntime check allows a floor by dtype or a multiple of the original's own noise
(`compare.noise`), whichever is larger. If this allowance is above a cap by dtype, a difference
between the two proves nothing: it is neither equal nor different.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
from onnx import TensorProto

from onnxgrad.frozen import frozen

# A candidate may differ by this many times the original's own noise. That noise is the worst of a
# few runs out of many legal ones, so a factor near 1 would raise false alarms; the proof promises
# to catch differences beyond a factor of 10.
NOISE_FACTOR = 8.0
# The cost of one reordered sum in well-conditioned models, relative to max|y|: the tolerance if
# the original shows no noise at all.
FLOOR = {"float64": 1e-13, "float32": 1e-6, "float16": 4e-3, "bfloat16": 3e-2}
COARSE_FLOOR = 0.15  # float8, float4: one step of a 2- or 3-bit mantissa
# An allowance above this would excuse a wrong model: a larger difference is "not proved". The
# noisiest model of models/ allows 2.4e-5, in float16 1e-2.
CAP = {"float64": 1e-2, "float32": 1e-2, "float16": 0.1, "bfloat16": 0.1}
COARSE_CAP = 2 * COARSE_FLOOR
# Exact elements may differ if a float beside them lies at a tie. If more than this share of an
# output does, nothing is proved.
AT_TIES = 0.01
UNSTABLE = 0.05  # the report names outputs with more noise, for which a comparison says little
# An output that moves further between the original's own runs is decided by the last bits of values
# that are rounded or compared: both models are then compared by regions.
CHAOTIC = 1e-4
EXACT = 1e-9  # no weight was recomputed: the two graphs differ by the order of float64 sums only
# a larger difference is a change, however ill-conditioned the model
EXACT_LIMIT = 1e-7
# Weights were recomputed and rounded to their type again, by at most 2**-24, 2**-11, 2**-8 each;
# depth adds to that.
ROUNDED: dict[int, float] = {
    TensorProto.DOUBLE: EXACT,
    TensorProto.FLOAT: 1e-6,
    TensorProto.FLOAT16: 4 * 2.0**-11,
    TensorProto.BFLOAT16: 4 * 2.0**-8,
}
# Half a unit in the last place of a number near 1, the error of one rounding.
HALF_UNIT: dict[int, float] = {
    TensorProto.DOUBLE: 2.0**-53,
    TensorProto.FLOAT: 2.0**-24,
    TensorProto.FLOAT16: 2.0**-11,
    TensorProto.BFLOAT16: 2.0**-8,
}
# Constants that only one of the models has may be rounded differently. This many times the largest
# move of an output is allowed, in a few runs in which each is off by a whole HALF_UNIT.
ROUNDED_FACTOR = 1.5


@frozen
class Allowance:
    """The allowed difference of an output from the original's, relative to its largest value.

    A difference up to both `most` and `cap` is equal. A difference above `most` is different.
    Between them it is neither. `noise`: the difference of the original from itself.
    """

    most: float
    cap: float = math.inf
    noise: float = 0.0

    @property
    def equal(self) -> float:
        """The largest difference that counts as equal."""
        return min(self.most, self.cap)


def is_float(array: np.ndarray[Any, Any]) -> bool:
    """True for numpy's floats and for ml_dtypes' (bfloat16, float8, float4)."""
    return bool(array.dtype.kind == "f" or array.dtype.name.startswith(("bfloat", "float")))


def cap(dtypes: Iterable[str]) -> float:
    """Returns the cap of an output on whose paths values of these dtypes are computed: that of the
    coarsest float, or 0 if there is no float.
    """
    floats = (d for d in dtypes if "float" in d)
    return max((CAP.get(d, COARSE_CAP) for d in floats), default=0.0)


def at_tie(dtypes: Iterable[str]) -> float:
    """Returns how near to a tie, relative to the largest value beside it, the decision on a float
    of these dtypes is open; 0 if there is no float.
    """
    floors = [floor_of(d) for d in dtypes if "float" in d]
    return min(NOISE_FACTOR * max(floors), cap(dtypes)) if floors else 0.0


@frozen
class Range:
    """The smallest and the largest value that each element of an exact output legally takes."""

    low: np.ndarray[Any, Any]
    high: np.ndarray[Any, Any]

    def over(self, value: np.ndarray[Any, Any]) -> Range:
        """Returns the range extended by one more value of the same shape."""
        ends = np.minimum(self.low, value), np.maximum(self.high, value)
        # of one string, numpy returns no array
        return Range(*(np.asarray(end, self.low.dtype) for end in ends))

    def excuses(self, value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Returns the mask of the elements that change between legal runs and are within their
        range here.
        """
        if value.shape != self.low.shape:  # another number of rows in this run
            return np.zeros(value.shape, bool)
        inside = (self.low <= value) & (value <= self.high)
        return np.asarray((self.low != self.high) & inside, bool)


Ranges = dict[str, Range]


def widened(ranges: Ranges, first: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    """Adds the exact outputs of one more legal run to the ranges. `first` starts the ranges."""
    for name, value in first.items():
        a, b = exact(value), exact(other.get(name))
        if a is not None and b is not None and a.shape == b.shape:
            ranges[name] = ranges.get(name, Range(a, a)).over(b)


def exact(value: Any) -> np.ndarray[Any, Any] | None:
    """Returns a tensor of integers, booleans or strings; None for any other value."""
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "biuOUS":
        return None
    return value.astype(object) if value.dtype.kind in "US" else value


def floor_of(dtype: str) -> float:
    """Returns the smallest tolerance of a dtype, given by name; 0 if values must be equal."""
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
    """Returns, by output, the larger of its dtype's floor and NOISE_FACTOR times the original's own
    noise. `dtypes`: the dtypes on each output's paths, in addition to its own.
    """
    return {
        name: _allowance(name, value, _most(lowest, noise), noise, dtypes)
        for name, value in expected.items()
        for noise in [own_noise.get(name, 0.0)]
        for lowest in [_floor_on(value, (dtypes or {}).get(name, ()))]
    }


def _floor_on(value: Any, on_its_paths: Collection[str]) -> float:
    """Returns the floor of a value's dtypes, or of a coarser dtype in which it is computed."""
    own = _floor_of(value)
    return max([own, *map(floor_of, on_its_paths)]) if own else 0.0


def _most(floor: float, noise: float) -> float:
    """Returns the largest allowed difference. Exact values have none, unless the original's own
    runs differ in shape.
    """
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
    """Returns the tolerance for weights that were recomputed and rounded to these types
    (TensorProto.DataType); 0 if there are none.
    """
    return max((ROUNDED.get(dtype, ROUNDED[TensorProto.FLOAT]) for dtype in computed), default=0.0)


def in_float64(
    expected: Mapping[str, Any],
    computed: Mapping[str, Collection[int]],
    dtypes: Mapping[str, Collection[str]] | None = None,
) -> dict[str, Allowance]:
    """Returns the tolerance of each output: EXACT, or `rounded` if weights on its paths were
    recomputed (`computed`: their types). Other values than floats must be equal.
    """
    return {
        name: _allowance(name, value, limit if _floor_of(value) else 0.0, 0.0, dtypes)
        for name, value in expected.items()
        for limit in [rounded(computed.get(name, ())) or EXACT]
    }


def for_rounding(
    limits: Mapping[str, Allowance], moved: Mapping[str, float]
) -> dict[str, Allowance]:
    """Returns the float64 limits of outputs that move by `moved` if constants are rounded
    differently.
    """
    return {
        name: Allowance(most, limit.cap, own) if limit.most and most > limit.most else limit
        for name, limit in limits.items()
        for own in [moved.get(name, 0.0)]
        for most in [ROUNDED_FACTOR * own]
    }


def for_condition(
    limits: Mapping[str, Allowance], moved: Mapping[str, float]
) -> dict[str, Allowance]:
    """Returns the float64 limits of a model whose outputs move by `moved` when the last bits of
    every sum change.

    Floats are excused up to EXACT_LIMIT. Beyond it they are excused only if the model itself moves
    further, because values are rounded to integers on their way.
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
