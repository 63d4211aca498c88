"""`verify`: does model b compute what model a computes?

Two legs. In the float64 leg both graphs run in our float64 reference, where reordered arithmetic costs about 1e-15 and
a real change shows. In the onnxruntime leg both run as deployed, against a tolerance calibrated on the original's own
noise: what it differs by between optimisations on and off, one and two threads, and from the float64 reference.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from onnxgrad.errors import InputError
from onnxgrad.verify.cases import Inputs, Results, choose_cases
from onnxgrad.verify.compare import NOISE_FACTOR, UNSTABLE, Difference, compare, noise, tolerances, worst
from onnxgrad.verify.interface import interface_differences
from onnxgrad.verify.oracle import Oracle, as_computed
from onnxgrad.verify.report import Case, Leg, Report
from onnxgrad.verify.run import Model, RunFailed, Session, open_session
from onnxgrad.verify.subject import Subject, subject

LEGS = ("float64", "onnxruntime")
EXACT = 1e-9  # no weight was recomputed: the two graphs differ by the order of float64 sums only
EXACT_LIMIT = 1e-7  # and however ill-conditioned the model, what moves by more than this is a change
ROUNDED = 1e-6  # weights were recomputed and rounded to float32 again (6e-8 each, grown by depth)
ROUNDED_FACTOR = 3.0  # or this many times the original's own error of float32 against float64, where that is larger
_JITTER = 2.0**-51
_PERTURBED_RUNS = 3


@dataclass
class _Trial:
    """One case of a proof: its feeds, and what became known about the original on them."""

    case: Case
    feeds: Results
    exact: Results | None = None  # of the float64 reference
    noise: dict[str, float] = field(default_factory=dict)

    def widen(self, own: Mapping[str, float]) -> None:
        for name, value in own.items():
            self.noise[name] = max(self.noise.get(name, 0.0), value)


@dataclass
class _Found:
    """What accumulates during one proof."""

    differences: dict[tuple[str, str], Difference] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, leg: str, found: Iterable[Difference]) -> None:
        """Keep the worst difference of every output in every leg."""
        for difference in found:
            key = (leg, difference.output)
            chosen = worst([self.differences.get(key, difference), difference])
            self.differences[key] = chosen or difference

    def of(self, leg: str) -> list[Difference]:
        return [difference for (name, _), difference in self.differences.items() if name == leg]


@dataclass(frozen=True)
class _Settings:
    provider: str
    threads: int
    timeout: float

    def open(self, model: Model, *, optimize: bool) -> Session:
        return open_session(
            model, provider=self.provider, optimize=optimize, threads=self.threads, timeout=self.timeout
        )


def verify(
    a: Model,
    b: Model,
    *,
    inputs: Inputs | None = None,
    provider: str = "cpu",
    dims: Mapping[str, int] | None = None,
    seeds: Sequence[int] = (0, 1),
    legs: Sequence[str] = LEGS,
    float64_exact: bool = True,
    float64_budget: float = 20.0,
    threads: int = 1,
    timeout: float = 120.0,
) -> Report:
    """Compare model `b` with the original `a` by running both. That they differ is in the report, not an exception.

    inputs: one or several sets of arrays by input name, or files (.npz, .npy, .pb); None generates feeds from `seeds`,
    at two sizes of every symbolic dimension where the original runs at two. dims: symbol -> size, fixed.
    float64_exact: no arithmetic was done on weights, so the float64 leg may ask for 1e-9 of max|y|; otherwise 1e-6, or
    3 times the original's own float32 error. float64_budget: seconds for that leg.

    Raises InputError when the original cannot be run or fed, or the provider is missing.
    """
    start = time.monotonic()
    unknown = [leg for leg in legs if leg not in LEGS]
    if unknown or not legs:
        raise InputError(
            f"unknown leg {unknown[0]!r}: choose from {', '.join(LEGS)}" if unknown else "no leg was asked for"
        )
    original, candidate = subject(a), subject(b)
    broken = interface_differences(original.proto, candidate.proto)
    if broken:
        skipped = {name: Leg(name, False, "the interfaces differ") for name in legs}
        return Report(False, tuple(broken), skipped, (), provider, seconds=time.monotonic() - start)
    settings = _Settings(provider, threads, timeout)
    oracle = Oracle(original, candidate, float64_budget) if "float64" in legs else None
    session = _open_original(original, settings) if "onnxruntime" in legs else None

    def attempt(feeds: Results) -> None:
        """A run that shows whether the original takes these feeds."""
        if session is not None:
            session.run(feeds, timeout=timeout)
        elif oracle is not None and oracle.original(feeds) is None:
            raise RunFailed("run", oracle.why)

    trials = [_Trial(*pair) for pair in choose_cases(original.proto, inputs, dims, seeds, attempt)]
    for trial in trials if oracle is not None else ():
        trial.exact = oracle.original(trial.feeds) if oracle is not None else None
    found = _Found()
    ran: dict[str, Leg] = {}
    if session is not None:
        _onnxruntime_leg(original, candidate, session, trials, found, settings)
        ran["onnxruntime"] = Leg("onnxruntime", True, "", len(trials), worst(found.of("onnxruntime")))
    if oracle is not None:
        ran["float64"] = _float64_leg(oracle, trials, found, exact=float64_exact)
    if not any(leg.ran for leg in ran.values()):
        raise InputError(f"the float64 leg could not run ({ran['float64'].why}); skip the proof with --no-verify")
    return _report(found, ran, trials, provider, time.monotonic() - start)


def _report(found: _Found, ran: Mapping[str, Leg], trials: Sequence[_Trial], provider: str, seconds: float) -> Report:
    own: dict[str, float] = {}
    for trial in trials:
        own |= {name: max(value, own.get(name, 0.0)) for name, value in trial.noise.items()}
    differences = tuple(found.differences.values())
    return Report(
        ok=all(difference.ok for difference in differences),
        differences=differences,
        legs={name: ran[name] for name in LEGS if name in ran},
        cases=tuple(trial.case for trial in trials),
        provider=provider,
        unstable=tuple(name for name, value in own.items() if value > UNSTABLE),
        notes=tuple(found.notes),
        noise=own,
        seconds=seconds,
    )


def _open_original(original: Subject, settings: _Settings) -> Session:
    try:
        return settings.open(original.source, optimize=False)
    except RunFailed as error:
        raise InputError(
            f"the original model does not load in onnxruntime: {error.reason}; skip the proof with --no-verify"
        ) from error


def _onnxruntime_leg(
    original: Subject,
    candidate: Subject,
    reference: Session,
    trials: Sequence[_Trial],
    found: _Found,
    settings: _Settings,
) -> None:
    """Calibrate on the original, then compare the candidate with optimisations on and off."""
    expected = [reference.run(trial.feeds, timeout=settings.timeout) for trial in trials]
    for trial, result in zip(trials, expected):
        if trial.exact is not None:
            trial.widen(noise([result, as_computed(trial.exact, result)]))
    optimised = _calibrate(original, trials, expected, found, settings)
    for optimize in (True, False) if optimised else (False,):
        try:
            session = settings.open(candidate.source, optimize=optimize)
            results = [session.run(trial.feeds, timeout=settings.timeout) for trial in trials]
        except RunFailed as error:
            reason = f"the second model does not run with optimisations {'on' if optimize else 'off'}: {error.reason}"
            found.add("onnxruntime", [Difference("(model)", None, None, None, math.inf, 0.0, reason)])
            continue
        if session.placement:
            placed = ", ".join(f"{count} on {name}" for name, count in session.placement.items())
            found.notes.append(f"nodes with optimisations {'on' if optimize else 'off'}: {placed}")
        for trial, wanted, got in zip(trials, expected, results):
            found.add("onnxruntime", compare(wanted, got, tolerances(wanted, trial.noise)))


def _calibrate(
    original: Subject, trials: Sequence[_Trial], expected: Sequence[Results], found: _Found, settings: _Settings
) -> bool:
    """Widen the noise by the original's other legal runs; False when it does not run with optimisations on."""
    other_threads = 2 if settings.threads == 1 else 1
    legal = [(settings, True), (_Settings(settings.provider, other_threads, settings.timeout), True)]
    if settings.provider != "cpu":
        legal.append((_Settings("cpu", settings.threads, settings.timeout), False))
    for setting, optimize in legal:
        try:
            session = setting.open(original.source, optimize=optimize)
            for trial, wanted in zip(trials, expected):
                trial.widen(noise([wanted, session.run(trial.feeds, timeout=settings.timeout)]))
        except RunFailed as error:
            if setting.provider != settings.provider:
                continue  # a model may need its provider's own operators
            found.notes.append(
                f"the original does not run with optimisations on ({error.reason}): compared with optimisations off"
            )
            return False
    return True


def _float64_leg(oracle: Oracle, trials: Sequence[_Trial], found: _Found, *, exact: bool) -> Leg:
    """Compare the candidate's float64 results with the original's; as many cases as the budget allows."""
    count = 0
    for trial in trials:
        got = oracle.candidate(trial.feeds) if trial.exact is not None else None
        if trial.exact is None or got is None:
            break
        limits = {
            name: EXACT if exact else max(ROUNDED, ROUNDED_FACTOR * trial.noise.get(name, 0.0)) for name in trial.exact
        }
        limits = _zero_for_integers(trial.exact, limits)
        differences = compare(trial.exact, got, limits)
        if not all(difference.ok for difference in differences):
            differences = _allow_for_condition(oracle, trial, trial.exact, got, limits, found) or differences
        found.add("float64", differences)
        count += 1
    if not exact and count:
        found.notes.append(
            f"weights were recomputed and rounded to their dtype, so the float64 leg asks for {ROUNDED:g} of max, "
            f"or {ROUNDED_FACTOR:g} times what float32 costs the original"
        )
    why = oracle.why if count < len(trials) else ""
    return Leg("float64", count > 0, why, count, worst(found.of("float64")))


def _zero_for_integers(expected: Results, limits: Mapping[str, float]) -> dict[str, float]:
    """What is no float must be equal."""
    return {name: limit if tolerances(expected, {})[name] else 0.0 for name, limit in limits.items()}


def _allow_for_condition(
    oracle: Oracle, trial: _Trial, expected: Results, got: Results, limits: Mapping[str, float], found: _Found
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
