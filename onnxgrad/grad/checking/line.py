"""The weighted sum of the targets along a line through the feeds: its slope, how sure that is, and
its kinks.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from onnxgrad.errors import Unsupported
from onnxgrad.grad.checking.report import TOO_SMALL
from onnxgrad.grad.checking.vectors import Flat, Mask, flat, shaped
from onnxgrad.verify.reference.client import Float64

STEP = 1e-5
# steps tried, as multiples of the first, until one shows the slope: smaller ones pass kinks nearby,
# larger ones the rounding of a function that hardly moves
SHRINK, _LARGER = (1.0, 1 / 16, 1 / 256, 1 / 4096), (64.0, 1024.0)
# of a difference to one side, which is right up to the step: enough to see that two numbers agree
QUICK = STEP / 64
# the slope is shown when its doubt is this part of what an error may be
_AGREE = 0.1
_UNIT, _JITTERED = 2.0**-53, (0, 1)
# a sum that rounding moves by more than this part does not round: it jumps
_JUMP = 1e-6
_MARKS = itertools.count()


@dataclass(frozen=True)
class Slope:
    """A slope by differences, and how far off it may be: by a kink, or by rounding."""

    value: float
    doubt: float
    rounding: float
    step: float

    @property
    def why(self) -> str:
        """The cause of the doubt."""
        if not np.isfinite(self.value):
            return "the differences are not finite"
        if self.rounding >= self.doubt / 4:
            return TOO_SMALL
        return f"a kink within {self.step:.0e}"


@dataclass(frozen=True)
class Place:
    """Where differences are taken: the feeds of the probe with nothing moved, the weights of its
    targets, what they are there, and by how much rounding in float64 moves their weighted sum.
    """

    reference: Float64
    feeds: Mapping[str, Any]
    weights: Mapping[str, Flat]
    base: Mapping[str, Any]
    noise: float
    # of runs in which one value alone moves: the reference computes once what is not behind it
    mark: tuple[int, int] = field(default_factory=lambda: (os.getpid(), next(_MARKS)))


def place(
    reference: Float64,
    feeds: Mapping[str, Any],
    weights: Mapping[str, Flat],
    base: Mapping[str, Any],
) -> Place:
    """The place, with its rounding measured by random rounding of every step."""
    least = sum(float(np.sum(np.abs(np.float64(w) * flat(base[t])))) for t, w in weights.items())
    at = Place(reference, feeds, weights, base, 4 * _UNIT * least)
    reference.run(feeds, outputs=list(weights), moved=(at.mark, ""))
    options: Any = {"outputs": list(weights), "jitter": _UNIT, "everywhere": True}
    try:
        moved = [abs(_rise(at, reference.run(feeds, seed=i, **options), base)) for i in _JITTERED]
    except (Unsupported, ValueError):
        return at
    noise = max(moved)
    return replace(at, noise=max(at.noise, noise)) if noise <= _JUMP * least else at


def _rise(at: Place, to: Mapping[str, Any], start: Mapping[str, Any]) -> float:
    """The rise of the weighted sum from `start` to `to`."""
    with np.errstate(invalid="ignore"):  # infinity less infinity
        pairs = ((w, flat(to[t]) - flat(start[t])) for t, w in at.weights.items())
        return sum(float(np.sum(np.float64(w) * moved)) for w, moved in pairs)


class Line:
    """The weighted sum of the targets along a line through a place.

    delta: the input that moves the value; size: of its largest element.
    """

    def __init__(self, at: Place, delta: str, direction: Flat, size: float) -> None:
        self.at, self.delta, self.direction, self.size = at, delta, direction, size
        self._known: dict[float, Mapping[str, Any]] = {0.0: at.base}

    @property
    def step(self) -> float:
        """The first step tried."""
        return STEP * max(1.0, self.size)

    def central(self, h: float) -> float:
        """(f(h) - f(-h)) / 2h."""
        return _rise(self.at, self._run(h), self._run(-h)) / (2 * h)

    def forward(self, h: float) -> float:
        """(f(h) - f(0)) / h, to the left if h is negative."""
        return _rise(self.at, self._run(h), self.at.base) / h

    def rounding(self, h: float) -> float:
        """How far rounding may move differences over h."""
        return 2 * self.at.noise / h

    def kink(self, h: float) -> float:
        """The difference of the slopes on both sides, each extrapolated from two steps."""
        left, right = self.sides(h)
        return abs(right - left)

    def sides(self, h: float) -> tuple[float, float]:
        """The slopes to the left and to the right, each extrapolated from two steps."""

        return (
            2 * self.forward(-h) - self.forward(-2 * h),
            2 * self.forward(h) - self.forward(2 * h),
        )

    def bounds(self, h: float) -> tuple[float, float]:
        """The least and largest slope if each element of the targets takes one of its two: rules
        may choose anew at each tie, and weights have both signs.
        """
        low = high = 0.0
        for name, weight in self.at.weights.items():
            left, right = (np.float64(weight) * s for s in self._sides(name, h))
            low += float(np.sum(np.minimum(left, right)))
            high += float(np.sum(np.maximum(left, right)))
        return low, high

    def _sides(self, target: str, h: float) -> tuple[Flat, Flat]:
        def slope(k: int) -> Flat:
            moved: Flat = flat(self._run(k * h)[target]) - flat(self.at.base[target])
            return moved / (k * h)

        return 2 * slope(-1) - slope(-2), 2 * slope(1) - slope(2)

    def slope(
        self, allowed: float, part: float, start: float | None = None, *, only: bool = False
    ) -> Slope:
        """The slope from the first step that shows it up to a tenth of an error of `allowed`, or of
        this `part` of itself; else from the step that shows it best. Tried are the step `start`,
        and unless that `only`, smaller ones while a kink makes the doubt, larger ones while
        rounding does.
        """
        tried: list[Slope] = []
        todo = [self.step if start is None else start]
        while todo:
            found = self._slope(h := todo.pop(0))
            if not np.isfinite(found.value) and h <= self.step:
                return found
            if found.doubt <= _AGREE * max(allowed, part * abs(found.value)):
                return found
            tried.append(found)
            if not only and len(tried) == 1:
                factors = _LARGER if found.why == TOO_SMALL else SHRINK[1:]
                todo = [f * self.step for f in (1.0, *factors) if f * self.step != h]
        return min(tried, key=lambda found: found.doubt)

    def _slope(self, h: float) -> Slope:
        small, large = self.central(h), self.central(2 * h)
        value, rounding = (4 * small - large) / 3, self.rounding(h)
        doubt = max(abs(small - large), self.kink(h) / 2, rounding)
        return Slope(value, doubt if np.isfinite(value) else float("inf"), rounding, h)

    def has_kink(self, least: float) -> bool:
        """Whether the slopes differ by more than `least` at every step: one nearby goes away with
        small steps, the effect of rounding with large ones.
        """
        steps = [self.step * part for part in SHRINK]
        return all(not self.kink(h) <= least + 4 * self.rounding(h) for h in steps)

    def moving(self, elements: Mask) -> Line:
        """The line along which only these elements move."""
        if elements.all():
            return self
        return Line(self.at, self.delta, np.where(elements, self.direction, 0.0), self.size)

    def alone(self, element: int) -> Line:
        """The line along which only one element moves, by its own size."""
        direction = np.zeros(self.direction.shape)
        direction.flat[element] = 1.0
        return Line(self.at, self.delta, direction, self.size)

    def _run(self, h: float) -> Mapping[str, Any]:
        if h not in self._known:
            delta = shaped(h * self.direction, self.at.feeds[self.delta])
            feeds = {**self.at.feeds, self.delta: delta}
            self._known[h] = self.at.reference.run(
                feeds, outputs=list(self.at.weights), moved=(self.at.mark, self.delta)
            )
        return self._known[h]


# ---- elements on a kink: `Relu(h)` where an earlier Relu made h 0 -------------------------------
#
# Central differences of any step are the mean of the two slopes there. The gradient is one of them,
# or one between them. All are right.

# how many sets of elements are moved to find those on a kink; each takes five to twenty runs of the
# model
_TRIES = 32
# of the elements on a kink, so many of the largest gradients, and as many others, are held against
# the slopes on both sides
_LOOKED_AT = 4


def smooth_elements(values: Flat, has_kink: Callable[[Mask], bool]) -> Mask | None:
    """The elements without a kink; None if `_TRIES` sets of them do not show which those are.

    `has_kink`: whether the two slopes differ when only these elements move. Elements of equal value
    count as one, because a kink mostly lies at a number, 0 or a bound.
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
    gradient is not between the slopes on its two sides; None if all that are looked at are.
    """
    places = np.flatnonzero(kinked)
    by_size = places[np.argsort(-np.abs(g.reshape(-1)[places]), kind="stable")]
    spread = by_size[_LOOKED_AT :: max(1, (len(by_size) - _LOOKED_AT) // _LOOKED_AT)]
    typical = float(np.linalg.norm(g)) / max(1.0, np.sqrt(g.size))
    found = [
        _outside(float(g.flat[place]), at.alone(int(place)), typical, limit)
        for place in dict.fromkeys([*by_size[:_LOOKED_AT], *spread[:_LOOKED_AT]])
    ]
    return max(filter(None, found), key=lambda outside: outside[2], default=None)


def _outside(
    slope: float, at: Line, typical: float, limit: float
) -> tuple[float, float, float] | None:
    """The slope of one element, the nearest of those between the two sides, and the error; None
    if it is one of them at some step.
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
