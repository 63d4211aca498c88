"""The outcome of one optimised model."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from onnxgrad.errors import InternalError, OnnxgradError
from onnxgrad.frozen import frozen
from onnxgrad.ir.program import Program
from onnxgrad.ir.protobufs import Stats, stats_of
from onnxgrad.ir.storage.outline import outline
from onnxgrad.jobs.lint.table import Finding
from onnxgrad.jobs.newer_operators import NewerOperators
from onnxgrad.passes.pipeline import PassResult
from onnxgrad.passes.rule_passes import raise_composites
from onnxgrad.results import Plain, WithPage
from onnxgrad.rewrite.trace import Rewrite, Trace
from onnxgrad.verify import Report

if TYPE_CHECKING:
    from onnxgrad.jobs.rebasing.changes import Followed
    from onnxgrad.jobs.rebasing.record import Record
    from onnxgrad.passes.each_rewrite import EachReport
    from onnxgrad.rewrite.exact_record import ExactReport


@frozen
class Change(Plain):
    """A change of the model in addition to its rewriting: its description, notes, and the result of
    its proof.
    """

    what: str
    notes: tuple[str, ...]
    proof: str

    def __str__(self) -> str:
        return ": ".join(filter(None, (self.what, ", ".join(self.notes), self.proof)))


@dataclass
class Outcome(Plain):
    """The outcome of one model, called `title` in reports, filled in during the work.

    `rewritten` is the program after rewriting, proved or not; `passes`, `trace`, `each` and `exact`
    record the rewriting, `report` the proof (None without one). `explain`: also show near misses.
    """

    json_keys = (
        "model output=written_to exit_code error before after each exact passes=work_of_passes "
        "lints rules=trace.counts inexact=trace.inexact declined=near_misses slips=trace.slips "
        "newer_operators=newer.by_operator tuning search changes notes proof=report "
        "seconds=rounded_seconds"
    )

    model: str = ""
    output: str | None = None
    title: str = "the model"
    explain: bool = False
    before: Stats | None = None
    after: Stats | None = None
    rewritten: Program | None = None
    passes: list[PassResult] = field(default_factory=list)
    trace: Trace = field(default_factory=Trace)
    each: EachReport | None = None
    exact: ExactReport | None = None
    report: Report | None = None
    error: OnnxgradError | None = None
    tuning: Mapping[str, Any] | None = None
    search: Mapping[str, Any] | None = None  # of `float16 --keep auto`
    newer: NewerOperators = field(default_factory=NewerOperators)
    given: Program | None = None  # as it was read, if it was changed before the passes
    halved: Outcome | None = None  # the conversion to float16 after the passes
    changed: Program | None = None  # after the passes and their proof
    prepare: Program | None = None  # the preparation that `lift` split off
    record: Record | None = None  # for `rebase`
    followed: Followed | None = None  # the constants of a model that changes around the passes
    changes: list[Change] = field(default_factory=list)
    lints: list[Finding] = field(default_factory=list)
    written: bool = False
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def notes(self) -> list[str]:
        """The work that the passes left out, with the reasons."""
        return list(self.trace.notes)

    @property
    def exit_code(self) -> int:
        """0, or the exit code of the error."""
        return 0 if self.error is None else self.error.exit_code

    @property
    def program(self) -> Program:
        """The optimised program with all changes. Raises the error if there is one."""
        if self.error is not None:
            raise self.error
        if self.changed is not None:
            return self.changed
        if self.rewritten is None:
            raise InternalError("the program is requested before it was rewritten")
        return self.rewritten

    @property
    def written_to(self) -> str | None:
        """The file of the result, if it was written."""
        return self.output if self.written else None

    @property
    def rules_by_pass(self) -> dict[str, Counter[str]]:
        """How often each rule applied, by pass."""
        found: dict[str, Counter[str]] = {}
        for rewrite in self.trace.rewrites:
            found.setdefault(rewrite.pass_name, Counter())[rewrite.rule] += 1
        return found

    @property
    def work_of_passes(self) -> list[dict[str, Any]]:
        """The passes with their rules, for JSON."""
        rules = self.rules_by_pass
        return [
            {
                "name": p.name,
                "rewrites": p.rewrites,
                "rules": rules.get(p.name, {}),
                "seconds": round(p.seconds, 4),
            }
            for p in self.passes
        ]

    @property
    def near_misses(self) -> list[dict[str, str]]:
        """The rewrites that were declined, for JSON."""
        return [
            dict(zip(("rule", "where", "reason"), key, strict=True)) for key in self.trace.declined
        ]

    @property
    def places_of_misses(self) -> list[tuple[str, str, list[str]]]:
        """Rule, reason and places of the declined rewrites, the most frequent first."""
        found: dict[tuple[str, str], list[str]] = {}
        for rule, where, reason in self.trace.declined:
            found.setdefault((rule, reason), []).append(where)
        return sorted(((*key, at) for key, at in found.items()), key=lambda row: -len(row[2]))

    @property
    def rounded_seconds(self) -> dict[str, float]:
        """Seconds by kind of work, for JSON."""
        return {kind: round(spent, 3) for kind, spent in self.seconds.items()}

    def adopt(self, done: Outcome) -> None:
        """Copies rewriting and proof from `done`, including a refuted proof."""
        self.rewritten, self.passes, self.trace = done.rewritten, done.passes, done.trace
        self.each, self.exact = done.each, done.exact
        self.report, self.search, self.record = done.report, done.search, done.record
        if done.rewritten is not None:
            self.before = stats_of(done.rewritten.proto)
            self.after = stats_of(outline(done.rewritten))
            if any(p.name == raise_composites().name for p in done.passes):
                self.newer = NewerOperators.of(done.rewritten)


@frozen
class OptimizedModel(WithPage):
    """The result of `optimize(report=True)`: the `model`, in the type you passed in, and its
    outcome. `str` returns the text of the command, `to_dict()` the data of its `--json`.
    """

    model: Any
    outcome: Outcome = field(repr=False)

    @property
    def rewrites(self) -> list[Rewrite]:
        """Every rewrite in order: its number, pass, rule, and the statement that it replaced."""
        return self.outcome.trace.rewrites

    @property
    def near_misses(self) -> list[tuple[str, str, str]]:
        """With `explain=True`, the declined rewrites: rule, statement, reason."""
        return list(self.outcome.trace.declined)

    @property
    def proof(self) -> Report | None:
        """The report of `verify`; None if the whole model was not proved."""
        return self.outcome.report

    @property
    def record(self) -> Record | None:
        """With `rebasable=True`, the record with which `rebase` puts other weights into `model`."""
        return self.outcome.record

    @property
    def tuning(self) -> Mapping[str, Any] | None:
        """The decisions of `tune` in JSON's types, which `tune` accepts again; None without it."""
        return self.outcome.tuning

    def to_dict(self) -> dict[str, Any]:
        """Returns the outcome in JSON's types."""
        return self.outcome.to_dict()


# kinds of work that are not passes
_KINDS = ("read", "tune", "prove", "bisect", "write")


@dataclass
class Clock:
    """Seconds by kind of work, from the stages of the driver."""

    kind: str = "read"
    since: float = field(default_factory=time.perf_counter)
    spent: dict[str, float] = field(default_factory=dict)

    def switch(self, stage: str) -> None:
        """Begins a stage. Every stage except reading, tuning, proving and writing is a pass."""
        now = time.perf_counter()
        self.spent[self.kind] = self.spent.get(self.kind, 0.0) + now - self.since
        self.since = now
        self.kind = stage if stage in _KINDS else "rewrite"
