"""The outcome of `ci`: of one model, as data that travels between processes, and of all models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from onnxgrad.errors import NotProved
from onnxgrad.frozen import frozen
from onnxgrad.jobs.ci.accepted import Leftover
from onnxgrad.jobs.ci.inputs import Change, Input
from onnxgrad.jobs.ci.lock import Accepted
from onnxgrad.jobs.lint.table import Finding
from onnxgrad.jobs.outcome import Outcome
from onnxgrad.jobs.requirements import Facts, Held
from onnxgrad.results import Plain, WithPage, in_form
from onnxgrad.rewrite.exact_record import ExactReport
from onnxgrad.verify import Report
from onnxgrad.version import __version__
from onnxgrad.wording import counted

# the worst first; all up to `unknown` fail, except `unproved` if the recipe allows it
Status = Literal[
    "error",  # cannot be read or run, or an internal error
    "different",  # the result computes something else
    "not proved",
    "unproved",  # by request: the recipe does not verify
    "failed",  # misses a requirement
    "unknown",  # to the lock
    "skipped",  # a model before it failed
    "changed",  # since the lock, but meets the requirements
    "passed",
]
STATUSES: tuple[Status, ...] = get_args(Status)


@dataclass
class ModelOutcome(Plain):
    """The outcome of one model, filled in during the work.

    `name`: its path from the recipe's folder. `digest`: sha256 of the model with its weights.
    `given`, `result`: its facts before and after. `output`: where the result was written, if it
    was; `recorded`: where its samples were. `removed`: the path of an older result that was removed
    because the new one was refused.
    `error`: one line, why the work ended early or which requirement is missed; `missed`: why
    requirements are missed, without the recipe's name. `input`: the content of the input model;
    `input_summary` and `input_changes`: what changed there since the lock. `changes`: what changed
    in the result. `done`: the outcome
    of rewriting and its proof, without the program. `unchanged`: not run, because the lock accepted
    it; `accepted`: its new entry in the lock.
    """

    json_keys = (
        "name variant? status exit_code error? sha256=digest? unchanged output removed given "
        "result lints requirements input_summary? input_changes changes proof exact notes "
        "seconds:.3f"
    )

    name: str
    status: Status = "passed"
    exit_code: int = 0
    error: str = ""
    missed: str = ""
    digest: str = ""
    output: str | None = None
    recorded: str | None = None
    removed: str | None = None
    given: Facts | None = None
    result: Facts | None = None
    lints: tuple[Finding, ...] = ()
    requirements: tuple[Held, ...] = ()
    input: Input | None = None
    input_summary: str = ""
    input_changes: tuple[Change, ...] = ()
    changes: tuple[Change, ...] = ()
    done: Outcome | None = None
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    variant: str = ""
    unchanged: bool = False
    accepted: Accepted | None = None

    @property
    def file(self) -> str:
        """The path of the model, without the name of a variant."""
        return self.name.removesuffix(f":{self.variant}") if self.variant else self.name

    @property
    def ok(self) -> bool:
        """Whether the model meets its requirements."""
        return self.exit_code == 0 and self.status != "skipped"

    @property
    def proof(self) -> Report | None:
        """The report of the proof, if there was one."""
        return None if self.done is None else self.done.report

    @property
    def exact(self) -> ExactReport | None:
        """The exact evaluation of the rewrites, if it was requested."""
        return None if self.done is None else self.done.exact

    def adopt(self, done: Outcome) -> None:
        """Records the result of rewriting and proof, also a refuted one, without its program."""
        self.done = replace(
            done,
            rewritten=None,
            given=None,
            changed=None,
            halved=None,
            prepare=None,
            error=None,
        )
        left_out = (f"left out: {slip}" for slip in done.trace.slips)
        self.notes = (*map(str, done.changes), *done.trace.notes, *left_out)

    def fail(self, status: Status, exit_code: int, error: str) -> None:
        """Records a failure."""
        self.status, self.exit_code, self.error = status, exit_code, error


@frozen
class CiReport(WithPage):
    """The outcome of `ci`: `models` in the order of their names; `gone`: models that only the lock
    has; `renamed`: models with the bytes of one that is gone. `lock`: its path; `locked`: whether
    it existed; `updating`: whether it should be written; `updated`: whether it was, with the models
    that passed. `leftovers`: results of models that are gone.
    """

    json_keys = (
        "format version onnxgrad=made_by recipe exit_code counts lock=lock_state "
        "models=worst_first seconds:.3f"
    )
    format = "onnxgrad ci"
    version = 1
    made_by = __version__

    recipe: str
    models: tuple[ModelOutcome, ...]
    lock: str
    locked: bool = False
    updating: bool = False
    updated: bool = False
    gone: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    leftovers: tuple[Leftover, ...] = ()
    seconds: float = 0.0

    @property
    def exit_code(self) -> int:
        """The worst exit code of the models, and at least 1 if the lock has models that
        are gone.
        """
        stale = NotProved.exit_code if self.gone and not self.updating else 0
        return max((stale, *(m.exit_code for m in self.models)))

    @property
    def ok(self) -> bool:
        """Whether every model meets its requirements and is in the lock, and none is gone."""
        return self.exit_code == 0

    @property
    def worst_first(self) -> list[ModelOutcome]:
        """The models by status, those with the same status by name."""
        return sorted(self.models, key=lambda m: (STATUSES.index(m.status), m.name))

    @property
    def counts(self) -> dict[str, int]:
        """The number of models of each status, the worst first."""
        found = Counter(m.status for m in self.models)
        return {status: found[status] for status in STATUSES if found[status]}

    @property
    def lock_state(self) -> dict[str, Any]:
        """The lock, for JSON."""
        return {
            "path": self.lock,
            "found": self.locked,
            "updated": self.updated,
            "gone": self.gone,
            "renamed": self.renamed,
            "left": self.left,
            "leftovers": [found.to_dict() for found in self.leftovers],
        }

    @property
    def left(self) -> list[str]:
        """The models whose entries an update left as they were, because they did not pass."""
        return [m.name for m in self.models if not m.ok] if self.updating else []

    @property
    def verdict(self) -> str:
        """The result in one line."""
        bad = sum(not m.ok and m.status != "skipped" for m in self.models)
        gone = 0 if self.updating else len(self.gone)
        parts = [
            f"{bad} of {counted(len(self.models), 'model')}" if bad else "",
            f"{counted(gone, 'model')} of the lock gone" if gone else "",
        ]
        if any(parts):
            return f"refused: {', '.join(filter(None, parts))}"
        unproved = self.counts.get("unproved", 0)
        proved = f"; not proved: {unproved}, which the recipe allows" if unproved else ""
        return f"accepted: {counted(len(self.models), 'model')}{proved}"

    def gone_text(self, name: str) -> str:
        """Returns a line about a model that only the lock has."""
        new = self.renamed.get(name)
        same = "" if new is None else f" ({new} has the same bytes)"
        return f"{name}: gone since {self.lock}{same}"

    def to_junit(self) -> str:
        """Returns the report as JUnit XML."""
        return in_form("junit", self)
