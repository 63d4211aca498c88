"""Rewrites one model by a pipeline and proves the result, or names the first bad rewrite."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnx import GraphProto, ModelProto, ValueInfoProto

from onnxgrad.errors import CannotRun, InternalError, NotProved
from onnxgrad.frozen import frozen
from onnxgrad.ir.derivations import ReadWeights
from onnxgrad.ir.load import ModelLike, load_own
from onnxgrad.ir.model_kinds import settled
from onnxgrad.ir.origins import reading
from onnxgrad.ir.program import Program
from onnxgrad.ir.protobufs import every_node
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.storage.shared_weights import Files, sharing
from onnxgrad.ir.types import type_to_proto
from onnxgrad.jobs.growth import MOST_GROWTH, Grown, Merged
from onnxgrad.jobs.outcome import Outcome
from onnxgrad.jobs.rebasing.values_used import note_values_used
from onnxgrad.laws.float16.convert import LAW
from onnxgrad.options import providers_of
from onnxgrad.passes.each_rewrite import EachTrace, FiringDiffers
from onnxgrad.passes.folded_values import constant_bytes, file_bytes
from onnxgrad.passes.pipeline import Fired, PassResult, Pipeline
from onnxgrad.rewrite.trace import Rewrite, Trace
from onnxgrad.verify import Report, verify
from onnxgrad.verify.blame import bisect
from onnxgrad.verify.compare import DIFFERENT
from onnxgrad.verify.original_runs import Ahead, may_run_ahead
from onnxgrad.verify.request import Request
from onnxgrad.verify.running.background import Background
from onnxgrad.verify.running.child_process import RunFailed
from onnxgrad.wording import option

if TYPE_CHECKING:
    from onnxgrad.jobs.rebasing.recording import Recording

# options of the proof that refer to inputs of the whole model
_OF_THE_WHOLE = frozenset(
    {"inputs", "dims", "weights", "allow_empty", "excuse", "atol", "rtol", "metric", "coverage"}
)


class RewriteRefuted(NotProved):
    """The optimised model computes something else, or nothing was proved. `report` has the
    differences, `culprit` is the first bad rewrite, `done` the refuted program, for inspection.

    `alone`: True if the report covers only the failing rewrite in isolation.
    """

    def __init__(
        self,
        report: Report,
        culprit: Rewrite | None,
        *,
        alone: bool = False,
        done: Outcome | None = None,
    ) -> None:
        self.report = report
        self.culprit = culprit
        self.alone = alone
        self.done = done
        why = "whose two forms differ" if alone else "that changes the result"
        blame = (
            ""
            if culprit is None
            else (
                f"; the first rewrite {why} is number {culprit.number}, {culprit.rule} (pass "
                f"{culprit.pass_name}) at: {culprit.where}"
            )
        )
        super().__init__(f"{report.summary}{blame}; nothing was written")


def optimize_program(
    model: ModelLike,
    pipeline: Pipeline,
    *,
    prove: bool = True,
    each: bool = False,
    exact: bool = False,
    limit: int | None = None,
    explain: bool = False,
    proof: Mapping[str, Any] | None = None,
    on_stage: Callable[[str], None] | None = None,
    on_read: Callable[[Program], None] | None = None,
    on_fired: Fired | None = None,
    allow_growth: bool = False,
    blame: bool = True,
    ahead: bool = False,
    rebasable: bool = False,
) -> Outcome:
    """Runs `pipeline` over a fresh reading of `model` and proves the result; `proof` has options of
    `verify.verify`.

    `each` also proves every rewrite on its own operands when it happens (see
    `passes.each_rewrite`), also without `prove`; `exact` decides each by exact evaluation (see
    `rewrite.exact_record`). `on_read` sees the program before any rewrite and may refuse it.
    `limit` stops after this many rewrites. `on_stage` receives the stages: "read", each pass by
    name, "prove", "bisect"; `on_fired` each pass that changed something. `ahead`: runs of the proof
    that need only the original begin in threads before the passes. `rebasable`: the outcome has the
    record for `rebase`. Raises RewriteRefuted (exit code
    1) if the proof fails, after bisecting the numbered rewrites (unless `blame` is off),
    RewriteNotExact (1) if `exact` refutes a rewrite, Grown (1) if merging enlarges the file by more
    than a tenth without `allow_growth`, and InputError if the model cannot be read, or cannot be
    run and `prove` is on.
    """
    options = dict(proof or {})
    trace = EachTrace(limit=limit, explain=explain) if each else Trace(limit=limit, explain=explain)
    tell = on_stage or (lambda stage: None)
    tell("read")
    model = settled(model)  # read more than once
    program = load_own(model)
    if on_read is not None:
        on_read(program)
    merged = Merged(pipeline, program, tell, on_fired)
    watch = (tell, on_fired) if allow_growth else (merged.stage, merged.fired)
    with contextlib.ExitStack() as left:
        early = (
            left.enter_context(_ahead(program, options)) if ahead and prove and not each else None
        )
        read = left.enter_context(reading(program))
        recording = _recording(program, read) if rebasable else None
        trace.derivations = read if recording is None else recording.derivations
        prover = None
        if exact:
            from onnxgrad.rewrite.exact_record import ExactProver  # rarely needed

            prover = ExactProver(program, trace)
        results = _run(pipeline, program, trace, watch, options)
        if (growth := merged.growth()) > MOST_GROWTH * (size := file_bytes(program)):
            raise Grown(growth, size)
        _name_as_before(program, trace)
        singly = trace.report if isinstance(trace, EachTrace) else None
        proved = None if prover is None else prover.finish()
        done = Outcome(rewritten=program, passes=results, trace=trace, each=singly, exact=proved)
        beside = recording is None and early is not None  # the proof; a record has the names
        note = note_values_used(
            program,
            read.held,
            lambda: load_own(model),
            lambda fresh, kept: pipeline.run(fresh, Trace(limit=limit, derivations=kept)),
            left.enter_context(Background()) if beside else None,
        )
        if recording is not None:
            note()
            halved = any(r.rule == LAW for r in trace.rewrites)
            done.record = recording.finish(rounded=trace.rounded, halved=halved)
        if prove:
            options.setdefault("weights", "rounded" if trace.rounded else "same")
            tell("prove")
            done.report = _proof(pipeline, program, trace, options, early)
        note()
        report = done.report
        if report is not None and not report.ok:
            culprit = None
            if blame and report.verdict == DIFFERENT:
                tell("bisect")
                culprit = _culprit(model, pipeline, len(trace.rewrites), program, options)
            raise RewriteRefuted(report, culprit, done=done)
    _proved(pipeline, program)
    return done


def _recording(program: Program, read: ReadWeights) -> Recording:
    from onnxgrad.jobs.rebasing.recording import (
        Recording,  # decides what is a weight: rarely needed
    )

    made = Recording(program)
    made.derivations.read = read
    return made


@frozen
class _Begun:
    """An original and its runs ahead. `files`: where large weights lie."""

    files: Files
    original: Any
    runs: Ahead


@contextlib.contextmanager
def _ahead(program: Program, options: Mapping[str, Any]) -> Iterator[_Begun | None]:
    """Yields the original and its runs, which begin now; None if they would gain nothing."""
    provider = providers_of(options.get("provider") or "cpu")[0]
    if provider != "cpu" or not may_run_ahead(program.proto, constant_bytes(program)):
        yield None
        return
    with sharing() as files:
        original = files.original(program)
        with Ahead(original, Request(**options)) as runs:
            yield _Begun(files, original, runs)


def _proof(
    pipeline: Pipeline,
    program: Program,
    trace: Trace,
    options: Mapping[str, Any],
    begun: _Begun | None,
) -> Report:
    """Compares the program with its original. `begun`: the result of `_ahead`. Raises CannotRun."""
    with contextlib.ExitStack() as left:
        files = left.enter_context(sharing()) if begun is None else begun.files
        original = files.original(program) if begun is None else begun.original
        candidate = files.of(program)
        try:
            stated = _stated(pipeline, original, trace, options)
            early = begun.runs if begun is not None and stated is original else None
            return verify(stated, candidate, early=early, **options)
        except CannotRun as error:
            skip = option("--no-verify", "verify=False")
            raise CannotRun(f"{error}, or skip the proof with {skip}") from error


def _proved(pipeline: Pipeline, program: Program) -> None:
    for p in pipeline.passes:
        p.proved(program)


def _run(
    pipeline: Pipeline,
    program: Program,
    trace: Trace,
    watch: tuple[Callable[[str], None], Fired | None],
    options: Mapping[str, Any],
) -> list[PassResult]:
    """Runs the pipeline. Raises RewriteRefuted for a rewrite that an EachTrace refutes."""
    if not isinstance(trace, EachTrace):
        return pipeline.run(program, trace, *watch)
    trace.watch(program, {k: v for k, v in options.items() if k not in _OF_THE_WHOLE})
    try:
        results = pipeline.run(program, trace, *watch)
        trace.finish()
    except FiringDiffers as error:
        # the program is complete: it was between rewrites
        done = Outcome(rewritten=program, trace=trace, each=trace.report)
        raise RewriteRefuted(error.report, error.rewrite, alone=True, done=done) from None
    return results


def _name_as_before(program: Program, trace: Trace) -> None:
    """Gives each value that replaces a value of the file the name of that value."""
    names = {name for node in every_node(program.proto.graph.node) for name in node.output}
    names -= {v.name for block in program.blocks() for v in block.vars()}
    graphs = (block.proto for block in program.blocks() if isinstance(block.proto, GraphProto))
    declared = {i.name: i.type.tensor_type.elem_type for g in graphs for i in g.value_info}
    renamed = {}
    for v, name in trace.stands.items():
        live = v.definition is not None and v.definition.is_live
        if live and not v.returned and name in names and v.type is not None:
            names.remove(name)
            if name in declared and declared[name] != v.dtype:  # float16 changes the dtype
                v.block.declared[v] = ValueInfoProto(name=name, type=type_to_proto(v.type))
            renamed[v.name] = name
            v.rename(name)
    trace.stands.clear()
    for i, r in enumerate(trace.rewrites):
        if any(name in renamed for name in (*r.matched, *r.emitted)):
            matched, emitted = (
                tuple(renamed.get(n, n) for n in given) for given in (r.matched, r.emitted)
            )
            trace.rewrites[i] = replace(r, matched=matched, emitted=emitted)


def _stated(
    pipeline: Pipeline, original: ModelProto | Path, trace: Trace, options: Mapping[str, Any]
) -> Any:
    """Returns the reference of the proof: the original, extended by passes that add outputs."""
    found: Any = original
    for p in pipeline.passes:
        found = p.stated(found, trace, providers_of(options.get("provider") or "cpu")[0])
    return to_proto(found, weights=True) if isinstance(found, Program) else found


def _culprit(
    model: ModelLike, pipeline: Pipeline, total: int, done: Program, options: Mapping[str, Any]
) -> Rewrite | None:
    """Returns the first rewrite after which the result differs."""
    if total == 0:
        return None

    def rewritten(n: int) -> tuple[Program, Trace]:
        trace = Trace(limit=n)
        program = load_own(model)
        pipeline.run(program, trace)
        return program, trace

    def good(n: int) -> bool:
        try:
            program, trace = rewritten(n)
            with sharing() as files:
                original, candidate = files.original(done), files.of(program)
                stated = _stated(pipeline, original, trace, options)
                return verify(stated, candidate, **options).verdict != DIFFERENT
        except RunFailed:
            return False

    try:
        first = bisect(total, good)
    # the second check disagrees with the first (time ran out, a random operator)
    except InternalError:
        return None
    return rewritten(first)[1].rewrites[first - 1]
