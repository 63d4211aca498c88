"""`verify`: does model b compute what model a computes?

Two legs. In the float64 leg both graphs run in our float64 reference, where reordered arithmetic costs about 1e-15 and
a real change shows. In the onnxruntime leg both run as deployed, against a tolerance calibrated on the original's own
noise: what it differs by between optimisations on and off, one and two threads, and from the float64 reference.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from onnx import TensorProto

from onnxgrad.errors import InputError
from onnxgrad.limits import bounded
from onnxgrad.verify.account import Found, Trial
from onnxgrad.verify.compare import NOISE_FACTOR, UNSTABLE, Difference, compare, noise, tolerances
from onnxgrad.verify.feeds.proof_cases import Attempt, Inputs, Results, choose_cases
from onnxgrad.verify.interface import interface_differences
from onnxgrad.verify.new_weights import new_weights
from onnxgrad.verify.oracle import Oracle, as_computed
from onnxgrad.verify.report import Leg, Report
from onnxgrad.verify.running.run import Model, RunFailed, Session, open_session
from onnxgrad.verify.subject import Subject, subject

LEGS = ("float64", "onnxruntime")
EXACT = 1e-9  # no weight was recomputed: the two graphs differ by the order of float64 sums only
EXACT_LIMIT = 1e-7  # and however ill-conditioned the model, what moves by more than this is a change
# Weights were recomputed and rounded to their type again, by at most 2**-24, 2**-11, 2**-8 each; depth adds to that.
ROUNDED: dict[int, float] = {
    TensorProto.DOUBLE: EXACT,
    TensorProto.FLOAT: 1e-6,
    TensorProto.FLOAT16: 4 * 2.0**-11,
    TensorProto.BFLOAT16: 4 * 2.0**-8,
}
ROUNDED_FACTOR = 3.0  # or this many times the original's own error against float64, where that is larger
_REFERENCE = "reference"  # the stage of a RunFailed that our reference, not onnxruntime, caused
_JITTER = 2.0**-51
_PERTURBED_RUNS = 3


@dataclass(frozen=True)
class _Settings:
    provider: str
    threads: int

    def open(self, model: Model, *, optimize: bool) -> Session:
        return open_session(model, provider=self.provider, optimize=optimize, threads=self.threads)


@bounded
def verify(
    a: Model,
    b: Model,
    *,
    inputs: Inputs | None = None,
    provider: str = "cpu",
    dims: Mapping[str, int] | None = None,
    seeds: Sequence[int] = (0, 1),
    legs: Sequence[str] = LEGS,
    float64_exact: bool | None = None,
    float64_budget: float = 20.0,
    threads: int = 1,
    timeout: float | None = None,
    max_memory: int | str | None = None,
    allow_empty: Collection[str] = (),
) -> Report:
    """Compare model `b` with the original `a` by running both. That they differ is in the report, not an exception;
    so is that nothing is known: an output without one finite element to compare, or a limit that was reached.

    inputs: one or several sets of arrays by input name, or files (.npz, .npy, .pb); None generates feeds from `seeds`,
    at two sizes of every symbolic dimension where the original runs at two. dims: symbol -> size, fixed.
    float64_exact: no arithmetic was done on weights, so the float64 leg may ask for 1e-9 of max|y|; otherwise what
    rounding to the weights' dtype costs (1e-6 in float32), or 3 times the original's own error; None looks at the
    weights. float64_budget: seconds for that leg. allow_empty: outputs that may have nothing to compare.
    timeout: seconds for everything (300); max_memory: bytes, or such as "4GB", for each process that runs a model
    (half of what there is).

    Raises InputError when the original cannot be run or fed, or the provider is missing, LimitReached.
    """
    start = time.monotonic()
    unknown = [leg for leg in legs if leg not in LEGS]
    if unknown or not legs:
        raise InputError(
            f"unknown leg {unknown[0]!r}: choose from {', '.join(LEGS)}" if unknown else "no leg was asked for"
        )
    original, candidate = subject(a), subject(b)
    outputs = [value.name for value in original.proto.graph.output]
    strange = [name for name in allow_empty if name not in outputs]
    if strange:
        raise InputError(f"--allow-empty {strange[0]}: the model has no such output (outputs: {', '.join(outputs)})")
    broken = interface_differences(original.proto, candidate.proto)
    if broken:
        skipped = {name: Leg(name, False, "the interfaces differ") for name in legs}
        return Report(False, tuple(broken), skipped, (), provider, seconds=time.monotonic() - start)
    settings = _Settings(provider, threads)
    oracle = Oracle(original, candidate, float64_budget) if "float64" in legs else None
    session = None
    try:
        session = _open_original(original, settings) if "onnxruntime" in legs else None
        chosen = choose_cases(original.proto, inputs, dims, seeds, _attempt(session, oracle))
    except (RunFailed, InputError) as error:
        cause = error if isinstance(error, RunFailed) else error.__cause__
        if not isinstance(cause, RunFailed) or not (cause.limit or cause.stage == _REFERENCE):
            raise
        skipped = {name: Leg(name, False, cause.reason) for name in legs}
        unproved = (
            _limit("the original model", cause) if cause.limit else f"the float64 leg could not run ({cause.reason})",
        )
        return Report(False, (), skipped, (), provider, seconds=time.monotonic() - start, unproved=unproved)
    trials = [Trial.of(case) for case in chosen]
    found = Found()
    ran: dict[str, Leg] = {}
    if oracle is not None:
        for trial in trials:
            trial.exact = trial.expected if session is None else oracle.original(trial.feeds)
    if session is not None:
        ran["onnxruntime"] = _onnxruntime_leg(original, candidate, trials, found, settings)
    if oracle is not None:
        computed = set() if float64_exact else new_weights(original, candidate, claimed=float64_exact is False)
        if float64_exact is False:
            computed = computed or {TensorProto.FLOAT}
        ran["float64"] = _float64_leg(oracle, trials, found, computed)
    if not any(leg.ran for leg in ran.values()):
        found.unproved.append(f"the float64 leg could not run ({ran['float64'].why})")
    found.unproved += _empty(found, outputs, allow_empty)
    return _report(found, ran, trials, provider, time.monotonic() - start)


def _attempt(session: Session | None, oracle: Oracle | None) -> Attempt:
    """A run of the original, in onnxruntime where that leg was asked for: it shows whether it takes some feeds."""

    def attempt(feeds: Results) -> Results:
        if session is not None:
            return session.run(feeds)
        found = oracle.original(feeds) if oracle is not None else None
        if found is None:
            raise RunFailed(_REFERENCE, oracle.why if oracle is not None else "")
        return found

    return attempt


def _limit(what: str, error: RunFailed) -> str:
    return f"{what} reached a limit: {error.reason}"


def _empty(found: Found, outputs: Sequence[str], allowed: Collection[str]) -> list[str]:
    """Nothing compared is nothing proved."""
    compared = found.compared()
    empty = [name for name in outputs if not compared.get(name) and name not in allowed]
    if not empty or found.unproved or not all(d.ok for d in found.differences.values()):
        return []
    option = " ".join(f"--allow-empty {name}" for name in empty)
    return [f"nothing finite to compare in {', '.join(empty)} (give inputs with --input, or accept it: {option})"]


def _report(found: Found, ran: Mapping[str, Leg], trials: Sequence[Trial], provider: str, seconds: float) -> Report:
    own: dict[str, float] = {}
    for trial in trials:
        own |= {name: max(value, own.get(name, 0.0)) for name, value in trial.noise.items()}
    differences = tuple(found.differences.values())
    return Report(
        ok=all(difference.ok for difference in differences) and not found.unproved,
        differences=differences,
        legs={name: ran[name] for name in LEGS if name in ran},
        cases=tuple(trial.case for trial in trials),
        provider=provider,
        unstable=tuple(name for name, value in own.items() if value > UNSTABLE),
        notes=tuple(found.notes),
        noise=own,
        seconds=seconds,
        compared=found.compared(),
        unproved=tuple(found.unproved),
    )


def _open_original(original: Subject, settings: _Settings) -> Session:
    try:
        return settings.open(original.source, optimize=False)
    except RunFailed as error:
        if error.limit:
            raise
        raise InputError(
            f"the original model does not load in onnxruntime: {error.reason}; skip the proof with --no-verify"
        ) from error


def _onnxruntime_leg(
    original: Subject, candidate: Subject, trials: Sequence[Trial], found: Found, settings: _Settings
) -> Leg:
    """Calibrate on the original, then compare the candidate with optimisations on and off."""
    for trial in trials:
        if trial.exact is not None:
            trial.widen(noise([trial.expected, as_computed(trial.exact, trial.expected)]))
    why = _calibrate(original, trials, settings)
    for optimize in (False,) if why else (True, False):
        how = f"with optimisations {'on' if optimize else 'off'}"
        try:
            session = settings.open(candidate.source, optimize=optimize)
            results = [session.run(trial.feeds) for trial in trials]
        except RunFailed as error:
            if error.limit:
                found.unproved.append(_limit(f"the second model {how}", error))
                continue
            reason = f"the second model does not run {how}: {error.reason}"
            found.add("onnxruntime", [Difference("(model)", None, None, None, math.inf, 0.0, reason)])
            continue
        if session.placement:
            placed = ", ".join(f"{count} on {name}" for name, count in session.placement.items())
            found.notes.append(f"nodes {how}: {placed}")
        for trial, got in zip(trials, results):
            differences = compare(trial.expected, got, tolerances(trial.expected, trial.noise))
            found.add("onnxruntime", differences, trial.expected, how)
    return found.leg("onnxruntime", len(trials), why)


def _calibrate(original: Subject, trials: Sequence[Trial], settings: _Settings) -> str:
    """Widen the noise by the original's other legal runs; why not, where it does not run with optimisations on."""
    other_threads = 2 if settings.threads == 1 else 1
    legal = [(settings, True), (_Settings(settings.provider, other_threads), True)]
    if settings.provider != "cpu":
        legal.append((_Settings("cpu", settings.threads), False))
    for setting, optimize in legal:
        try:
            session = setting.open(original.source, optimize=optimize)
            for trial in trials:
                trial.widen(noise([trial.expected, session.run(trial.feeds)]))
        except RunFailed as error:
            if setting.provider != settings.provider:
                continue  # a model may need its provider's own operators
            return f"the original does not run with optimisations on ({error.reason}): compared with optimisations off"
    return ""


def _float64_leg(oracle: Oracle, trials: Sequence[Trial], found: Found, computed: Collection[int]) -> Leg:
    """Compare the candidate's float64 results with the original's; as many cases as the budget allows.

    `computed`: the float types in which weights were recomputed; empty asks for EXACT.
    """
    rounded = max((ROUNDED.get(dtype, ROUNDED[TensorProto.FLOAT]) for dtype in computed), default=0.0)
    count = 0
    for trial in trials:
        got = oracle.candidate(trial.feeds) if trial.exact is not None else None
        if trial.exact is None or got is None:
            break
        own = {name: ROUNDED_FACTOR * trial.noise.get(name, 0.0) for name in trial.exact}
        limits = {name: max(rounded, own[name]) if rounded else EXACT for name in trial.exact}
        limits = _zero_for_integers(trial.exact, limits)
        differences = compare(trial.exact, got, limits)
        if not all(difference.ok for difference in differences):
            differences = _allow_for_condition(oracle, trial, trial.exact, got, limits, found) or differences
        found.add("float64", differences, trial.exact)
        count += 1
    if rounded and count:
        names = ", ".join(sorted(TensorProto.DataType.Name(dtype).lower() for dtype in computed))
        found.notes.append(
            f"weights were recomputed and rounded to their dtype ({names}), so the float64 leg asks for {rounded:g} "
            f"of max, or {ROUNDED_FACTOR:g} times what the original's own arithmetic costs"
        )
    return found.leg("float64", count, oracle.why if count < len(trials) else "")


def _zero_for_integers(expected: Results, limits: Mapping[str, float]) -> dict[str, float]:
    """What is no float must be equal."""
    return {name: limit if tolerances(expected, {})[name] else 0.0 for name, limit in limits.items()}


def _allow_for_condition(
    oracle: Oracle, trial: Trial, expected: Results, got: Results, limits: Mapping[str, float], found: Found
) -> list[Difference] | None:
    """Rerun the original with the last bits of every sum perturbed: what that moves is rounding, not a change.

    Floats are excused up to EXACT_LIMIT, and beyond it only where the perturbed original itself moves further (values
    that are rounded to integers on their way), which is noted. None where the budget does not allow the runs.
    """
    runs = [expected]
    for seed in range(_PERTURBED_RUNS):
        perturbed = oracle.original(trial.feeds, _JITTER, seed)
        if perturbed is None:
            return None
        runs.append(perturbed)
    own = noise(runs)
    wider = {}
    for name, limit in limits.items():
        moved = own.get(name, 0.0)
        chaotic = moved > EXACT_LIMIT or not limit
        wider[name] = max(limit, NOISE_FACTOR * moved if chaotic else min(NOISE_FACTOR * moved, EXACT_LIMIT))
        if moved > EXACT_LIMIT:
            found.notes.append(f"one bit of rounding moves {name!r} of the original by {moved:.1e} even in float64")
    return compare(expected, got, wider)
