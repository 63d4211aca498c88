"""What became of one model of `onnxgrad ci`: data that travels between processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from onnxgrad.jobs.ci.lock import Change
from onnxgrad.jobs.outcome import Optimized
from onnxgrad.jobs.requirements import Facts, Held
from onnxgrad.passes.pipeline import PassResult
from onnxgrad.results import Plain
from onnxgrad.rewrite.trace import Trace
from onnxgrad.verify import Report

# the worst first; those up to `unknown` are no, but for `unproved` where the recipe allows it
Status = Literal[
    "error",  # cannot be read or run, or we are wrong
    "different",  # the result computes something else
    "not proved",
    "unproved",  # by request: the recipe does not verify
    "failed",  # misses what is required
    "unknown",  # to the lock
    "skipped",  # a model before it failed
    "changed",  # since the lock, and does what is required
    "passed",
]
STATUSES: tuple[Status, ...] = get_args(Status)


@dataclass
class ModelOutcome(Plain):
    """`name`: its path from the recipe's folder. `digest`: sha256 of the model with its weights.
    `given`, `result`: what is known of it before and after; `output`: where the result was written,
    if it was, `removed`: where an older one was, in place of a result that was refused. `error`: in
    one line why it did not come to the end, or what it misses. `proof` is None where none was made;
    `trace` and `passes` say what rewriting did, once it was done. Filled in as the work goes on.
    """

    json_keys = (
        "name status exit_code error? sha256=digest? output removed given result "
        "requirements changes proof notes seconds:.3f"
    )

    name: str
    status: Status = "passed"
    exit_code: int = 0
    error: str = ""
    digest: str = ""
    output: str | None = None
    removed: str | None = None
    given: Facts | None = None
    result: Facts | None = None
    requirements: tuple[Held, ...] = ()
    changes: tuple[Change, ...] = ()
    proof: Report | None = None
    trace: Trace | None = None
    passes: tuple[PassResult, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """It does what is required of it."""
        return self.exit_code == 0 and self.status != "skipped"

    def came_of(self, done: Optimized) -> None:
        """What rewriting and proof came to, refuted or not."""
        self.proof, self.trace, self.passes = done.report, done.trace, tuple(done.passes)
        left_out = (f"left out: {slip}" for slip in done.trace.slips)
        self.notes = (*done.trace.notes, *left_out)

    def fail(self, status: Status, exit_code: int, error: str) -> None:
        """It does not come to the end, or not to a good one."""
        self.status, self.exit_code, self.error = status, exit_code, error
