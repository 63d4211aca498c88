"""Elements of a value that lie exactly on a kink: `Relu(h)` where an earlier Relu made h 0.

Central differences of any step give the mean of the two slopes there, the gradient gives one of
them, or one between them: all are right.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from onnxgrad.grad.checking.line import SHRINK, Line
from onnxgrad.grad.checking.vectors import Flat, Mask

# how many sets of elements are moved to find those on a kink; each takes five to twenty runs of the
# model
_TRIES = 32
# of the elements on a kink, so many of the largest gradients, and as many others, are held against
# the slopes on both sides
_LOOKED_AT = 4


def smooth_elements(values: Flat, has_kink: Callable[[Mask], bool]) -> Mask | None:
    """The elements without a kink; None where `_TRIES` sets of them do not show which those are.

    `has_kink` says whether the two slopes differ when only these elements move. What has one value
    is one element here: a kink mostly lies at a number, 0 or a bound.
    """
    distinct, group = np.unique(values, return_inverse=True)
    group = group.reshape(values.shape)
    smooth = np.zeros(values.shape, bool)
    ranges = [(0, len(distinct))]
    for tries, (start, end) in enumerate(ranges):  # halves are added while it is walked
        if tries == _TRIES:
            return None
        among: Mask = (group >= start) & (group < end)
        if not has_kink(among):
            smooth |= among
        elif end - start > 1:
            middle = (start + end) // 2
            ranges += [(start, middle), (middle, end)]
    return smooth


def no_slope_beside(
    g: Flat, at: Line, kinked: Mask, limit: float
) -> tuple[float, float, float] | None:
    """The gradient, the nearest slope and the relative error of the worst element on a kink whose
    gradient is not between the slopes on its two sides; None where all that are looked at are.
    """
    places = np.flatnonzero(kinked)
    by_size = places[np.argsort(-np.abs(g.reshape(-1)[places]), kind="stable")]
    spread = by_size[_LOOKED_AT :: max(1, (len(by_size) - _LOOKED_AT) // _LOOKED_AT)]
    typical = float(np.linalg.norm(g)) / max(1.0, np.sqrt(g.size))
    worst = None
    for place in dict.fromkeys([*by_size[:_LOOKED_AT], *spread[:_LOOKED_AT]]):
        found = _outside(float(g.flat[place]), at.alone(int(place)), typical, limit)
        if found is not None and (worst is None or found[2] > worst[2]):
            worst = found
    return worst


def _outside(
    slope: float, at: Line, typical: float, limit: float
) -> tuple[float, float, float] | None:
    """The slope of one element, the nearest of those between the two sides, and the error; None
    where it is one of them at some step.
    """
    found = None
    for h in (at.step * part for part in SHRINK):
        low, high = at.bounds(h)
        nearest = min(max(slope, low), high)
        size = max(abs(low), abs(high), abs(slope), typical)
        if not abs(slope - nearest) > limit * size + 8 * at.rounding(h):
            return None
        found = slope, nearest, abs(slope - nearest) / size
    return found
