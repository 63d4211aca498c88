"""Results of a numeric check of gradients."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace

import numpy as np

from onnxgrad.errors import InputError
from onnxgrad.frozen import frozen
from onnxgrad.results import Plain
from onnxgrad.verify.bounds import Bound, Bounds
from onnxgrad.verify.coverage.summary import NOTHING_RAN, Coverage
from onnxgrad.wording import counted, first_of, option, told_apart

_NAMED = 5
# the reason if rounding hides a value's gradient
TOO_SMALL = "too small to judge"
# the reason if both are 0 at all inputs tried, and no operator explains it
HIDDEN = "0 = 0 at all inputs tried"


@frozen
class ValueCheck(Plain):
    """One requested value: its directional derivative, computed both ways, and their difference
    relative to the scale.

    judged: whether the two could be compared. why: the reason if not, or a remark. unreachable: no
    path leads from the value to the target, so 0 is right. allowed: the user accepts 0 = 0.
    asked: the user named it. tolerance: the largest error allowed, None for the report's.
    """

    json_keys = "name gradient difference error judged why zero unreachable tolerance"

    name: str
    gradient: float
    difference: float
    error: float
    judged: bool
    why: str = ""
    unreachable: bool = False
    allowed: bool = False
    tolerance: float | None = None
    asked: bool = False

    @property
    def zero(self) -> bool:
        """Whether both are 0: right if no path leads to the target, else no evidence."""
        return self.judged and self.gradient == 0.0 == self.difference

    @property
    def remark(self) -> str:
        """The remark in a table beside the value."""
        if self.zero:
            words = f"0 = 0 ({self.why})" if self.why else "0 = 0"
            return "0: no path to the target" if self.unreachable else words
        return "" if self.judged and math.isfinite(self.error) and not self.why else self.why


@frozen
class Looks(Plain):
    """The inputs beside the usual ones at which derivatives were compared with differences.

    inputs: a description of each. ended: whether the time was up before all had been compared.
    coverage: the thresholds, branches and loop turns of the derivative's graph that the usual
    inputs and these reached.
    """

    json_keys = "line inputs ended coverage"

    inputs: tuple[str, ...] = ()
    ended: bool = False
    coverage: Coverage = NOTHING_RAN

    @property
    def line(self) -> str:
        """All counts in one line."""
        ended = ", then the time was up" if self.ended else ""
        line = f"looked at {counted(len(self.inputs), 'further input')}{ended}"
        return f"{line}; {self.coverage.line}" if self.coverage.line else line


@frozen
class GradientReport(Plain):
    """The results of a check. The report is true if it is `ok`: every judged value is within its
    tolerance, and at least one of them is not 0 = 0. If every value is unreachable, 0 is the proof.

    tolerance: the largest of the values' tolerances. untaken: branches of an If that did not run,
    so that their rules are not checked. looks: the further inputs, and what they reached.
    """

    json_keys = "ok verdict unproved tolerance bounds provider worst values notes untaken looks"

    values: tuple[ValueCheck, ...]
    tolerance: float
    provider: str
    notes: tuple[str, ...] = ()
    what: str = "gradient"
    untaken: tuple[str, ...] = ()
    bounds: str = ""  # the user's bounds, which replace the tolerances
    looks: Looks = Looks()

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong and something is proved."""
        return not self._wrong() and not self.unproved

    def __bool__(self) -> bool:
        return self.ok

    def _wrong(self) -> bool:
        return any(self.is_wrong(v) for v in self.values)

    def is_wrong(self, value: ValueCheck) -> bool:
        """Whether the value was judged and its error exceeds its tolerance."""
        return value.judged and not value.error <= self.allowed(value)

    def allowed(self, value: ValueCheck) -> float:
        """The largest error allowed for a value."""
        return self.tolerance if value.tolerance is None else value.tolerance

    @property
    def unproved(self) -> str:
        """The reason if nothing is proved; empty if something is."""
        open_values = [v for v in self.values if not v.unreachable and not v.allowed]
        judged = [v for v in open_values if v.judged]
        hidden = [v for v in open_values if v.asked and v.why == HIDDEN]
        if hidden:
            return (
                f"the gradient and the differences of {_listed(hidden)} are 0 at all inputs tried, "
                f"and no operator explains it: {_remedy(hidden[0].name)}"
            )
        if not open_values or any(not v.zero for v in judged):
            return ""
        if not judged:
            return (
                "no value could be judged "
                f"({'; '.join(f'{v.name!r}: {v.why}' for v in open_values[:_NAMED])})"
            )
        return (
            f"every gradient and every difference is 0 ({_listed(judged)}): "
            f"{_remedy(judged[0].name)}"
        )

    @property
    def verdict(self) -> str:
        """`agrees`, `differs` or `not proved`."""
        return "differs" if self._wrong() else "not proved" if self.unproved else "agrees"

    @property
    def worst(self) -> ValueCheck | None:
        """The judged value whose error is the largest relative to its tolerance."""
        judged = [v for v in self.values if v.judged]
        return max(judged, key=lambda v: v.error / (self.allowed(v) or 1.0), default=None)

    def __str__(self) -> str:
        if self.verdict == "not proved":
            return f"{self.what} not proved: {self.unproved}"
        head = f"{self.what} {'agrees with' if self.ok else 'DIFFERS from'} finite differences"
        worst = self.worst
        if worst is None:
            return f"{head}: no value was left to judge"
        reasons = dict.fromkeys(v.why for v in self.values if not v.judged)
        skipped = {
            why: [v for v in self.values if v.why == why and not v.judged] for why in reasons
        }
        zeros = [v for v in self.values if v.zero and not v.unreachable]
        absent = [v for v in self.values if v.zero and v.unreachable]
        tail = "".join(f", {_skipped(why, values)}" for why, values in skipped.items())
        tail += f", 0 = 0 for {first_of([_explained(v) for v in zeros], _NAMED)}" if zeros else ""
        tail += f", no path to the target from {_listed(absent)}" if absent else ""
        tail += f", {', '.join(self.untaken)}" if self.untaken else ""
        count = sum(v.judged for v in self.values)
        why = f", {worst.why}" if worst.why else ""
        product = "<g, v>" if self.what == "gradient" else "<u, J v>"
        gradient, difference = told_apart(worst.gradient, worst.difference)
        held = self.bounds or f"tolerance {self.allowed(worst):.0e}"
        return (
            f"{head}: {counted(count, 'value')}{tail}, worst "
            f"'{worst.name}': {product} = {gradient}, differences {difference}, error "
            f"{worst.error:.1e}{why} ({held}, {self.provider})"
        )


def _skipped(why: str, values: list[ValueCheck]) -> str:
    """Describes values that were not judged, with the reason."""
    if why == TOO_SMALL:
        return f"{why}: {_listed(values)}"
    return f"{len(values)} not judged ({_listed(values)}: {why})"


def _remedy(name: str) -> str:
    """Returns the options that accept or avoid a zero."""
    return (
        f"pass other values with {option('--input or --seed', 'inputs= or seed=')}, or accept it "
        f"with {option(f'--allow-empty {name}', f'allow_empty=[{name!r}]')}"
    )


def _explained(value: ValueCheck) -> str:
    return f"{value.name} ({value.why})" if value.why else value.name


def _listed(values: list[ValueCheck]) -> str:
    return first_of([v.name for v in values], _NAMED)


_OF_ONE = ("worst", "psnr")  # measures that make sense for a single number


def bounded(report: GradientReport, bounds: Bounds, known: Collection[str]) -> GradientReport:
    """Returns the report with the slope of each judged value compared by the bounds: the derivative
    stands for the second model, the difference for the original.

    known: the values that may have a bound. Raises InputError for a bound on any other value, and
    for a measure that needs more than one number.
    """
    if not bounds:
        return report
    bounds.check(known)
    for bound in filter(None, (bounds.common, *bounds.own.values())):
        for name, _ in bound.metrics:
            if name not in _OF_ONE:
                where = option("--metric", "metric:")
                raise InputError(
                    f"{where} {name} compares many numbers, and a slope is one: use "
                    f"{' or '.join(_OF_ONE)}, or {option('--rtol and --atol', 'rtol and atol')}"
                )
    values = tuple(_held(check, bounds.bound(check.name)) for check in report.values)
    return replace(report, values=values, bounds=str(bounds))


def _held(check: ValueCheck, bound: Bound | None) -> ValueCheck:
    """Returns the check by the measure that is violated most, or comes nearest to being
    violated.
    """
    if bound is None:
        return check
    difference, gradient = (np.array([slope]) for slope in (check.difference, check.gradient))
    scores = bound.scores(difference, gradient)
    worst = max(scores, key=lambda s: (s.off > s.limit, s.off / s.limit if s.limit else s.off))
    return replace(check, error=worst.off, tolerance=worst.limit)
