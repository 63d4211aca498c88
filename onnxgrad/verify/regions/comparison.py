"""Judges two models by the regions between discontinuities.

One last bit decides where a value is rounded or which element is chosen. If the original differs
from itself for that reason, comparing whole runs proves nothing. Each region then gets the
original's values at its beginning, and its end is compared with the ordinary tolerances.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from onnx import NodeProto, ValueInfoProto

from onnxgrad.errors import CannotRun, OnnxgradError
from onnxgrad.ir.protobufs import copy_of, operator, weight_elements
from onnxgrad.limits import LimitReached
from onnxgrad.verify.compare import DIFFERENT, Difference, base_name, noise, worst
from onnxgrad.verify.evidence import Regions
from onnxgrad.verify.feeds.proof_cases import Results
from onnxgrad.verify.float64_check import PERTURBED_RUNS, Oracle
from onnxgrad.verify.onnxruntime_check import as_computed
from onnxgrad.verify.proof_model import ProofModel, proof_model
from onnxgrad.verify.regions.cuts import Cut, Side, cut_models, given_name, paired
from onnxgrad.verify.report import Check, Report
from onnxgrad.verify.request import Request
from onnxgrad.verify.running.child_process import RunFailed
from onnxgrad.verify.running.session import open_session
from onnxgrad.verify.tolerance import CHAOTIC, NOISE_FACTOR, floor_of
from onnxgrad.verify.trials import Found, Trial
from onnxgrad.vocabulary import CHECKS
from onnxgrad.wording import counted

CHECK = "regions"
Compared = Callable[[ProofModel, ProofModel, Request], Report]
_MOST_WEIGHTS = 1 << 28  # elements
_MOST_BYTES = 1 << 28  # of the original's values at all cuts, over all cases


@dataclass
class Judgement:
    """The result of a comparison by regions: for the report, and its findings."""

    regions: Regions
    check: Check
    differences: Sequence[Difference]
    unproved: Sequence[str]

    @property
    def agrees(self) -> bool:
        """True if every region was judged and agrees."""
        return not self.unproved and all(d.ok for d in self.differences)

    def settle(self, found: Found) -> None:
        """Adds the findings to those of the whole comparison. If every region agrees, accepts
        differences of whole runs that do not exceed the original's own by far.
        """
        failed = bool(found.failing() or found.many_ties())
        found.add(CHECK, self.differences)
        if not failed or not self.agrees:
            found.unproved += self.unproved if failed else ()
            return
        for key, d in found.differences.items():
            allowed = NOISE_FACTOR * self.regions.noise.get(d.output, 0.0)
            if key[0] in CHECKS and not d.ok and d.rel <= allowed:
                found.differences[key] = replace(d, tolerance=allowed, allowed=allowed)
        found.excuses.clear()


def by_regions(
    models: tuple[ProofModel, ProofModel],
    trials: Sequence[Trial],
    oracle: Oracle | None,
    request: Request,
    found: Found,
    compared: Compared,
) -> Judgement | None:
    """Compares the models by regions with `compared`. Returns None if that cannot change the
    verdict: the whole comparison succeeded without the original's noise, the original agrees with
    itself, or has no node to cut at.
    """
    failing = found.failing() or ([] if found.many_ties() else found.on_noise())
    names = {base_name(d.output, trials[0].expected): None for d in failing if not d.part}
    names |= dict.fromkeys(found.many_ties())
    if not names or request.bounds or request.excuse or not request.by_regions:
        return None
    if max(weight_elements(m.proto.graph) for m in models) > _MOST_WEIGHTS:
        return None
    if not names.keys() <= {*trials[0].expected}:
        return None
    a, b = (Side(m.weights()) for m in models)
    jumps = any(id(n) not in a.smooth for n in a.cuttable)
    own = _own_noise(trials, oracle if jumps else None, names) if a.cuttable else {}
    if not _chaotic(names, own, trials):
        return None
    ends: dict[str, Difference] = {}
    for d in (d for d in failing if not d.part):
        ends[d.output] = max(d, ends.get(d.output, d), key=lambda end: end.rel)
    regions = Regions({}, tuple(ends.values()), own)
    pairs = [paired(a, b), paired(a, b, names=False)]
    # pairs of which all regions agree are right; the names of another export may be those of
    # other values
    first: Judgement | None = None
    if [c.others for c in pairs[0][0]] == [c.others for c in pairs[1][0]] or pairs[1][1]:
        del pairs[1]
    for pair in pairs:
        judged = _cut_at(a, b, *pair, trials, request, regions, compared)
        if judged.agrees:
            return judged
        first = first or judged
    return first


def _cut_at(
    a: Side,
    b: Side,
    cuts: Sequence[Cut],
    left: Sequence[NodeProto],
    trials: Sequence[Trial],
    request: Request,
    regions: Regions,
    compared: Compared,
) -> Judgement:
    """Compares the models between these cuts."""
    regions = replace(regions, cuts=dict(Counter(operator(cut.node) for cut in cuts)))
    if not cuts:
        return _judgement(None, cuts, regions, left)
    try:
        cases = [_with_results(a, cuts, trial.feeds, request) for trial in trials]
        if sum(np.asarray(v).nbytes for case in cases for v in case.values()) > _MOST_BYTES:
            raise CannotRun("the values at the cuts are too large")
        first, second = cut_models(a, b, cuts, cases[0])
        report = compared(first, second, _request(request, first, cases))
    except LimitReached:
        raise
    except OnnxgradError as error:
        why = error.reason if isinstance(error, RunFailed) else str(error)
        return Judgement(regions, Check(CHECK, False, why), [], [f"regions were not judged: {why}"])
    return _judgement(report, cuts, regions, left)


def _own_noise(
    trials: Sequence[Trial], oracle: Oracle | None, names: Collection[str]
) -> dict[str, float]:
    """Returns how far the original differs from itself, by output: in the runs of the proof, and if
    these are alike, when every result is rounded differently.
    """
    found: dict[str, float] = {}
    for trial in trials:
        found |= {name: max(value, found.get(name, 0.0)) for name, value in trial.noise.items()}
    for trial in trials if oracle is not None and not _chaotic(names, found, trials) else ():
        for seed in range(PERTURBED_RUNS):
            moved = oracle.rounded(trial.feeds, seed)  # type: ignore[union-attr]  # not None here
            if moved is None:
                return found
            again = as_computed(trial.with_parts(moved), trial.expected)
            for name, value in noise([trial.expected, again], trial.alive).items():
                found[name] = max(value, found.get(name, 0.0))
    return found


def _chaotic(names: Collection[str], own: Mapping[str, float], trials: Sequence[Trial]) -> bool:
    """True if the original differs from itself by more than rounding in each of these outputs."""
    for name in names:
        value = trials[0].expected.get(name)
        least = floor_of(value.dtype.name) if isinstance(value, np.ndarray) else 0.0
        if own.get(name, 0.0) <= (max(least, CHAOTIC) if least else 0.0):
            return False
    return True


def _with_results(side: Side, cuts: Sequence[Cut], feeds: Results, request: Request) -> Results:
    """Returns feeds with the results of all cuts in a run of the original. Raises RunFailed."""
    names = list(dict.fromkeys(name for cut in cuts for name in cut.results))
    marked = copy_of(side.proto)
    del marked.graph.output[:]
    marked.graph.output.extend(ValueInfoProto(name=name) for name in names)
    settings = request.settings
    session = open_session(
        proof_model(marked).source, provider=settings.provider, optimize=False,
        threads=settings.threads, may_idle=True,
    )  # fmt: skip
    results = session.run(feeds)
    return {**feeds, **{given_name(name): results[name] for name in names}}


def _request(request: Request, model: ProofModel, cases: Sequence[Results]) -> Request:
    return replace(
        request,
        early=None,
        inputs=cases,
        dims=None,
        allow_empty=[v.name for v in model.proto.graph.output],
        coverage=None,
        layers=False,
        keep=None,
        by_regions=False,
    )


def _judgement(
    report: Report | None, cuts: Sequence[Cut], regions: Regions, left: Sequence[NodeProto]
) -> Judgement:
    """Returns what the comparison of the regions shows. `report`: that of the cut models."""
    apart = f" ({len(left)} such operators)" if len(left) > 1 else ""
    unproved = [
        f"not judged: {operator(n)} of {n.output[0]!r} has no counterpart{apart}" for n in left[:1]
    ]
    if report is None:
        return Judgement(regions, Check(CHECK, False, unproved[0]), [], unproved)
    unproved += [f"in a region: {why}" for why in report.unproved]
    wrong = [replace(d, part=False) for d in report.differences if d.answer == DIFFERENT]
    # a kernel of onnxruntime that saturates decides this, not the second model
    same = {d.output for d in report.differences if d.check == "float64" and d.ok}
    unproved += [
        f"in a region: {d}, in onnxruntime only"
        for d in wrong
        if d.check == "onnxruntime" and d.output in same
    ][:1]
    wrong = [d for d in wrong if d.check != "onnxruntime" or d.output not in same]
    doubtful = sum(not cut.certain for cut in cuts)
    if wrong and doubtful:
        pairs = f"{counted(doubtful, 'cut')} may be paired wrongly"
        unproved += [f"{wrong[0]}, but {pairs}"]
        wrong = []
    most = worst(report.differences)
    checks = [check for check in report.checks.values() if check.ran]
    check = Check(
        CHECK,
        bool(checks),
        report.gaps,
        len(report.cases),
        most,
        max(check.compared for check in checks),
    )
    found = wrong or [d for d in [most] if d is not None and d.ok]
    return Judgement(replace(regions, worst=most), check, found, unproved)
