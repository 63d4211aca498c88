"""The exact proof of the rewrites of a run: each window is cut out when its rewrite has happened,
and decided at once, so that no window is kept.

A rewrite may rely on facts about its operands (a value is never negative, two sizes are equal). So
if the two forms of a window differ, it grows by the bindings that compute its boundary, until they
agree, or the window is whole or too large. Only a window that reaches the graph's inputs refutes a
rewrite.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from onnxgrad.errors import NotProved
from onnxgrad.ir.program import Program
from onnxgrad.limits import current
from onnxgrad.results import Plain
from onnxgrad.rewrite.journal import Difference, Recorder
from onnxgrad.rewrite.trace import Rewrite, Trace
from onnxgrad.rewrite.windows import Cut, NoWindow
from onnxgrad.verify.exact.client import decide_window
from onnxgrad.verify.exact.window import Decision, Verdict, Window
from onnxgrad.wording import counted

# how many levels a window grows each time that its forms differ
_STEPS = (1, 1, 2, 4, 1 << 20)
# rewrites that need no algebra, by the group in which they are counted
PLAIN = {
    "fold_constant": "constant folding",
    "equal_initializers": "merging equal values",
    "equal_bindings": "merging equal values",
    "unused_binding": "unused parts",
    "unused_initializer": "unused parts",
    "unused_function": "unused parts",
    "unused_parameter": "unused parts",
    "identity": "identities",
}
# seconds for all windows of a model, and for one of them
_ALL, _ONE = 200.0, 10.0
_SHARE = 0.5  # of the time that is left for all work
_LATE = "the time for exact proofs is up"
_AROUND = "it relies on its surroundings"
# reasons that name a place, and the kinds by which they are counted
_KINDS = (
    (re.compile(r"no witness for constant .*"), "a constant without witness"),
    (re.compile(r".* differs, and (the laws? .*)"), r"\1"),
)


@dataclass(frozen=True, slots=True)
class Decided(Plain):
    """The verdict on one rewrite: exact, rounded (exact up to the rounding of new `weights`),
    sampled (only the runs prove it, for this `reason`) or refuted.

    `partial`: divisors, roots, logarithms and exponentials that only the new form computes.
    """

    json_keys = "number pass=pass_name rule verdict weights reason partial"

    number: int
    pass_name: str
    rule: str
    verdict: Verdict
    weights: tuple[str, ...] = ()
    reason: str = ""
    partial: tuple[str, ...] = ()

    @property
    def needs_algebra(self) -> bool:
        """Whether it is none of constant folding, merging equal values, unused parts and
        identities.
        """
        return self.rule not in PLAIN

    @property
    def kind(self) -> str:
        """The reason without names of values, by which rewrites are counted."""
        for pattern, kind in _KINDS:
            if pattern.fullmatch(self.reason):
                return pattern.sub(kind, self.reason)
        return self.reason

    def __str__(self) -> str:
        text = self.verdict if not self.reason else f"{self.verdict}: {self.reason}"
        if self.verdict == "rounded":
            text = f"exact up to rounding of {counted(len(self.weights), 'weight')}"
        return text + (f"; new: {', '.join(self.partial)}" if self.partial else "")


@dataclass
class ExactReport(Plain):
    """The verdicts on all rewrites in order. `chained`: whether the recorded changes are all that
    happened to the program. `seconds`: the time that recording and deciding took.
    """

    json_keys = "share:.4f rewrites=of exact rounded sampled plain partial chained seconds:.3f each"

    each: list[Decided] = field(default_factory=list)
    chained: bool = True
    seconds: float = 0.0

    @property
    def algebra(self) -> list[Decided]:
        """The rewrites that need algebra."""
        return [d for d in self.each if d.needs_algebra]

    @property
    def of(self) -> int:
        """How many rewrites need algebra."""
        return len(self.algebra)

    @property
    def exact(self) -> int:
        """How many of these are exact."""
        return sum(d.verdict == "exact" for d in self.algebra)

    @property
    def rounded(self) -> int:
        """How many of these are exact up to the rounding of weights."""
        return sum(d.verdict == "rounded" for d in self.algebra)

    @property
    def share(self) -> float:
        """The share that is exact, rounding of weights allowed; 1 if there are none, and 0 if a
        change was not recorded.
        """
        if not self.chained:
            return 0.0
        return (self.exact + self.rounded) / self.of if self.of else 1.0

    @property
    def ratio(self) -> str:
        """How many are exact, rounding of weights allowed, as "N of M"."""
        return f"{self.exact + self.rounded} of {self.of}"

    @property
    def sampled(self) -> Counter[str]:
        """How many of these are sampled, by reason."""
        return Counter(d.kind for d in self.algebra if d.verdict == "sampled")

    @property
    def plain(self) -> dict[str, dict[str, int]]:
        """The verdicts on the other rewrites, by group."""
        found: dict[str, Counter[str]] = {}
        for d in self.each:
            if d.rule in PLAIN:
                found.setdefault(PLAIN[d.rule], Counter())[d.verdict] += 1
        return {group: dict(counts) for group, counts in found.items()}

    @property
    def partial(self) -> list[str]:
        """Divisors, roots, logarithms and exponentials that only new forms compute, by kind."""
        return list(dict.fromkeys(p for d in self.each for p in d.partial))

    def __str__(self) -> str:
        weights = sum(len(d.weights) for d in self.algebra)
        rounded = (
            f", {self.rounded} of them up to rounding of {counted(weights, 'weight')}"
            if self.rounded
            else ""
        )
        reasons = ", ".join(f"{count} {why}" for why, count in self.sampled.most_common(3))
        sampled = sum(self.sampled.values())
        rest = f", {sampled} sampled ({reasons})" if sampled else ""
        new = f"; new forms compute {', '.join(self.partial)}" if self.partial else ""
        broken = "" if self.chained else "; a change was not recorded, so none of them counts"
        proved = f"{self.ratio} rewrite{'s' if self.of != 1 else ''} exact"
        return f"{proved}{rounded}{rest}{new}{broken}"


class RewriteNotExact(NotProved):
    """Exact evaluation refutes a rewrite. `rewrite`: the first one of the refuted window; `report`:
    the verdicts up to it.
    """

    def __init__(self, rewrite: Rewrite, reason: str, report: ExactReport) -> None:
        self.rewrite, self.report = rewrite, report
        super().__init__(
            f"exact evaluation refutes rewrite {rewrite.number}, {rewrite.rule} (pass "
            f"{rewrite.pass_name}) at: {rewrite.where}: {reason}; nothing was written"
        )


class ExactProver:
    """Decides every rewrite of a program from now on; `trace` must be that of its passes. Raises
    RewriteNotExact between two rewrites. `decide` receives a window and the seconds for it.
    `seconds`: for all windows.
    """

    def __init__(
        self,
        program: Program,
        trace: Trace,
        *,
        decide: Callable[[Window, float], Decision] = decide_window,
        seconds: float | None = None,
    ) -> None:
        self.report = ExactReport()
        self._program, self._trace, self._decide = program, trace, decide
        self._seconds = min(_ALL, _SHARE * current().left()) if seconds is None else seconds
        started = time.monotonic()
        self._recorder = Recorder(program)
        self._settled = len(trace.rewrites)
        trace.between = self.between
        self.report.seconds += time.monotonic() - started

    def between(self) -> None:
        """Decides the rewrites since the last call."""
        if len(self._trace.rewrites) > self._settled:
            self._settle()

    def finish(self) -> ExactReport:
        """Decides the last rewrites, and ends the recording. Returns the report."""
        self._settle()
        self._trace.between = None
        self._recorder.stop()
        self.report.chained &= self._recorder.chains
        return self.report

    def _settle(self) -> None:
        started = time.monotonic()
        fired = self._trace.rewrites[self._settled :]
        self._settled = len(self._trace.rewrites)
        difference = self._recorder.settle()
        found = self._verdict(difference)
        if not fired and not difference.is_empty and not found:
            self.report.chained = False  # a change of no rewrite
        self.report.each += [
            Decided(f.number, f.pass_name, f.rule, found.verdict, found.rounded, found.stopped_by,
                    found.partial)
            for f in fired
        ]  # fmt: skip
        self.report.seconds += time.monotonic() - started
        if found.verdict == "refuted" and fired:
            raise RewriteNotExact(fired[0], found.stopped_by, self.report)

    def _verdict(self, difference: Difference) -> Decision:
        """Returns the decision about one difference."""
        if difference.is_empty:
            return Decision("exact")
        try:
            return self._first_good(_grown(self._program, difference))
        except NoWindow as why:
            return Decision("sampled", stopped_by=str(why))

    def _first_good(self, windows: Iterator[tuple[Window, bool]]) -> Decision:
        """Decides windows in turn until one is exact. Else the last one decides: it refutes if it
        is whole.
        """
        last = Decision("exact")  # nothing is read
        left = self._seconds - self.report.seconds
        for window, whole in windows:
            began = time.monotonic()
            if left <= 0:
                return Decision("sampled", stopped_by=_LATE)
            found = self._decide(window, min(_ONE, left))
            left -= time.monotonic() - began
            if found or found.verdict == "sampled":
                return found  # context does not help against an operator without laws
            last = found if whole else Decision("sampled", stopped_by=_AROUND)
        return last


def _grown(program: Program, difference: Difference) -> Iterator[tuple[Window, bool]]:
    """Yields the windows of a difference, each with more context than the last, and whether
    nothing outside could make its forms equal.
    """
    for at_readers in (False, True):
        try:
            cut = Cut(program, difference, at_readers=at_readers)
        except NoWindow:
            if at_readers:
                return
            raise
        if not cut.claims:
            return
        yield cut.window(), cut.is_whole
        for levels in _STEPS:
            if not cut.widen(levels):
                break
            yield cut.window(), cut.is_whole
