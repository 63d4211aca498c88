"""What rewriting did: every firing has a number, every rule its counts, every near miss its
reason.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


class Decline(Exception):
    """A law's answer "not here, because ...": returned by the law, or raised by what it calls."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def decline(reason: str) -> Decline:
    """For a law that matched but must not fire, to return or to raise; `--explain` shows the
    reason.

    >>> onnxgrad.decline("the weight is no matrix").reason
    'the weight is no matrix'
    """
    return Decline(reason)


@dataclass(frozen=True, slots=True)
class Firing:
    """One application of a rule: its number in the run, the pass and rule, the binding it
    rewrote (as text). Of the bindings that it matched and of those that it emitted it holds the
    names of their first results, as far as the rule tells.
    """

    number: int
    pass_name: str
    rule: str
    where: str
    matched: tuple[str, ...] = ()
    emitted: tuple[str, ...] = ()


@dataclass(slots=True)
class RuleCounts:
    """How often a rule was tried at a binding of its operator, matched, and fired; the seconds it
    took; and once it fired its equation, as far as it has one.
    """

    tried: int = 0
    matched: int = 0
    applied: int = 0
    seconds: float = 0.0
    law: str = ""


@dataclass(frozen=True, slots=True)
class Inexact:
    """A rewrite whose result may be off for some feeds: by at most `error` (None: no bound is
    known), and why.
    """

    rule: str
    where: str
    error: float | None
    reason: str


@dataclass
class Trace:
    """The record of one run. `limit` stops after that many firings; `explain` keeps the reasons of
    near misses.

    `rounded`: some firing computed new floating-point constants, which were rounded to their dtype.
    A proof in float64 must then allow for that; otherwise it may ask for equality to the last
    digits. `grown`: bytes that folded constants added so far, for the cap that all passes of the
    run have in common. `inexact`: firings that are right only up to a bound. `notes`: what was left
    undone for want of something, for the user to read. `unseen`: firings that no pass can tell,
    such as the removal of an initializer that nothing reads.
    """

    limit: int | None = None
    explain: bool = False
    check_measures: bool = False
    pass_name: str = ""
    rounded: bool = False
    grown: int = 0
    firings: list[Firing] = field(default_factory=list)
    counts: dict[str, RuleCounts] = field(default_factory=dict)
    inexact: list[Inexact] = field(default_factory=list)
    declined: dict[tuple[str, str, str], None] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)
    unseen: int = 0

    @property
    def seen(self) -> int:
        """How many firings may have opened the way for a pass."""
        return len(self.firings) - self.unseen

    @property
    def stopped(self) -> bool:
        """The limit is reached: nothing may fire any more."""
        return self.limit is not None and len(self.firings) >= self.limit

    def fired(
        self, rule: str, where: str, matched: Iterable[str] = (), emitted: Iterable[str] = ()
    ) -> None:
        """Record a firing, and what it matched and emitted, by the names of first results."""
        number = len(self.firings) + 1
        self.firings.append(
            Firing(number, self.pass_name, rule, where, tuple(matched), tuple(emitted))
        )

    def missed(self, rule: str, where: object, reason: str) -> None:
        """Record a near miss, once; `where` is put into words only where they are asked for."""
        if self.explain:
            self.declined[(rule, str(where), reason)] = None

    def of(self, rule: str) -> RuleCounts:
        """The counts of one rule."""
        found = self.counts.get(rule)
        if found is None:
            found = self.counts[rule] = RuleCounts()
        return found
