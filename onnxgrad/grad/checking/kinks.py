"""Elements of a value that lie exactly on a kink: `Relu(h)` where an earlier Relu made h 0.

Central differences of any step give the mean of the two slopes there, the gradient gives one of
them: both are right.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from onnxgrad.grad.checking.line import STEP, Line
from onnxgrad.grad.checking.vectors import Flat, Mask

# how many sets of elements are moved to find those on a kink; each takes five to twenty runs of the
# model
_TRIES = 32
# a gradient of one slope or the other is off by half of a random sum of slopes' differences; what
# is off by this many times a sum of that kind is another number
_SLOPES, _PARTS = 20, 4


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


def between_slopes(g: Flat, at: Line, kinked: Mask) -> bool:
    """Whether the gradient of elements on a kink may be made of slopes beside it, by the size of
    their differences.
    """
    h = STEP * max(1.0, at.size)
    places = np.arange(g.size).reshape(g.shape) % _PARTS
    spread = np.linalg.norm([at.moving(kinked & (places == i)).kink(h) for i in range(_PARTS)])
    there = at.moving(kinked)
    return bool(abs(float(np.sum(g * there.direction)) - there.central(h)) <= _SLOPES * spread)
