"""The weighted sum of the targets along a line through the feeds: its slope, the uncertainty of the
slope, and its kinks.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import Any

import numpy as np

from onnxgrad.errors import Unsupported
from onnxgrad.frozen import frozen
from onnxgrad.grad.checking.report import TOO_SMALL
from onnxgrad.grad.checking.vectors import Flat, Mask, Vector, flat, shaped
from onnxgrad.verify.reference.client import Float64

STEP = 1e-5
# steps to try, as multiples of the first, until one shows the slope: smaller ones avoid nearby
# kinks, larger ones overcome the rounding of a function that hardly changes
SHRINK, _LARGER = (1.0, 1 / 16, 1 / 256, 1 / 4096), (64.0, 1024.0)
# the step of a one-sided difference, whose error is of the order of the step: enough to see that
# two numbers agree
QUICK = STEP / 64
# a slope counts as shown if its uncertainty is at most this part of the allowed error
_AGREE = 0.1
# the rounding of a float64
UNIT = 2.0**-53
_JITTERED = (0, 1)
# rounding that moves a sum by more than this part is a jump of the function, unless coarser
# rounding moves it further: then almost all of the sum is cancellation
_JUMP = 1e-6
_COARSER, _FURTHER = 64, 8
_MARKS = itertools.count()


@frozen
class Slope:
    """A slope by differences. `doubt` bounds its error, by kinks and rounding; `rounding` bounds
    the part of rounding alone.
    """

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


@frozen
class Place:
    """The point at which differences are taken.

    feeds: the feeds of the probe with nothing moved. weights: the weights of its targets. base: the
    values of the targets there. noise: how far rounding in float64 moves their weighted sum. until:
    the time.monotonic after which a value is judged by what is known of it.
    """

    reference: Float64
    feeds: Mapping[str, Any]
    weights: Mapping[str, Flat]
    base: Mapping[str, Any]
    noise: float
    # marks runs in which a single value moves: the reference computes everything else only once
    mark: tuple[int, int] = field(default_factory=lambda: (os.getpid(), next(_MARKS)))
    until: float = float("inf")

    @property
    def late(self) -> bool:
        """Whether the time for a value is up."""
        return time.monotonic() > self.until


def spot(
    reference: Float64,
    feeds: Mapping[str, Any],
    weights: Mapping[str, Flat],
    base: Mapping[str, Any],
) -> Place:
    """Returns the place, with the least noise that it can have."""
    least = sum(float(np.sum(np.abs(np.float64(w) * flat(base[t])))) for t, w in weights.items())
    return Place(reference, feeds, weights, base, 4 * UNIT * least)


def place(
    reference: Float64,
    feeds: Mapping[str, Any],
    weights: Mapping[str, Flat],
    base: Mapping[str, Any],
) -> Place:
    """Returns the place, its noise measured by random rounding of every step."""
    at = spot(reference, feeds, weights, base)
    least = at.noise / (4 * UNIT)
    reference.run(feeds, outputs=list(weights), moved=(at.mark, ""))

    def moved(jitter: float) -> float:
        options: Any = {"outputs": list(weights), "jitter": jitter, "everywhere": True}
        runs = (reference.run(feeds, seed=i, **options) for i in _JITTERED)
        return max(abs(_rise(at, run, base)) for run in runs)

    def jumps(noise: float, jitter: float) -> bool:
        return noise > _JUMP * least and moved(_COARSER * jitter) < _FURTHER * noise

    try:
        noise = moved(UNIT)
        if jumps(noise, UNIT):
            return at
        if noise <= _JUMP * least:  # less than half of the last digit rounds back
            further = moved(2 * UNIT)
            if not jumps(further, 2 * UNIT):
                noise = max(noise, min(further, _JUMP * least))
    except (Unsupported, ValueError):
        return at
    return replace(at, noise=max(at.noise, noise))


def _rise(at: Place, to: Mapping[str, Any], start: Mapping[str, Any]) -> float:
    """Returns the rise of the weighted sum from `start` to `to`."""
    with np.errstate(invalid="ignore"):  # infinity less infinity
        pairs = ((w, flat(to[t]) - flat(start[t])) for t, w in at.weights.items())
        return sum(float(np.sum(np.float64(w) * moved)) for w, moved in pairs)


class Line:
    """The weighted sum of the targets along a line through a place.

    delta: the input that moves the value. direction: an array, or a function that computes it.
    size: the magnitude of the value's largest element.
    """

    def __init__(
        self, at: Place, delta: str, direction: Vector | Callable[[], Vector], size: float
    ) -> None:
        self.at, self.delta, self.size = at, delta, size
        self._direction = direction
        self._computed: Vector | None = None
        self._known: dict[float, Mapping[str, Any]] = {0.0: at.base}

    @property
    def direction(self) -> Vector:
        """The direction, kept until `release`."""
        if not callable(self._direction):
            return self._direction
        if self._computed is None:
            self._computed = self._direction()
        return self._computed

    def release(self) -> None:
        """Frees the memory of a direction that can be computed again."""
        self._computed = None

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
        """Returns how far rounding may move differences over h."""
        return 2 * self.at.noise / h

    def kink(self, h: float) -> float:
        """Returns the difference of the slopes on both sides, each extrapolated from two steps."""
        left, right = self.sides(h)
        return abs(right - left)

    def sides(self, h: float) -> tuple[float, float]:
        """The slopes to the left and to the right, each extrapolated from two steps."""

        return (
            2 * self.forward(-h) - self.forward(-2 * h),
            2 * self.forward(h) - self.forward(2 * h),
        )

    def bounds(self, h: float) -> tuple[float, float]:
        """Returns the least and the largest slope if each element of the targets takes either of
        its two slopes: rules may choose differently at each tie, and weights have both signs.
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
        """Returns the slope from the first step that shows it to a tenth of the error `allowed`, or
        of this `part` of itself; else from the step that shows it best.

        The step `start` comes first. Unless `only` is set, smaller steps follow if a kink causes
        the doubt, larger ones if rounding does.
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
            if self.at.late:
                break
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
        """Whether the slopes differ by more than `least` at every step. Small steps rule out a kink
        nearby, large ones rule out rounding.
        """
        steps = [self.step * part for part in SHRINK]
        return all(not self.kink(h) <= least + 4 * self.rounding(h) for h in steps)

    def moving(self, elements: Mask) -> Line:
        """Returns the line along which only these elements move."""
        if elements.all():
            return self
        return Line(self.at, self.delta, np.where(elements, flat(self.direction), 0.0), self.size)

    def alone(self, element: int) -> Line:
        """Returns the line along which only one element moves."""
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


class JointLine(Line):
    """The line along which several values move at once: `moves` has the direction of each delta."""

    def __init__(self, at: Place, moves: Mapping[str, Vector]) -> None:
        super().__init__(at, "", np.zeros(()), 0.0)
        self.moves = moves

    def _run(self, h: float) -> Mapping[str, Any]:
        if h not in self._known:
            deltas = {d: shaped(h * v, self.at.feeds[d]) for d, v in self.moves.items()}
            self._known[h] = self.at.reference.run(
                {**self.at.feeds, **deltas}, outputs=list(self.at.weights)
            )
        return self._known[h]


# ---- elements on a kink: `Relu(h)` where an earlier Relu made h 0 -------------------------------
#
# There, central differences of any step are the mean of the two slopes. The gradient may be either
# slope, or any value between them.

# how many sets of elements are moved to find the elements on a kink; each set takes five to twenty
# runs of the model
_TRIES = 32
# of the elements on a kink, this many with the largest gradients, and as many others, are compared
# with the slopes on both sides
_LOOKED_AT = 4


def smooth_elements(
    values: Flat, has_kink: Callable[[Mask], bool], late: Callable[[], bool] = lambda: False
) -> Mask | None:
    """Returns the elements without a kink; None if `_TRIES` sets do not show which those are, or if
    it is `late`.

    has_kink: returns whether the two slopes differ if only these elements move. Elements of equal
    value count as one, because most kinks lie at a number: 0 or a bound.
    """
    distinct, group = np.unique(values, return_inverse=True)
    group = group.reshape(values.shape)
    smooth = np.zeros(values.shape, bool)
    ranges = [(0, len(distinct))]
    for tries, (start, end) in enumerate(ranges):  # halves are added while it is walked
        if tries == _TRIES or late():
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
    """Returns the gradient, the nearest slope and the relative error of the worst element on a kink
    whose gradient is not between the slopes of its two sides; None if there is no such element
    among those examined.
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
    """Returns the slope of one element, the nearest slope between those of its two sides, and the
    relative error; None if at some step the slope lies between them.
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
