"""What became of one model that was optimised: data, which `onnxgrad.report` renders."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from onnxgrad.errors import InternalError, OnnxgradError
from onnxgrad.ir.program import Program
from onnxgrad.ir.protobufs import Stats, stats_of
from onnxgrad.ir.save import to_proto
from onnxgrad.jobs.newer_operators import NewerOperators
from onnxgrad.passes.each_rewrite import EachReport
from onnxgrad.passes.pipeline import PassResult
from onnxgrad.passes.rule_passes import raise_composites
from onnxgrad.rewrite.trace import Trace
from onnxgrad.verify import Report


@dataclass(frozen=True)
class Optimized:
    """The optimised program, what each pass did, every firing, and the proofs (None when they
    were not asked for).
    """

    program: Program
    passes: list[PassResult]
    trace: Trace
    report: Report | None
    each: EachReport | None = None


@dataclass
class Outcome:
    """What became of one model, which the user knows as `title`; filled in as the work goes on.
    `explain`: near misses are shown too.
    """

    model: str = ""
    output: str | None = None
    title: str = "the model"
    explain: bool = False
    before: Stats | None = None
    after: Stats | None = None
    done: Optimized | None = None
    report: Report | None = None
    error: OnnxgradError | None = None
    tuning: Mapping[str, Any] | None = None
    newer: NewerOperators = field(default_factory=NewerOperators)
    written: bool = False
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        """0, or that of the error."""
        return 0 if self.error is None else self.error.exit_code

    @property
    def program(self) -> Program:
        """The optimised program. Raises the error if there is one."""
        if self.error is not None:
            raise self.error
        if self.done is None:
            raise InternalError("the program is asked for before it was rewritten")
        return self.done.program

    def came_of(self, done: Optimized) -> None:
        """Record the result of rewriting and proof, refuted or not."""
        self.done, self.report = done, done.report
        self.before = stats_of(done.program.proto)
        self.after = stats_of(to_proto(done.program))
        if any(p.name == raise_composites().name for p in done.passes):
            self.newer = NewerOperators.of(done.program)


# of work that is no pass
_KINDS = ("read", "tune", "prove", "bisect", "write")


@dataclass
class Clock:
    """Seconds by kind of work, from the stages that the driver announces."""

    kind: str = "read"
    since: float = field(default_factory=time.perf_counter)
    spent: dict[str, float] = field(default_factory=dict)

    def switch(self, stage: str) -> None:
        """Begin a stage: everything but reading, tuning, proving and writing is a pass."""
        now = time.perf_counter()
        self.spent[self.kind] = self.spent.get(self.kind, 0.0) + now - self.since
        self.since = now
        self.kind = stage if stage in _KINDS else "rewrite"
