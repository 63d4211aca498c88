"""The onnxruntime check of a proof: both models run as deployed, and are compared within the
original's own noise.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto

from onnxgrad.errors import CannotRun
from onnxgrad.ir import domains
from onnxgrad.ir.protobufs import every_node, weight_elements
from onnxgrad.ir.storage.external_data import outside
from onnxgrad.verify.compare import Difference, noise
from onnxgrad.verify.feeds.edge_cases import WIDE_CASE
from onnxgrad.verify.feeds.proof_cases import Results
from onnxgrad.verify.interface import Demands
from onnxgrad.verify.non_finite import Apart
from onnxgrad.verify.proof_model import ProofModel
from onnxgrad.verify.report import Check
from onnxgrad.verify.request import Settings, legal_ways
from onnxgrad.verify.running.child_process import RunFailed
from onnxgrad.verify.running.session import Session, versions
from onnxgrad.verify.scales import ScaleSearch
from onnxgrad.verify.tolerance import at_tie, in_onnxruntime, is_float
from onnxgrad.verify.trials import Found, Trial
from onnxgrad.wording import counted


def limit_reached(what: str, error: RunFailed) -> str:
    """Returns the report's text for a model that reached a limit."""
    return f"{what} reached a limit: {error.reason}"


def open_original(original: ProofModel, settings: Settings) -> Session:
    """Opens the original with optimisations off. Raises InputError if it does not load, and
    RunFailed if it reaches a limit.
    """
    try:
        return settings.open(original.source, optimize=False)
    except RunFailed as error:
        if error.limit:
            raise
        raise CannotRun(
            f"the original model does not load in onnxruntime: {error.reason}"
        ) from error


def onnxruntime_check(
    original: ProofModel,
    candidate: ProofModel,
    trials: list[Trial],
    found: Found,
    settings: Settings,
    demands: Demands,
    at_zero: Sequence[Trial] = (),
    apart: Apart | None = None,
    there: Settings | None = None,
    scales: ScaleSearch | None = None,
) -> Check:
    """Calibrates on the original, then compares the candidate with optimisations on and off.
    `at_zero`: cases with an empty dimension, which count only if the original runs them again and
    agrees. `apart`: the case of NaN and infinite values, which decides nothing. `there`: the
    settings of the candidate, if they differ. `scales`: the search over scales of the inputs.
    """
    agreeing, where = list(at_zero), there or settings
    why = calibrate(original, trials, settings, agreeing, apart, found.notes)
    if where.runtime is not None:
        _add_noise_of(where, candidate, trials, demands)
    check = held_against(
        candidate, trials, found, where, demands, why, agreeing, original.proto, apart, scales
    )
    if check.ran and not why and where == settings and is_int8(original.proto):
        found.notes += lost_kernels(original, candidate, settings)
    return check


_MOST_WRITTEN = 1 << 23  # elements of weights


def stored_fast(proto: ModelProto) -> bool:
    """True if onnxruntime stores the optimised model, with all its weights, faster than it
    optimises again.
    """
    return weight_elements(proto.graph) <= _MOST_WRITTEN and not outside(proto)


_INT8 = ("QuantizeLinear", "DequantizeLinear")
_INTEGER_KERNEL = re.compile(r"QLinear|QGemm|QAttention|MatMulInteger|ConvInteger|MatMulNBits")


def is_int8(proto: ModelProto) -> bool:
    """True if onnxruntime may fuse nodes of a model with its QuantizeLinear and DequantizeLinear to
    integer kernels.
    """
    return any(node.op_type in _INT8 for node in every_node(proto.graph.node))


def lost_kernels(original: ProofModel, candidate: ProofModel, settings: Settings) -> Iterator[str]:
    """Yields a note if onnxruntime fuses fewer nodes of the candidate than of the original to
    integer kernels, and so leaves more nodes that quantise. It fuses at default optimisations only.
    """
    counts, alone = [], replace(settings, early=None)
    for model in (original, candidate):
        if not stored_fast(model.proto):
            return
        try:
            session = alone.open(model.source, optimize=True, again=True)
            kinds = [n.op_type for n in every_node(session.optimized().graph.node)]
        except RunFailed:  # the check has met and judged it
            return
        fused = sum(_INTEGER_KERNEL.match(kind) is not None for kind in kinds)
        if not kinds:
            return
        counts.append((fused, sum(kinds.count(kind) for kind in _INT8)))
    (before, around), (after, left) = counts
    if after < before and left > around:
        yield (
            f"onnxruntime has {counted(before, 'integer kernel')} in the original and {after} in "
            f"the second model, which keeps {left - around} more QuantizeLinear and "
            "DequantizeLinear nodes"
        )


def _add_noise_of(
    there: Settings, candidate: ProofModel, trials: Sequence[Trial], demands: Demands
) -> None:
    """Adds the noise of another runtime: its differences from itself between one and two
    threads.
    """
    names = demands.names
    ways = [replace(there, threads=n) for n in (there.threads, 2 if there.threads == 1 else 1)]
    with contextlib.suppress(RunFailed):  # met again where it is judged
        sessions = [way.open(candidate.source, optimize=True) for way in ways]
        for trial in trials:
            feeds = names.feeds(trial.feeds)
            runs = [trial.with_parts(names.results(session.run(feeds))) for session in sessions]
            for name, value in noise(runs, trial.alive).items():
                trial.noise[name] = max(value, trial.noise.get(name, 0.0))


_NO_KERNEL = re.compile(r"Could not find an implementation for (\w+)\((\d+)\)")


def without_kernel(reason: str, original: ModelProto | None) -> str:
    """Returns a sentence for the operator of which onnxruntime has no kernel, with the newest opset
    at which it has that of the original; an empty text for another reason.
    """
    found = _NO_KERNEL.search(reason)
    if found is None:
        return ""
    name, opset = found[1], int(found[2])
    lacks = f"onnxruntime {versions()['onnxruntime']} has no kernel of {name} of opset {opset}"
    runs = domains.versions(original.opset_import).get("", 1) if original is not None else opset
    try:
        old = [onnx.defs.get_schema(name, v, "").since_version for v in (runs, opset - 1)]
    except onnx.defs.SchemaError:
        return lacks
    if runs >= opset or old[0] != old[1]:
        return lacks
    return f"{lacks}; the newest opset at which {name} runs is {opset - 1}"


def opened_as_written(
    original: ProofModel,
    candidate: ProofModel,
    found: Found,
    settings: Settings,
    demands: Demands,
) -> None:
    """Opens the candidate as its file is, if the original opens. The proof itself opens models in
    which draws replace random operators.
    """
    try:
        settings.open(candidate.source, optimize=True)
    except RunFailed as error:
        if error.limit:
            found.unproved.append(limit_reached(demands.of, error))
            return
        with contextlib.suppress(RunFailed):
            settings.open(original.source, optimize=True)
            _refused(f"{demands.of} does not load", error, found, original.proto)


def _refused(what: str, error: RunFailed, found: Found, original: ModelProto | None) -> str:
    """Adds that a candidate does not run. Returns the sentence of a missing kernel, with which
    nothing is proved; otherwise the candidate is different.
    """
    lacks = without_kernel(error.reason, original)
    if lacks:
        found.unproved.append(f"{what}: {lacks}")
        return lacks
    reason = f"{what}: {error.reason}"
    if error.stage == "killed":
        reason += f"; this crash is a fault of onnxruntime {versions()['onnxruntime']}"
    found.add("onnxruntime", [Difference("(model)", None, None, None, math.inf, 0.0, reason)])
    return ""


def held_against(
    candidate: ProofModel,
    trials: Sequence[Trial],
    found: Found,
    settings: Settings,
    demands: Demands,
    why: str = "",
    at_zero: Sequence[Trial] = (),
    original: ModelProto | None = None,
    apart: Apart | None = None,
    scales: ScaleSearch | None = None,
) -> Check:
    """Compares the candidate, with optimisations on and off, with the expected results of the
    trials. `why`: the reason why the original does not run with optimisations on; then the
    candidate runs with them off only. `original`: for the reasons of a candidate that does not run.

    If the original is int8, the candidate is also compared with the original as deployed: the int8
    kernels may differ from the original without optimisations by more than the rewrite does.
    """
    idle: list[bool] = []
    int8 = original is not None and is_int8(original)
    for optimize in (False,) if why else (True, False):
        how = f"with optimisations {'on' if optimize else 'off'}"
        try:
            session = settings.open(candidate.source, optimize=optimize)
            results = [
                demands.names.results(session.run(demands.names.feeds(trial.feeds)))
                for trial in trials
            ]
        except RunFailed as error:
            if error.limit:
                found.unproved.append(limit_reached(f"{demands.of} {how}", error))
                continue
            lacks = _refused(f"{demands.of} does not run {how}", error, found, original)
            if lacks:
                return Check("onnxruntime", False, lacks)
            continue
        idle.append(session.idle)
        if session.placement:
            placed = ", ".join(f"{count} on {name}" for name, count in session.placement.items())
            found.notes.append(f"nodes {how}: {placed}")
        for trial, got in zip(trials, results):
            _judge(trial, got, found, demands, how, optimize, int8)
        if optimize or why:
            _hold_more(session, at_zero, apart, found, demands, how, scales)
    if idle and all(idle):
        found.idle[settings.name] = None
    return found.check("onnxruntime", len(trials), why)


def _judge(
    trial: Trial, got: Results, found: Found, demands: Demands, how: str, optimize: bool, int8: bool
) -> None:
    """Adds the differences of one case from the expected results; of an int8 model with
    optimisations on, also from the original as deployed.
    """
    paths = {name: demands.on_paths(name) for name in trial.expected}
    limits = demands.allows(in_onnxruntime(trial.expected, _noise(trial), paths))
    near = {name: at_tie(types) for name, types in paths.items()}
    deploys = optimize and trial.deploys(got)
    same = trial.expected if deploys else got
    found.add("onnxruntime", trial.judge(trial.expected, same, limits, near), trial.expected, how)
    if int8 and optimize and not deploys and trial.deployed is not None:
        deployed = trial.with_parts(trial.deployed)
        differences = trial.judge(deployed, got, limits, near)
        found.add("onnxruntime", differences, deployed, f"{how}, as deployed")


# of wide values: a Softmax of scores of 1e4 keeps four digits in float32, whatever the original's
# own runs show; float64 judges them with all digits
_WIDE_NOISE = 9e-5


def _noise(trial: Trial) -> Mapping[str, float]:
    if not trial.case.how.startswith(WIDE_CASE):
        return trial.noise
    return {name: max(trial.noise.get(name, 0.0), _WIDE_NOISE) for name in trial.expected}


def _hold_more(
    session: Session, at_zero: Sequence[Trial], apart: Apart | None, found: Found,
    demands: Demands, how: str, scales: ScaleSearch | None,
) -> None:  # fmt: skip
    """Compares the candidate at NaN and infinite values, and at empty dimensions. Adds a note if it
    does not run at these, because an operator may refuse inputs that the replaced chain accepts.
    """
    if apart is not None:
        apart.hold(session, demands)
    if scales is not None:
        scales.hold(session, found, how)
    for trial in at_zero:
        symbols = [name for name, size in trial.case.dims.items() if size == 0]
        try:
            feeds = demands.names.feeds(trial.feeds)
            got = demands.names.results(session.run(feeds, optional=True))
        except RunFailed as error:
            why = f"runs in the original, and not in {demands.of}: {error.reason}"
            found.not_at_zero.update(dict.fromkeys(symbols, why))
            continue
        own = in_onnxruntime(trial.expected, trial.noise, demands.dtypes)
        differences = trial.judge(trial.expected, got, demands.allows(own), {})
        if not all(difference.ok for difference in differences):
            sizes = ", ".join(f"{symbol}=0" for symbol in symbols)
            found.notes.append(f"the models differ {how} at {sizes}")
            found.add("onnxruntime", differences, trial.expected, f"{how}, {sizes}")


def calibrate(
    original: ProofModel,
    trials: list[Trial],
    settings: Settings,
    at_zero: list[Trial] | None = None,
    apart: Apart | None = None,
    notes: list[str] | None = None,
) -> str:
    """Widens the noise by the original's other legal runs and by its float64 results. Returns why
    the original does not run with optimisations on, or an empty text. Removes from `at_zero` the
    cases that do not run there or disagree, and from `trials` the added cases at which it fails,
    with `notes`.
    """
    for trial in trials:
        if trial.exact is not None:
            trial.widen(as_computed(trial.exact, trial.expected))
    for setting, optimize in legal_ways(settings):
        try:
            session = setting.open(original.source, optimize=optimize)
            first = setting == settings
            # added cases agree with float64, so one more run of them is enough
            again = [t for t in trials if first or not t.case.how]
            lost = _run_again(session, again, notes, deployed=first)
            trials[:] = [t for t in trials if id(t) not in lost]
            if at_zero and first:
                at_zero[:] = [trial for trial in at_zero if _widened(trial, session)]
            if apart is not None and first:
                apart.repeat(session)
        except RunFailed as error:
            if setting.provider != settings.provider:
                continue  # a model may need its provider's own operators
            return (
                f"the original does not run with optimisations on ({error.reason}): compared with "
                "optimisations off"
            )
    return ""


def _run_again(
    session: Session, trials: Sequence[Trial], notes: list[str] | None, *, deployed: bool
) -> set[int]:
    """Widens the noise of trials by runs in a session. Returns the identities of the added cases
    that it does not run.
    """
    lost = set()
    for trial in trials:
        try:
            again = session.run(trial.feeds)
        except RunFailed as error:
            if notes is None or not trial.case.how:
                raise
            notes.append(f"left out: {trial.case} (with optimisations on: {error.reason})")
            lost.add(id(trial))
            continue
        trial.deployed = again if deployed else trial.deployed
        trial.widen(trial.with_parts(again))
    return lost


def _widened(trial: Trial, session: Session) -> bool:
    """Returns whether a session runs the feeds of a trial and agrees with it. Widens the trial's
    noise.
    """
    try:
        again = session.run(trial.feeds, optional=True)
    except RunFailed:
        return False
    trial.widen(again)
    return trial.agrees(again)


def as_computed(exact: Results, computed: Results) -> Results:
    """Returns float64 results in the dtypes of onnxruntime's results."""
    return {name: _cast_like(exact.get(name), value) for name, value in computed.items()}


def _cast_like(value: Any, like: Any) -> Any:
    if isinstance(value, list) and isinstance(like, list) and len(value) == len(like):
        return [_cast_like(v, w) for v, w in zip(value, like)]
    if isinstance(value, dict) and isinstance(like, dict) and value.keys() == like.keys():
        return {k: _cast_like(np.asarray(v), np.asarray(like[k])) for k, v in value.items()}
    if isinstance(value, np.ndarray) and isinstance(like, np.ndarray) and is_float(like):
        with np.errstate(over="ignore"):  # beyond 65504 float16 has infinity
            return value.astype(like.dtype)
    return value
