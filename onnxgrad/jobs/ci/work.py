"""The work on one model of `onnxgrad ci`: a function from data to data, which may run in this
process, in another, or on another machine with the same files.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from onnxgrad.errors import InputError, InternalError, NotProved, OnnxgradError
from onnxgrad.frozen import frozen
from onnxgrad.ir.load import load, read_proto
from onnxgrad.ir.program import Program
from onnxgrad.ir.save import remove, save_all, to_proto
from onnxgrad.ir.storage.external_data import sources
from onnxgrad.ir.storage.protection import protecting
from onnxgrad.jobs.ci.accepted import digest_of_result, key_of, versions_elsewhere
from onnxgrad.jobs.ci.declarations import Gates
from onnxgrad.jobs.ci.inputs import (
    Changed,
    Input,
    changed,
    hold_nodes,
    hold_outputs,
    hold_weights,
    input_of,
    may_change,
)
from onnxgrad.jobs.ci.lock import Accepted, changes
from onnxgrad.jobs.ci.measure import measured, measures, seconds_of
from onnxgrad.jobs.ci.outcome import ModelOutcome, Status
from onnxgrad.jobs.ci.samples import hold_samples, record
from onnxgrad.jobs.declarations import OptimizeOptions
from onnxgrad.jobs.declared import files_read
from onnxgrad.jobs.hooks import Hooks
from onnxgrad.jobs.lint.table import NEW, Refused
from onnxgrad.jobs.optimize import optimize
from onnxgrad.jobs.outcome import Outcome
from onnxgrad.jobs.requirements import (
    Facts,
    Held,
    bound_of,
    check_operators,
    facts_of,
    hold,
    operators_of,
    within_tolerance,
)
from onnxgrad.jobs.rewriting import RewriteRefuted
from onnxgrad.jobs.surgery.lift import prepare_path
from onnxgrad.jobs.tuning.record import digest
from onnxgrad.passes.pipeline import Pass
from onnxgrad.passes.user_laws import run_plugins
from onnxgrad.rewrite.exact_record import RewriteNotExact
from onnxgrad.verify.blame import blamed
from onnxgrad.verify.compare import DIFFERENT
from onnxgrad.verify.running.libraries import custom_ops
from onnxgrad.verify.running.process_limits import bounding_us
from onnxgrad.vocabulary import LintLevel
from onnxgrad.wording import in_a_recipe

Bounding = Callable[[float | None, int | str | None], AbstractContextManager[Any]]


@frozen
class Setup:
    """The user's plugins and libraries, by absolute path, which a process loads before its work."""

    plugins: tuple[str, ...] = ()
    custom_ops: tuple[str, ...] = ()


@frozen
class Job:
    """One model: `name` relative to the recipe, `path` and `output` (None: not written) as absolute
    paths, the `options` and `gates` of the recipe `where`. `baseline`: the entry of the lock.
    `locked`: whether a lock exists. `updating`: whether the lock will be written. `digest`,
    `former`: digest and content of the input model in the lock. `recording`: whether the samples
    that the recipe expects are written anew. `variant`: its name in the recipe, empty for the
    result that is none. `accepted`: the entry of the lock. `again`: run also if nothing changed.
    """

    name: str
    path: str
    output: str | None
    options: OptimizeOptions
    gates: Gates
    where: str
    folder: str
    baseline: Facts | None = None
    locked: bool = False
    updating: bool = False
    setup: Setup = field(default_factory=Setup)
    digest: str = ""
    former: Input | None = None
    recording: bool = False
    variant: str = ""
    accepted: Accepted | None = None
    again: bool = False

    @property
    def required(self) -> Mapping[str, Any]:
        """The requirements of the recipe."""
        return self.gates.require or {}

    @property
    def proves(self) -> bool:
        """Whether its result is proved."""
        return self.options.proves

    @property
    def runs(self) -> bool:
        """Whether models are run, to prove or to measure."""
        return self.proves or measures(self.gates)


def files_of(job: Job) -> list[str]:
    """Returns the files that the work on a model reads."""
    other = bound_of("latency", job.required.get("latency", 0)).of
    more = [] if not other else [os.path.join(job.folder, other)]
    more += [job.gates.expect] if job.gates.expect is not None and not job.recording else []
    setup = (*job.setup.plugins, *job.setup.custom_ops)
    return [job.path, job.where, *files_read(job.options), *setup, *more]


_passes: dict[Setup, tuple[Pass, ...]] = {}


def ready(setup: Setup, passes: Sequence[Pass] | None = None) -> tuple[Pass, ...]:
    """Returns the user's passes, after loading their plugins, once per process, or `passes` if that
    was done before. Raises InputError.
    """
    # a worker starts here: our rules and passes are registered before a plugin runs
    import_module("onnxgrad.surface")
    if passes is not None:
        _passes[setup] = tuple(passes)
    if setup not in _passes:
        for library in setup.custom_ops:
            custom_ops(library)
        _passes[setup] = tuple(run_plugins(setup.plugins))
    return _passes[setup]


def work(
    job: Job, may_write: Callable[[], bool] = lambda: True, limits: Bounding = bounding_us
) -> ModelOutcome:
    """Optimises, proves, measures, checks requirements, compares with the lock, and writes if the
    result passes and `may_write`, called last, agrees. `limits` bounds this process. Errors are
    stored in the outcome.
    """
    began = time.monotonic()
    outcome = ModelOutcome(job.name, variant=job.variant)
    try:
        with in_a_recipe(), protecting(files_of(job)):
            with limits(job.options.timeout, job.options.max_memory):
                unchanged = _is_unchanged(job, outcome)
            if not unchanged:
                _carry_out(job, outcome, may_write, limits)
    except OnnxgradError as error:
        _failed(outcome, job, error)
    except Exception as error:  # noqa: BLE001  # the last boundary of one model: the others go on
        what = InternalError(f"internal error: {type(error).__name__}: {error}")
        _failed(outcome, job, blamed([job.path], error) or what)
    outcome.seconds = time.monotonic() - began
    return outcome


def _is_unchanged(job: Job, outcome: ModelOutcome) -> bool:
    """Whether the lock accepted the result of this job, and everything that it depends on is as it
    was then. Records the digests.
    """
    outcome.digest = digest(job.path)
    others = [name for name in files_of(job) if name not in (job.path, job.where)]
    settings = {**job.options.settings(), **job.gates.settings()}
    if elsewhere := versions_elsewhere(job.options.against):
        settings["versions elsewhere"] = elsewhere
    outcome.accepted = Accepted(key_of(outcome.digest, settings, others, job.folder))
    known, runs = job.accepted, job.again or job.recording or not job.proves
    if runs or job.baseline is None or known is None or known.key != outcome.accepted.key:
        return False
    if job.output is not None and known.digest != digest_of_result(Path(job.output)):
        return False
    outcome.unchanged, outcome.accepted = True, known
    outcome.result, outcome.input = job.baseline, job.former
    return True


def _carry_out(
    job: Job, outcome: ModelOutcome, may_write: Callable[[], bool], limits: Bounding
) -> None:
    done = Outcome(explain=job.options.explain)

    def on_read(program: Program) -> None:
        if job.options.fix_dims:  # requirements and the lock mean the file
            program = load(Path(job.path))
        outcome.given = facts_of(program, program.proto)
        check_operators(job.required, operators_of(program), job.where, others=True)
        _compare_input(job, outcome, program)

    def write(program: Program) -> bool:
        if outcome.exit_code or not may_write():
            return False
        if job.recording and job.gates.expect is not None:
            record(program, job.options, job.gates.expect)
            outcome.recorded = _shown(job, job.gates.expect)
        if job.output is None:
            return False
        out = Path(job.output)
        _save(done, program, out)
        outcome.output = _shown(job, job.output)
        if outcome.accepted is not None:
            made = digest_of_result(out)
            outcome.accepted = replace(outcome.accepted, digest=made, output=outcome.output)
        return True

    hooks = Hooks(
        on_read=on_read,
        accept=functools.partial(_judge, job, outcome),
        write=write,
        limits=limits,
        seconds=seconds_of(job.gates),
        plugins=ready(job.setup),
    )
    error = optimize(Path(job.path), job.options.having(lint=_levels(job)), hooks, done).error
    outcome.lints = tuple(done.lints)
    if error is not None:
        raise error


def _save(done: Outcome, program: Program, out: Path) -> None:
    """Writes the result, its preparation before it, and its record for `rebase` after it."""
    first = {} if done.prepare is None else {prepare_path(out): done.prepare}
    save_all({**first, out: program})
    if done.record is not None:
        done.record.save_beside(out)


class _Replaced(NotProved):
    """The input model changed as the recipe does not accept."""


def _compare_input(job: Job, outcome: ModelOutcome, program: Program) -> None:
    """Records the content of the input, and what changed since the lock. Raises _Replaced if the
    recipe refuses that.
    """
    seen = Changed()
    if job.former is not None and outcome.digest == job.digest:
        outcome.input = job.former
    else:
        outcome.input = input_of(program.proto, program.folder, outcome.given)
    if job.former is not None and outcome.input is not job.former:
        now = program.proto, program.folder
        seen = changed(job.former, outcome.input, now, job.output or "")
        outcome.input_summary, outcome.input_changes = seen.summary, seen.changes
    known = job.baseline is not None or job.updating
    outcome.requirements = (
        *hold_weights(job.required, seen, known, job.updating),
        *hold_nodes(job.required, seen, job.updating),
    )
    if seen.summary and not all(held.held for held in outcome.requirements):
        raise _Replaced(_missed(job, outcome))


def _missed(job: Job, outcome: ModelOutcome) -> str:
    outcome.missed = "; ".join(held.why for held in outcome.requirements if not held.held)
    return f"requirement of {job.where} not met: {outcome.missed}" if outcome.missed else ""


# a latency misses its bound only if it does so in each of these
_MEASUREMENTS = 2


def _judge(job: Job, outcome: ModelOutcome, done: Outcome) -> None:
    """Measures the result, checks its requirements, and compares it with the lock."""
    outcome.adopt(done)
    result = facts_of(done.program, to_proto(done.program))
    if done.report is not None:
        reports = [done.report, *([done.halved.report] if done.halved is not None else [])]
        found = (d.rel for report in reports if report for d in report.differences)
        result = replace(result, worst=max(found, default=0.0))
    facts = outcome.given or result, result
    wanted = job.options, job.gates
    before = outcome.requirements
    for _ in range(_MEASUREMENTS):
        outcome.requirements = before
        given, result = measured(job.path, job.folder, done, wanted, facts)
        outcome.given, outcome.result = given, result
        outcome.requirements = _held(job, outcome, done)
        if all(held.held for held in outcome.requirements if held.name == "latency"):
            break
    if job.baseline is not None:
        outcome.changes = changes(job.baseline, result)
    refused = _refused(job, outcome)
    if refused is not None:
        outcome.fail(refused[0], NotProved.exit_code, refused[1])
    elif not job.proves:
        outcome.status = "unproved"
    elif outcome.changes or outcome.input_summary:
        outcome.status = "changed"


def _refused(job: Job, outcome: ModelOutcome) -> tuple[Status, str] | None:
    """Returns why the result is refused, as a status and a line, or None."""
    if not job.proves and not job.gates.allow_unproved:
        return "unproved", _UNPROVED.format(job.where)
    if missed := _missed(job, outcome):
        return "failed", missed
    if job.locked and job.baseline is None and not job.updating:
        return "unknown", _UNKNOWN
    return None


_UNPROVED = "nothing was proved: {} has verify.run = false; allow_unproved = true accepts that"
_UNKNOWN = "the lock does not know this model: run `onnxgrad ci --update`"


def withdraw(job: Job, outcome: ModelOutcome) -> None:
    """Removes the older result of a refused model, so that it is not deployed."""
    if job.output is None or outcome.ok or outcome.status == "skipped":
        return
    try:
        read_proto(Path(job.output))
    except InputError:  # not an older result: a file of the user
        return
    try:
        remove(job.output, keep=_weights(job))
        if job.options.lift is not False and (prepare := prepare_path(Path(job.output))).exists():
            remove(prepare, keep=_weights(job))
    except InputError as error:
        what = str(error).replace(job.output, _shown(job, job.output))
        outcome.fail("error", error.exit_code, f"{outcome.error}; the older result {what}")
    else:
        outcome.removed = _shown(job, job.output)


def _weights(job: Job) -> set[Path]:
    """Returns the files from which the model reads its weights."""
    try:
        return sources(read_proto(Path(job.path)), Path(job.path).parent)
    except InputError:  # an unreadable model was refused for that reason
        return set()


def _shown(job: Job, path: str) -> str:
    """Returns the name of a file from the recipe's folder."""
    return os.path.relpath(path, job.folder).replace(os.sep, "/")


def _held(job: Job, outcome: ModelOutcome, done: Outcome) -> tuple[Held, ...]:
    """Returns the result of each requirement; during an update, the new lock is the baseline."""
    given, result = outcome.given, outcome.result
    if given is None or result is None:
        raise InternalError("requirements are held before the facts are known")
    known = {*operators_of(done.program), *given.operators}
    check_operators(job.required, known, job.where)
    baseline = result if job.updating else job.baseline
    hold_to = functools.partial(hold, baseline=baseline, proof=outcome.proof, exact=done.exact)
    held = [
        hold_to(name, bound_of(name, text), result, given)
        for name, text in job.required.items()
        if name != "weights"
    ]
    if not job.recording:
        held += hold_samples(done.program, job.options, job.gates)
    if outcome.input is not None:
        outcome.input = outcome.input.proved_by(outcome.proof)
        if outcome.input_summary and job.former is not None:
            allowed = job.options.allow_empty
            held += hold_outputs(job.required, job.former, outcome.input, allowed)
    return (*outcome.requirements, *held, *within_tolerance(job.gates.tolerance, outcome.proof))


def _failed(outcome: ModelOutcome, job: Job, error: OnnxgradError) -> None:
    status: Status = "not proved" if error.exit_code == NotProved.exit_code else "error"
    if isinstance(error, (_Replaced, Refused)):
        status = "failed"
    if isinstance(error, RewriteNotExact):
        outcome.adopt(Outcome(exact=error.report))
        status = "different"
    if isinstance(error, RewriteRefuted):
        outcome.adopt(replace(error.done or Outcome(), report=error.report))
        if error.report.verdict == DIFFERENT:
            status = "different"
    # named as in the recipe, so that the message is the same on every machine
    words = str(error).replace(job.path, job.name).removeprefix(f"{job.name}: ")
    if isinstance(error, Refused) and (names := _new_faults(outcome, job)):
        accepts = f"lint = {{ {', '.join(names)} }} accepts that"
        words = f"{words}; the lock does not know this model: {accepts}"
    outcome.fail(status, error.exit_code, words)


def _levels(job: Job) -> dict[str, LintLevel]:
    """Returns the levels of lints: those of the recipe, and for a new model the default ones."""
    new = job.baseline is None and not may_change(job.required)
    return {**(NEW if new else {}), **(job.options.lint or {})}


def _new_faults(outcome: ModelOutcome, job: Job) -> list[str]:
    """Returns the keys that accept what is an error only because the model is new to the lock."""
    errors = dict.fromkeys(f.lint for f in outcome.lints if f.level == "error")
    return [f'{name} = "warn"' for name in errors if name not in (job.options.lint or {})]
