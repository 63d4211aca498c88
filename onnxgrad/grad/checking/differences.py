"""One value's gradient against central differences along a line; where it is off, beside the
kinks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from onnxgrad.grad.checking.kinks import between_slopes, smooth_elements
from onnxgrad.grad.checking.line import SHRINK, STEP, Line
from onnxgrad.grad.checking.report import ValueCheck
from onnxgrad.grad.checking.vectors import Flat, Mask

# a gradient this much smaller than the model's largest is judged on the scale of that one: it may
# be a true zero
_FLOOR = 1e-3
_AGREE = 0.1


@dataclass(frozen=True)
class Yardstick:
    """What errors are measured by: the norm of the model's `largest` gradient, and the `limit`
    of a relative error.
    """

    largest: float
    limit: float

    def size(self, g: Flat) -> float:
        """The scale on which a gradient is judged."""
        return max(float(np.linalg.norm(g)), _FLOOR * self.largest, 1e-300)

    def is_off(self, check: ValueCheck) -> bool:
        """The value was judged, and is wrong by this measure."""
        return check.judged and check.error > self.limit


def compare_slopes(
    name: str, g: Flat, values: Flat, at: Line, by: Yardstick
) -> tuple[ValueCheck, Flat]:
    """The gradient `g` of `values` against differences along the line, beside kinks where it is
    off; the direction.
    """
    check = _along(name, g, at, by)
    if by.is_off(check) and np.isfinite(g).all():
        return _beside_kinks(check, g, values, at, by)
    return check, at.direction


def _along(name: str, g: Flat, at: Line, by: Yardstick) -> ValueCheck:
    """<g, v> against the central differences in the direction v, from steps small enough that
    two of them agree.
    """
    got = float(np.sum(g * at.direction))
    if not np.isfinite(g).all():
        difference = at.central(STEP * max(1.0, at.size))
        both = not np.isfinite(difference)
        what = "all NaN" if np.isnan(g).all() else "NaN" if np.isnan(g).any() else "infinite"
        why = f"the gradient is {what}" + (
            " and the differences are not finite: nothing to compare" if both else ""
        )
        return ValueCheck(name, got, difference, float("inf"), not both, why)
    return slope(name, got, by.size(g), at, by.limit)


def slope(name: str, got: float, against: float, at: Line, limit: float) -> ValueCheck:
    """The slope `got` against central differences along the line, from steps small enough that two
    of them agree to a part of the `limit`; on the scale `against`.
    """
    h = STEP * max(1.0, at.size)
    for part in SHRINK:
        small, large = at.central(h * part), at.central(2 * h * part)
        difference = (4 * small - large) / 3
        if not np.isfinite(difference):
            return ValueCheck(
                name,
                got,
                difference,
                0.0,
                False,
                "the differences are not finite: nothing to compare",
            )
        if abs(small - large) <= _AGREE * limit * max(against, abs(difference)):
            break
    else:
        return ValueCheck(name, got, difference, 0.0, False, f"a kink within {h * SHRINK[-1]:.0e}")
    if got == 0.0 and difference == 0.0:
        return ValueCheck(name, got, difference, 0.0, True)
    error = abs(got - difference) / max(against, _FLOOR * abs(difference))
    return ValueCheck(name, got, difference, error if np.isfinite(error) else float("inf"), True)


def _beside_kinks(
    check: ValueCheck, g: Flat, values: Flat, at: Line, by: Yardstick
) -> tuple[ValueCheck, Flat]:
    """A check that is off, made again where only elements move that are on no kink; and the
    direction of the move.

    As it was when none is on a kink; not judged when all are.
    """
    least = _AGREE * by.limit * max(by.size(g), abs(check.difference))

    def has_kink(elements: Mask) -> bool:
        return at.moving(elements).has_kink(least)

    if not has_kink(np.ones(g.shape, bool)):
        return check, at.direction
    smooth = smooth_elements(values, has_kink)
    if smooth is None:
        return replace(
            check, error=0.0, judged=False, why="elements are on kinks, at too many values"
        ), at.direction
    kept = g.size - int(smooth.sum())
    why = f"a kink at the value of {kept} of {g.size} elements"
    if not between_slopes(g, at, ~smooth):
        return replace(
            check, why=f"{why}, and the gradient there is no slope beside it"
        ), at.direction
    beside = at.moving(smooth)
    again = _along(check.name, np.where(smooth, g, 0.0), beside, by)
    if kept == g.size or (by.is_off(again) and has_kink(smooth)):
        return replace(again, error=0.0, judged=False, why=why), beside.direction
    return replace(again, why=f"{why}, not moved" if again.judged else again.why), beside.direction
