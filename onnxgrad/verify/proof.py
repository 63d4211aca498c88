"""`verify`: does model b compute the same as model a?

There are two checks. In the float64 check, both graphs run in the float64 reference, where
reordered arithmetic costs about 1e-15 and a real change shows. In the onnxruntime check, both run
as deployed, against a tolerance calibrated on the original's own noise: its differences between
optimisations on and off, between one and two threads, and from the float64 reference.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from onnx import ModelProto, TensorProto

from onnxgrad.errors import CannotRun, InputError
from onnxgrad.ir.domains import full_name
from onnxgrad.ir.storage.numpy_files import ArraysFile
from onnxgrad.ir.storage.shared_weights import sharing
from onnxgrad.limits import bounded
from onnxgrad.options import several
from onnxgrad.verify.compare import Difference
from onnxgrad.verify.coverage.search import Search
from onnxgrad.verify.coverage.summary import Coverage
from onnxgrad.verify.custom_operators.boundaries import (
    Around,
    Operator,
    UnknownOperator,
    around,
)
from onnxgrad.verify.custom_operators.result_types import CannotCut
from onnxgrad.verify.evidence import Regions
from onnxgrad.verify.exact.client import decide_models
from onnxgrad.verify.feeds.declared_ranges import notes_on_ranges
from onnxgrad.verify.feeds.dims import shape_of
from onnxgrad.verify.float64_check import (
    Oracle,
    float64_check,
    quantises,
    widen_by_rounding,
    without_rounding,
)
from onnxgrad.verify.interface import Demands, correspondence, interface_differences
from onnxgrad.verify.layers.comparison import inside, interface_names, keep_run
from onnxgrad.verify.onnxruntime_check import limit_reached, onnxruntime_check, opened_as_written
from onnxgrad.verify.original_runs import REFERENCE, Ahead, OriginalRuns
from onnxgrad.verify.output_dependencies import new_weights
from onnxgrad.verify.proof_model import Model, ProofModel, proof_model
from onnxgrad.verify.random_operators import same_draws
from onnxgrad.verify.regions.comparison import by_regions
from onnxgrad.verify.report import Check, Report
from onnxgrad.verify.request import Request, Stored, with_outputs
from onnxgrad.verify.running.child_process import RunFailed
from onnxgrad.verify.running.installed import title_of, too_old
from onnxgrad.verify.running.runtimes import Runtime
from onnxgrad.verify.running.session import Session, open_session, versions
from onnxgrad.verify.scales import ScaleSearch
from onnxgrad.verify.stored_results import against_stored
from onnxgrad.verify.ties import Ties
from onnxgrad.verify.tolerance import UNSTABLE
from onnxgrad.verify.trials import Found, Trial, divided, excused
from onnxgrad.vocabulary import CHECKS
from onnxgrad.wording import counted, option


@bounded
def verify(
    a: Model | Any, b: Model | Any | None = None, *, early: Ahead | None = None, **options: Any
) -> Report:
    """Compares model `b` with the original `a` by running both; see `onnxgrad.verify`. `options`:
    the arguments that `Request` declares. `early`: the runs of `a` that began ahead.
    """
    request = Request(**options)
    alone = b is None and request.expect is None
    others = _runtimes(request.against, alone=alone and "onnxruntime" in request.checks)
    if alone and request.save is None and not others:
        raise InputError(f"pass a second model, or {option('--expect FILE', 'expect=')}")
    if request.expect is not None and b is not None:
        raise InputError("stored results are compared with one model, and two were given")
    if request.exact and b is None:
        raise InputError(
            f"{option('--exact', 'exact=True')} compares two models, and one was given"
        )
    with contextlib.ExitStack() as left:
        if request.save is not None:
            keep = left.enter_context(ArraysFile(Path(request.save)))
            request = replace(request, keep=keep)
        if early is not None:
            request = replace(request, early=early.request.early)
        files = left.enter_context(sharing())
        first = proof_model(a, files) if early is None else early.original()
        second = first if alone else None if b is None else proof_model(b, files)
        report = _on_all(first, second, request, others or request.providers, early)
        ran = any(
            check.ran for name, check in report.checks.items() if name.startswith("onnxruntime")
        )
        if ran and (old := too_old(versions()["onnxruntime"])):
            report = replace(report, notes=(*report.notes, old))
        if request.exact and second is not None:
            decision = decide_models(first.source, second.source, request.map)
            report = replace(report, exact=decision)
    if request.save is not None and not keep.names:
        unwritten = f"{request.save} was not written: no check ran"
        report = replace(report, notes=(*report.notes, unwritten))
    return replace(report, bounds=str(request.bounds))


def _on_all(
    first: ProofModel,
    second: ProofModel | None,
    request: Request,
    places: Sequence[str] | Sequence[Runtime],
    early: Ahead | None,
) -> Report:
    """Compares the models on every provider, or the first in every other runtime, and joins the
    reports.
    """
    others = [place for place in places if isinstance(place, Runtime)]
    if others:
        return _in_others(first, request, others)
    providers = [place for place in places if isinstance(place, str)]
    requests = [request, *(request.on(name) for name in providers[1:])]
    if early is not None and second is not None:
        early.expect(second)
    reports = [
        against_stored(first, cast(Stored, request.expect), each)
        if second is None
        else _around(first, second, each, early)
        for each in requests
    ]
    return Report.merge(reports, providers)


def _runtimes(against: str | Sequence[str], *, alone: bool) -> list[Runtime]:
    """Returns the other runtimes. Raises InputError unless a model is `alone`."""
    others = [Runtime.of(text) for text in several(against, "verify: against")]
    if others and not alone:
        raise InputError(
            f"{option('--against', 'against=')} compares one model with itself in another runtime, "
            "in the onnxruntime check: pass no second model and no stored results"
        )
    return others


def _in_others(model: ProofModel, request: Request, others: Sequence[Runtime]) -> Report:
    """Compares a model with itself in every other runtime, and joins the reports."""
    reports = []
    titles = [title_of(runtime) for runtime in others]
    for runtime, title in zip(others, titles, strict=True):
        report = _around(model, model, request.beside(runtime), None)
        here = f"{report.provider} of onnxruntime {versions()['onnxruntime']}"
        reports.append(replace(report, provider=f"{here} and on {title}"))
    return Report.merge(reports, titles)


def _around(
    original: ProofModel, candidate: ProofModel, request: Request, early: Ahead | None
) -> Report:
    """Compares the models. If onnxruntime lacks operators of the original, compares everything
    around their nodes.
    """
    unknown, first = dict[Operator, None](), None
    models, start = Around(original, candidate, ()), time.monotonic()
    try:
        while True:
            try:
                report = _compared(models.original, models.candidate, request, early)
                break
            except UnknownOperator as error:
                if unknown.keys() >= {*error.operators}:
                    raise
                first = first or error
                unknown |= dict.fromkeys(error.operators)
                models = around(original, candidate, unknown)
        if not report and models.doubt:
            raise CannotCut(f"{models.doubt}, and differs")
    except (CannotCut, CannotRun) as error:
        if first is None or not first.certain:
            raise first or error from None
        instead = "" if isinstance(error, CannotCut) else "with given values as its results "
        why = f"{instead}{error}"
    else:
        return replace(report, around=models.nodes, seconds=time.monotonic() - start)
    names, library = ", ".join(full_name(*o) for o in unknown), option("--custom-ops", "custom_ops")
    lacks = f"onnxruntime lacks {names} ({library} loads a library)"
    return _nothing_ran(request, start, lacks, (), [f"{lacks}; {why}"])


def _nothing_ran(
    request: Request,
    start: float,
    why: str,
    differences: Sequence[Difference],
    unproved: Sequence[str] = (),
) -> Report:
    return Report(
        False, tuple(differences), {name: Check(name, False, why) for name in request.checks}, (),
        request.settings.provider, seconds=time.monotonic() - start, unproved=tuple(unproved),
    )  # fmt: skip


def _compared(
    original: ProofModel, candidate: ProofModel, request: Request, early: Ahead | None
) -> Report:
    """Runs the requested checks, as far as possible."""
    start = time.monotonic()
    outputs = [value.name for value in original.proto.graph.output]
    request = with_outputs(request, outputs)
    names = interface_names(original.proto, request.map) if request.layers else request.map
    demands, seen = correspondence(original.proto, candidate.proto, names, request.bounds)
    demands = replace(demands, of=request.candidate)

    # a pass that fixes a size is wrong at every other
    fixed = request.dims if request.weights == "auto" else None
    broken = interface_differences(original.proto, seen, fixed)
    if broken:
        return _nothing_ran(request, start, "the interfaces differ", broken)
    draws = same_draws(original, candidate, demands.names.outputs)
    given = original, candidate
    original, candidate = draws.original, draws.candidate
    demands = replace(demands, random=frozenset(draws.left))
    try:
        runs = None if early is None else early.runs(original, candidate, request)
        runs = runs or OriginalRuns(original, request).run()
    except (RunFailed, InputError) as error:
        cause = error if isinstance(error, RunFailed) else error.__cause__
        if not isinstance(cause, RunFailed) or not (cause.limit or cause.stage == REFERENCE):
            raise  # the model itself failed; a limit or a failed reference proves nothing
        unproved = f"the float64 check could not run ({cause.reason})"
        reason = limit_reached("the original model", cause) if cause.limit else unproved
        return _nothing_ran(request, start, cause.reason, (), [reason])
    runs.hold(candidate, demands, partial(_recomputed, original, candidate, request, demands))
    search = Search(
        original, candidate, runs.session, runs.oracle, runs.trials, request.seeds or (0,),
        request.dims or {}, runs.refused, runs.feeder, request.weights == "auto",
        wide=not str(request.bounds), go_on=runs.go_on,
    )  # fmt: skip
    if request.inputs is None:
        search.run()
    demands = runs.settle()
    ties = Ties(original, request.float64_budget)
    for trial in search.trials:
        trial.ties = ties
    found = Found(
        notes=[
            *draws.notes,
            *notes_on_ranges(original.proto),
            *divided(original.proto, search.trials, demands),
            *excused(search.trials),
            *search.dropped,
        ],
        unproved=draws.reasons(request.bounds),
        random=demands.random,
    )
    if candidate is not given[1] and runs.session is not None:
        opened_as_written(*given, found, request.settings, demands)
    report = _judged(search, request, demands, found, runs)
    if request.keep is not None:
        notes = keep_run(request.keep, search.trials[0], original.proto)
        report = replace(report, notes=(*report.notes, *notes))
    if request.layers:
        models = search.original, search.candidate
        layers = inside(*models, search.trials, request, demands, agree=report.ok)
        report = replace(report, layers=layers)
    return replace(report, seconds=time.monotonic() - start)


def _judged(
    search: Search, request: Request, demands: Demands, found: Found, runs: OriginalRuns
) -> Report:
    """Runs the checks on all cases, and adds their coverage."""
    original, candidate, trials = search.original, search.candidate, search.trials
    oracle, ran = search.oracle, runs.ran
    scales: ScaleSearch | None = None
    if search.session is not None:
        if request.scales:
            scales = ScaleSearch(
                search.session, candidate, request.there, runs.feeder, trials,
                request.inputs is None, demands,
            )  # fmt: skip
        if oracle is not None:
            widen_by_rounding(oracle, trials)
        early = request.settings.early
        shapes = None if request.map else partial(runs.shapes.contradictions, trials)
        later = None if early is None or shapes is None else early.line.call(shapes)
        ran["onnxruntime"] = onnxruntime_check(
            original, candidate, trials, found, request.settings, demands, search.at_zero,
            search.apart,
            request.there,
            scales,
        )  # fmt: skip
        if shapes is not None:
            wrong, notes = shapes() if later is None else later.result()
            found.unproved += wrong
            found.notes += notes
    if oracle is not None and request.runtime is None:
        ran["float64"] = float64_check(oracle, trials, found, demands.computed)
        ran |= _settled(oracle, trials, found, ran)
    regions = _in_regions(search, request, found, ran)
    if not any(check.ran for check in ran.values()):
        found.unproved.append(f"the float64 check could not run ({ran['float64'].why})")
    outputs = original.proto.graph.output
    sizes = {value.name: shape_of(value.name, value.type.tensor_type) or () for value in outputs}
    wanted = [name for name, shape in sizes.items() if 0 not in shape]
    empty = found.empty(wanted or sizes, request.allow_empty)
    if empty:
        accept = option(" ".join(f"--allow-empty {n}" for n in empty), f"allow_empty={empty}")
        found.unproved.append(
            f"nothing finite to compare in {', '.join(empty)} (pass inputs with "
            f"{option('--input', 'inputs=')}, or accept it: {accept})"
        )
    equal = all(d.ok for d in found.differences.values())
    coverage = search.coverage(
        found.not_at_zero, request.inputs is not None, partial(_alone, request) if equal else None
    )
    if equal:
        found.unproved += _uncovered(coverage, request)
    report = _report(found, ran, trials, request.settings.provider)
    apart = None if search.apart is None else search.apart.result
    return replace(
        report,
        coverage=coverage,
        regions=regions,
        non_finite=apart,
        scales=None if scales is None else scales.result,
    )


def _alone(request: Request, model: ModelProto) -> Session:
    """Loads a part of a model as the original is loaded."""
    settings = request.settings
    return open_session(
        proof_model(model).source, provider=settings.provider, optimize=False,
        threads=settings.threads, may_idle=True,
    )  # fmt: skip


def _in_regions(
    search: Search, request: Request, found: Found, ran: dict[str, Check]
) -> Regions | None:
    """Compares the models by regions if whole runs prove nothing, and adds that to the findings and
    to the checks that `ran`.
    """
    models, again = (search.original, search.candidate), partial(_compared, early=None)
    judged = by_regions(models, search.trials, search.oracle, request, found, again)
    if judged is None:
        return None
    whole = not found.failing() and not found.many_ties()
    judged.settle(found)
    if whole and judged.unproved and all(d.ok for d in judged.differences):
        return replace(judged.regions, why=judged.unproved[0])
    ran |= {check.name: found.check(check.name, check.cases, check.why) for check in ran.values()}
    ran[judged.check.name] = judged.check
    return judged.regions


def _settled(
    oracle: Oracle, trials: Sequence[Trial], found: Found, ran: Mapping[str, Check]
) -> dict[str, Check]:
    """Returns the checks that change after the float64 check ran on every case, or out of time."""
    done = ran["float64"].cases == len(trials)
    if done:
        found.accept_rounding()
    elif oracle.left <= 0:
        found.doubt_rounding([n for n, of in oracle.demands.computed.items() if of], oracle.why)
    checks = [check for check in ran.values() if check.name == "onnxruntime"]
    again = {check.name: found.check(check.name, check.cases, check.why) for check in checks}
    if not done or not quantises(oracle.subjects["original"].proto):
        return again
    unrounded = without_rounding(oracle, trials, found)
    return again if unrounded is None else {**again, unrounded.name: unrounded}


def _uncovered(coverage: Coverage, request: Request) -> list[str]:
    """Returns what the runs failed to cover: the requested share, and rows of tables that differ
    but were never read, which are skipped if `weights` is set.
    """
    lacking = "" if request.share is None else coverage.lacks(request.share)
    unread = []
    if request.weights == "auto" and request.inputs is None:
        rows, unmet = coverage.unread.items(), coverage.unmet.items()
        unread += [f"{counted(n, 'row')} of {table!r} differ that no run read" for table, n in rows]
        unread += [
            f"{counted(n, 'element')} of {name!r} differ that no run met" for name, n in unmet
        ]
    return [*unread, *([lacking] if lacking else [])]


def _recomputed(
    original: ProofModel,
    candidate: ProofModel,
    request: Request,
    demands: Demands,
) -> dict[str, set[int]]:
    """Returns, by output of the original, the dtypes of recomputed weights on its paths, according
    to the caller or to the weights themselves; nothing if only the float64 check would ask.
    """
    if request.weights == "same" or "float64" not in request.checks:
        return {}
    claimed = request.weights == "rounded"
    computed, names = new_weights(original, candidate, claimed=claimed), demands.names.outputs
    anywhere = any(computed.values()) or not claimed
    return {
        v.name: computed.get(names.get(v.name, v.name), set()) if anywhere else {TensorProto.FLOAT}
        for v in original.proto.graph.output
    }


def _report(
    found: Found, ran: Mapping[str, Check], trials: Sequence[Trial], provider: str
) -> Report:
    own: dict[str, float] = {}
    for trial in trials:
        own |= {name: max(value, own.get(name, 0.0)) for name, value in trial.noise.items()}
    differences = tuple(found.differences.values())
    return Report(
        ok=all(difference.ok for difference in differences) and not found.reasons(),
        differences=differences,
        checks={name: ran[name] for name in dict.fromkeys((*CHECKS, *ran)) if name in ran},
        cases=tuple(trial.case for trial in trials),
        provider=found.ran_on(provider),
        idle=tuple(found.idle),
        unstable=tuple(name for name, value in own.items() if value > UNSTABLE),
        notes=found.remarks(),
        noise=own,
        compared=found.compared(),
        unproved=found.reasons(),
        infinite=found.infinite(),
    )
