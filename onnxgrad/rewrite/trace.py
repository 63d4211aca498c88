"""The record of a run: every rewrite with its number, the counts of every rule, and the reason of
every near miss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.derivations import Derivations, ReadWeights
from onnxgrad.ir.var import Var
from onnxgrad.options import known_keywords
from onnxgrad.results import Plain


class Decline(Exception):
    """A rule's refusal of a match, with the reason. The rule returns it, or code that the rule
    calls raises it.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@known_keywords
def decline(reason: str) -> Decline:
    """Returns the refusal of a rule that matched but must not rewrite. Returns or raises it;
    `--explain` shows the reason.

    >>> onnxgrad.decline("the weight is not a matrix").reason
    'the weight is not a matrix'
    """
    return Decline(reason)


def decline_if(holds: object, reason: str) -> None:
    """Raises Decline with this reason if `holds` is true."""
    if holds:
        raise Decline(reason)


@dataclass(frozen=True, slots=True)
class Rewrite:
    """One application of a rule: its number in the run, the pass and rule, the binding it
    rewrote (as text), and the names of the first results of bindings that it matched and
    emitted, if the rule records them.
    """

    number: int
    pass_name: str
    rule: str
    where: str
    matched: tuple[str, ...] = ()
    emitted: tuple[str, ...] = ()


@dataclass(slots=True)
class RuleCounts(Plain):
    """Counts of one rule: how often it was tried at a binding of its operator, matched and was
    applied, and the seconds that it took. `law` is its equation, if it has one and was applied.
    """

    json_keys = "tried matched applied seconds:.4f"

    tried: int = 0
    matched: int = 0
    applied: int = 0
    seconds: float = 0.0
    law: str = ""


class BranchNames(str):
    """The place of a group of branches, which names them all."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Slip(Plain):
    """A rule of this package that failed at one place, and was declined there."""

    json_keys = "rule pass=pass_name where reason"

    rule: str
    pass_name: str
    where: str
    reason: str

    def __str__(self) -> str:
        return f"{self.rule} failed at {self.where}: {self.reason}"


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
    """The record of one run. `limit` stops after that many rewrites; `explain` keeps the reasons of
    near misses.

    `rounded`: whether some rewrite computed new floating-point constants and rounded them to their
    dtype. A float64 check must then allow for that; otherwise it may require equality to the last
    digits. `rounding`: whether the rules at work do so. `grown`: bytes added so far by folded
    constants, counted against the cap that all passes of the run share. `inexact`: rewrites that
    are right only up to a bound. `notes`: omissions, for the user to read. `unseen`: rewrites that
    cannot enable another pass, such as the removal of an initializer that nothing reads. `slips`:
    places where a rule of this package failed. `made`: bindings that a rule without a measure
    emitted, and the rule. `failed`: rules that failed, and where. Both are cleared once all passes
    ran (`forget`). `stands`: emitted values, and the name of the first value that each replaced.
    `between`: called between two rewrites.
    """

    limit: int | None = None
    explain: bool = False
    check_measures: bool = False
    pass_name: str = ""
    rounded: bool = False
    rounding: bool = False
    grown: int = 0
    rewrites: list[Rewrite] = field(default_factory=list)
    counts: dict[str, RuleCounts] = field(default_factory=dict)
    inexact: list[Inexact] = field(default_factory=list)
    declined: dict[tuple[str, str, str], None] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)
    unseen: int = 0
    slips: list[Slip] = field(default_factory=list)
    made: dict[Binding, object] = field(default_factory=dict, repr=False)
    failed: dict[tuple[str, object], None] = field(default_factory=dict, repr=False)
    stands: dict[Var, str] = field(default_factory=dict, repr=False)
    between: Callable[[], None] | None = field(default=None, repr=False)
    derivations: Derivations | ReadWeights | None = field(default=None, repr=False)

    @property
    def seen(self) -> int:
        """How many rewrites may have enabled a pass."""
        return len(self.rewrites) - self.unseen

    @property
    def stopped(self) -> bool:
        """Whether the limit is reached, so that no rule may rewrite any more.

        Every pass reads this between two rewrites, when the program is complete.
        """
        if self.between is not None:
            self.between()
        return self.limit is not None and len(self.rewrites) >= self.limit

    def fired(
        self,
        rule: str,
        where: str,
        matched: Iterable[str] = (),
        emitted: Iterable[str] = (),
        count: int = 1,
    ) -> None:
        """Records a rewrite of `count` things, and the bindings that it matched and emitted, by the
        names of their first results.
        """
        self.of(rule).applied += count
        number = len(self.rewrites) + 1
        if self.derivations is not None:
            self.derivations.commit(self.pass_name, rule, where)
        self.rewrites.append(
            Rewrite(number, self.pass_name, rule, where, tuple(matched), tuple(emitted))
        )

    def replaced(self, mapping: Mapping[Var, Var], emitted: Iterable[Binding]) -> None:
        """Records which values replace which, if a rule emitted them."""
        new = set(emitted)
        for old, value in mapping.items():
            name = self.stands.pop(old, old.name)
            if value.definition in new:
                self.stands.setdefault(value, name)

    def missed(self, rule: str, where: object, reason: str) -> None:
        """Records a near miss, once; `where` becomes text only if near misses are kept."""
        if self.explain:
            place = where if isinstance(where, BranchNames) else str(where)
            self.declined[rule, place, reason] = None

    def slipped(self, rule: str, where: object, reason: str) -> bool:
        """Records that a rule of this package failed. Returns whether the failure is new."""
        if (rule, where) in self.failed:
            return False
        self.failed[rule, where] = None
        self.slips.append(Slip(rule, self.pass_name, str(where), reason))
        return True

    def forget(self) -> None:
        """Releases bindings and rules, which the record does not need once all passes ran."""
        self.made.clear()
        self.failed.clear()

    def of(self, rule: str) -> RuleCounts:
        """The counts of one rule."""
        if rule not in self.counts:
            self.counts[rule] = RuleCounts()
        return self.counts[rule]
