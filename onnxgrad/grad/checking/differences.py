"""Compares one value's gradient with central differences along several lines. If kinks are in the
way, only the other elements move.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from onnxgrad.frozen import frozen
from onnxgrad.grad.checking.line import QUICK, STEP, Line, Slope, no_slope_beside, smooth_elements
from onnxgrad.grad.checking.report import TOO_SMALL, ValueCheck
from onnxgrad.grad.checking.vectors import Flat, Mask, Vector, flat, is_finite, norm, total
from onnxgrad.ir.storage.lazy_arrays import LazyArray, drawn
from onnxgrad.wording import counted

DIRECTIONS = 4
# elements from which on the directions of a value are not kept
_LARGE = 1 << 18
# an error counts if it exceeds the tolerance by this many times the doubt
_SURE = 2
# the scale of a value that does not influence the targets
NO_SIZE = 1e-300


@frozen
class Trial:
    """<g, v> along a line, and the slope by differences. `size` is the scale of the comparison."""

    line: Line
    got: float
    slope: Slope
    size: float
    limit: float

    @property
    def off(self) -> bool:
        """Whether the two differ, and neither rounding nor a kink explains it."""
        doubt = self.slope.doubt / self.size
        return (doubt <= self.limit or self._rounded) and self.error > self.limit + _SURE * doubt

    @property
    def shown(self) -> bool:
        """Whether the slope is known well enough to decide that the two agree, or they agree and a
        kink causes the doubt.
        """
        if self.got == 0.0 == self.slope.value and self.size <= NO_SIZE:
            return True  # 0 = 0, unless another direction shows more
        rounding = self.slope.rounding <= self.limit * self.size
        return rounding and (self.slope.doubt <= self.limit * self.size or self.error <= self.limit)

    @property
    def kinked(self) -> bool:
        """Whether a kink prevents the comparison."""
        finite = bool(np.isfinite(self.slope.value))
        return finite and not self.shown and not self.off and not self._rounded

    @property
    def lost(self) -> bool:
        """Whether no step shows the slope, because of a kink or of rounding."""
        return not self.shown and (self._rounded or not self.off)

    @property
    def _rounded(self) -> bool:
        """Whether rounding causes the doubt."""
        return self.slope.why == TOO_SMALL

    @property
    def error(self) -> float:
        """The difference of the two on the value's scale."""
        found = abs(self.got - self.slope.value) / self.size
        return found if np.isfinite(found) else float("inf")


def directions(rng: np.random.Generator, g: Vector) -> list[Vector | Callable[[], Vector]]:
    """Returns the direction of the gradient, along which a wrong factor shows at once, and random
    directions; a single one for a single element. Directions of a large value are functions that
    compute them, to be called in this order first: together they would take ten times its memory.
    """
    size = norm(g)
    has_size = size > 0 and np.isfinite(size)
    if g.size > _LARGE:
        later = [_Drawn(rng, g) for _ in range(DIRECTIONS)]
        return [lambda: g / size, *later] if has_size else [*later]
    random = [np.asarray(rng.standard_normal(g.shape)) for _ in range(DIRECTIONS)]
    along = [g / size] if has_size else []
    return [*(along or random[:1])] if g.size == 1 else [*along, *random]


class _Drawn:
    """A random direction: the same one at every call, drawn from `rng` at the first. It is lazy if
    the gradient is.
    """

    def __init__(self, rng: np.random.Generator, g: Vector) -> None:
        self._rng, self._shape = rng, g.shape
        self._like = g if isinstance(g, LazyArray) else None
        self._state: Any = None
        self._lazy: LazyArray | None = None

    def __call__(self) -> Vector:
        rng = self._rng
        if self._like is not None:
            self._lazy = self._lazy or drawn(rng, "standard_normal", like=self._like)
            return self._lazy
        if self._state is None:
            self._state = rng.bit_generator.state
        else:
            rng = np.random.default_rng()
            rng.bit_generator.state = self._state
        return np.asarray(rng.standard_normal(self._shape))


def compare(
    name: str, g: Vector, values: Any, lines: Sequence[Line], limit: float
) -> tuple[ValueCheck, list[Trial]]:
    """Compares the gradient `g` of `values` with differences along the lines, on the scale of the
    value's own gradient. Elements on a kink are not moved.
    """
    if not is_finite(g):
        return _not_finite(name, flat(g), lines[0], limit), []
    trials = _tried(g, lines, limit)
    if len(trials) < len(lines):  # no time for kinks either
        check = verdict(name, trials, limit)
        words = f"in {counted(len(trials), 'direction')} for lack of time"
        return replace(check, why=words if check.judged else check.why), trials
    kinked = next((t for t in trials if t.kinked), None)
    if kinked is None or any(t.off for t in trials):
        return verdict(name, trials, limit), trials
    return _beside_kinks(name, flat(g), values, kinked, trials)


def verdict(name: str, trials: Sequence[Trial], limit: float) -> ValueCheck:
    """Returns the check by the worst trial that is off, else by the worst that shows agreement. If
    no trial shows either, because the doubt is too large, the value is not judged.
    """
    judged = [t for t in trials if t.off] or [t for t in trials if t.shown and t.error <= limit]
    worst = max(judged or trials[:1], key=lambda t: t.error)
    why, error = ("", worst.error) if judged else (worst.slope.why or TOO_SMALL, 0.0)
    got, slope = worst.got, worst.slope.value
    return ValueCheck(name, got, slope, error, bool(judged), why, tolerance=limit)


def on_one_scale(trials: Sequence[Trial]) -> list[Trial]:
    """Returns the trials of a value on one scale: that of its slopes if these are larger."""
    known = [t.slope.value for t in trials if t.slope.doubt <= abs(t.slope.value) / 4]
    scale = float(np.sqrt(np.mean(np.square(known)))) if known else 0.0
    return [replace(t, size=max(t.size, scale)) for t in trials]


def _tried(g: Vector, lines: Sequence[Line], limit: float) -> list[Trial]:
    """Returns the trials on the scale of the gradient or of the differences, whichever is
    larger.
    """
    found: list[Trial] = []
    for line in lines:
        found.append(_trial(g, line, limit, found[0] if found else None))
        line.release()
        if line.at.late:
            break
    return on_one_scale(found)


def _trial(g: Vector, line: Line, limit: float, first: Trial | None) -> Trial:
    """Returns <g, v> and the slope: from one difference if that agrees or is only rounding, else
    from as many as needed.

    The first line of a value takes differences to both sides, the others to one side. They also
    take both sides if the first line needed a larger step, or if no step showed its slope.
    """
    got = total(g * line.direction)
    size = max(norm(g), NO_SIZE)
    lost = first is not None and first.lost
    h, both_sides = line.step * QUICK / STEP, False
    if first is None:
        h, both_sides = line.step, True
    elif lost or first.slope.step > line.step or line.rounding(h) > limit * size / 2:
        h, both_sides = first.slope.step, True
    quick = line.central(h) if both_sides else line.forward(h)
    rounding = line.rounding(h)
    trial = Trial(line, got, Slope(quick, rounding, rounding, h), size, limit)
    if got == 0.0 == quick or (lost and abs(quick) <= rounding):
        return trial
    if trial.error <= limit / 2 and rounding <= limit * size / 2:
        return trial
    start = first.slope.step if first else line.step
    return replace(trial, slope=line.slope(limit * size, limit, start, only=lost))


def _not_finite(name: str, g: Flat, line: Line, limit: float) -> ValueCheck:
    difference = line.central(line.step)
    both = not np.isfinite(difference)
    what = "all NaN" if np.isnan(g).all() else "NaN" if np.isnan(g).any() else "infinite"
    why = f"the gradient is {what}"
    why += " and the differences are not finite" if both else ""
    got = total(g * line.direction)
    return ValueCheck(name, got, difference, float("inf"), not both, why, tolerance=limit)


def _beside_kinks(
    name: str, g: Flat, values: Any, kinked: Trial, trials: Sequence[Trial]
) -> tuple[ValueCheck, list[Trial]]:
    """Returns the check in which only the elements that are not on a kink move, and its trials. The
    gradient of an element on a kink must lie between its two slopes.

    The value is not judged if all elements are on kinks, or if it is unknown which are.
    """
    limit, at = kinked.limit, kinked.line
    least = limit / 10 * max(kinked.size, abs(kinked.slope.value))

    def has_kink(elements: Mask) -> bool:
        return at.moving(elements).has_kink(least)

    before = verdict(name, trials, limit)
    if not has_kink(np.ones(g.shape, bool)):
        return before, list(trials)
    smooth = smooth_elements(flat(values), has_kink, lambda: at.at.late)
    if smooth is None:
        why = "elements are on kinks, at too many values"
        return replace(before, error=0.0, judged=False, why=why), list(trials)
    kept = g.size - int(smooth.sum())
    why = f"a kink at the value of {kept} of {counted(g.size, 'element')}"
    strange = no_slope_beside(g, at, ~smooth, limit)
    if strange is not None:
        why = f"{why}, and the gradient there differs from the slopes on both sides"
        got, slope, error = strange
        return ValueCheck(name, got, slope, error, True, why, tolerance=limit), []
    again = _tried(np.where(smooth, g, 0.0), [t.line.moving(smooth) for t in trials], limit)
    check = verdict(name, again, limit)
    if kept == g.size or (any(t.kinked for t in again) and not check.judged):
        return replace(check, error=0.0, judged=False, why=why), again
    return replace(check, why=f"{why}, not moved" if check.judged else check.why), again
