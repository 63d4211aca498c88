"""The outcome of one model of `onnxgrad ci`: data that travels between processes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

from onnxgrad.jobs.ci.lock import Change
from onnxgrad.jobs.outcome import Outcome
from onnxgrad.jobs.requirements import Facts, Held
from onnxgrad.results import Plain
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
    one line why it did not come to the end, or what it misses. `done`: the outcome of rewriting and
    its proof, without the program. Filled in as the work goes on.
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
    done: Outcome | None = None
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """It does what is required of it."""
        return self.exit_code == 0 and self.status != "skipped"

    @property
    def proof(self) -> Report | None:
        """The report of the proof, if there was one."""
        return None if self.done is None else self.done.report

    def came_of(self, done: Outcome) -> None:
        """Record the result of rewriting and proof, refuted or not, without its program."""
        self.done = replace(
            done, rewritten=None, given=None, changed=None, prepare=None, error=None
        )
        left_out = (f"left out: {slip}" for slip in done.trace.slips)
        self.notes = (*map(str, done.changes), *done.trace.notes, *left_out)

    def fail(self, status: Status, exit_code: int, error: str) -> None:
        """It does not come to the end, or not to a good one."""
        self.status, self.exit_code, self.error = status, exit_code, error
