"""`verify`: does model b compute what model a computes?

Two legs. In the float64 leg both graphs run in our float64 reference, where reordered arithmetic costs about 1e-15 and
a real change shows. In the onnxruntime leg both run as deployed, against a tolerance calibrated on the original's own
noise: what it differs by between optimisations on and off, one and two threads, and from the float64 reference.
"""

from __future__ import annotations

import itertools
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import onnx

from onnxgrad.errors import InputError
from onnxgrad.verify.compare import NOISE_FACTOR, UNSTABLE, Difference, compare, is_float, noise, tolerances, worst
from onnxgrad.verify.dims import dim_plans, roles
from onnxgrad.verify.files import load_inputs
from onnxgrad.verify.inputs import bound_by, feeds_for
from onnxgrad.verify.interface import interface_differences
from onnxgrad.verify.reference import Reference, Unsupported
from onnxgrad.verify.report import Case, Leg, Report
from onnxgrad.verify.run import Model, RunFailed, Session, Value, open_session

Results: TypeAlias = "dict[str, Value]"
Inputs: TypeAlias = (
    "Mapping[str, Value] | Sequence[Mapping[str, Value]] | str | os.PathLike[str] | Sequence[str | os.PathLike[str]]"
)

LEGS = ("float64", "onnxruntime")
EXACT = 1e-9  # no weight was recomputed: the two graphs differ by the order of float64 sums only
EXACT_LIMIT = 1e-7  # and however ill-conditioned the model, what moves by more than this is a change
ROUNDED = 1e-6  # weights were recomputed and rounded to float32 again (6e-8 each, grown by depth)
ROUNDED_FACTOR = 3.0  # or this many times the original's own error of float32 against float64, where that is larger
_JITTER = 2.0**-52
_TOO_LARGE = 2**31 - 1


@dataclass
class _Subject:
    """A model under proof: what onnxruntime loads, and the parsed file."""

    source: Model
    proto: onnx.ModelProto
    weights: Callable[[], onnx.ModelProto]


def _subject(model: Model) -> _Subject:
    if isinstance(model, onnx.ModelProto):
        return _Subject(model if model.ByteSize() > _TOO_LARGE else model.SerializeToString(), model, lambda: model)
    try:
        if isinstance(model, bytes):
            proto = onnx.load_model_from_string(model)
            return _Subject(model, proto, lambda: proto)
        path = Path(model)
        proto = onnx.load(path, load_external_data=False)
    except OSError as error:
        raise InputError(f"cannot read {model}: {error.strerror}") from error
    except (ValueError, TypeError, onnx.parser.ParseError) as error:
        raise InputError(f"cannot read the model: {_one_line(error)}") from error
    except Exception as error:
        if type(error).__module__.startswith("google.protobuf"):
            raise InputError(
                f"{model if not isinstance(model, bytes) else 'the model'} is no ONNX file: {_one_line(error)}"
            ) from error
        raise
    return _Subject(path, proto, lambda: onnx.load(path))


def _one_line(error: object) -> str:
    return " ".join(str(error).split())[:400]


@dataclass
class _Found:
    """What accumulates during one proof."""

    differences: dict[tuple[str, str], Difference] = field(default_factory=dict)
    noise: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, leg: str, found: Iterable[Difference]) -> None:
        for difference in found:
            key = (leg, difference.output)
            known = self.differences.get(key)
            chosen = difference if known is None else worst((known, difference))
            if chosen is not None:
                self.differences[key] = chosen

    def widen(self, own: Mapping[str, float]) -> None:
        for name, value in own.items():
            self.noise[name] = max(self.noise.get(name, 0.0), value)

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def of(self, leg: str) -> list[Difference]:
        return [difference for (name, _), difference in self.differences.items() if name == leg]


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
    """Compare model `b` with the original `a` by running both; the differences found, never an exception, say that they
    differ.

    inputs: one or several sets of arrays by input name, or files (.npz, .npy, .pb); None generates feeds from `seeds`,
    at two sizes of every symbolic dimension where the original runs at two. dims: symbol -> size, fixed. float64_exact:
    no arithmetic was done on weights, so the float64 leg may ask for 1e-9 of max|y|; otherwise 1e-6, or 3 times the
    original's own float32 error. float64_budget: seconds for that leg.

    Raises InputError when the original cannot be run or fed, or the provider is missing.
    """
    start = time.monotonic()
    unknown = [leg for leg in legs if leg not in LEGS]
    if unknown:
        raise InputError(f"unknown leg {unknown[0]!r}: choose from {', '.join(LEGS)}")
    original, candidate = _subject(a), _subject(b)
    broken = interface_differences(original.proto, candidate.proto)
    if broken:
        skipped = {name: Leg(name, False, "the interfaces differ") for name in legs}
        return Report(False, tuple(broken), skipped, (), provider, seconds=time.monotonic() - start)
    found = _Found()
    oracle = _Oracle(original, candidate, float64_budget) if "float64" in legs else None
    session = _open_original(original, provider, threads, timeout) if "onnxruntime" in legs else None
    cases = _cases(original, inputs, dims, seeds, _trial(session, oracle, timeout))
    ran: dict[str, Leg] = {}
    exact = [oracle.original(feeds) if oracle else None for _, feeds in cases]
    if session is not None:
        settings = _Settings(provider, threads, timeout)
        count = _onnxruntime_leg(original, candidate, session, cases, exact, found, settings)
        ran["onnxruntime"] = Leg("onnxruntime", True, cases=count, worst=worst(found.of("onnxruntime")))
    if oracle is not None:
        ran["float64"] = _float64_leg(oracle, cases, exact, found, float64_exact)
    if not any(leg.ran for leg in ran.values()):
        reasons = "; ".join(f"{leg.name}: {leg.why}" for leg in ran.values())
        raise InputError(f"no leg of the proof could run ({reasons}); skip the proof with --no-verify")
    differences = tuple(found.differences.values())
    return Report(
        ok=all(difference.ok for difference in differences),
        differences=differences,
        legs={name: ran[name] for name in LEGS if name in ran},
        cases=tuple(case for case, _ in cases),
        provider=provider,
        unstable=tuple(name for name, value in found.noise.items() if value > UNSTABLE),
        notes=tuple(found.notes),
        noise=found.noise,
        seconds=time.monotonic() - start,
    )


# --- feeds


def _trial(session: Session | None, oracle: _Oracle | None, timeout: float) -> Callable[[Results], None]:
    """A run that shows whether the original takes these feeds."""

    def attempt(feeds: Results) -> None:
        if session is not None:
            session.run(feeds, timeout=timeout)
        elif oracle is not None and oracle.original(feeds) is None:
            raise RunFailed("run", oracle.why)

    return attempt


def _cases(
    original: _Subject,
    inputs: Inputs | None,
    dims: Mapping[str, int] | None,
    seeds: Sequence[int],
    attempt: Callable[[Results], None],
) -> list[tuple[Case, Results]]:
    """The feeds of the proof. Generated ones pair the plans that run with the seeds, each at least once."""
    model = original.proto
    if inputs is not None:
        return [_given_case(model, given, dims, seeds, attempt) for given in _sets(inputs, model)]
    plans = _runnable(model, dims, seeds, attempt)
    rounds = max(len(plans), len(seeds))
    pairs = itertools.islice(zip(itertools.cycle(plans), itertools.cycle(seeds), strict=False), rounds)
    return [(Case(plan, seed), dict(feeds_for(model, seed=seed, dims=plan))) for plan, seed in pairs]


def _given_case(
    model: onnx.ModelProto,
    given: Mapping[str, Value],
    dims: Mapping[str, int] | None,
    seeds: Sequence[int],
    attempt: Callable[[Results], None],
) -> tuple[Case, Results]:
    feeds = dict(feeds_for(model, seed=seeds[0] if seeds else 0, dims=dims, given=given))
    try:
        attempt(feeds)
    except RunFailed as error:
        raise InputError(
            f"the original model does not run on the given inputs: {error.reason}; skip the proof with --no-verify"
        ) from error
    return Case(bound_by(model, feeds), None), feeds


def _sets(inputs: Inputs, model: onnx.ModelProto) -> list[Mapping[str, Value]]:
    if isinstance(inputs, Mapping):
        return [inputs]
    if isinstance(inputs, (str, os.PathLike)):
        return [load_inputs(inputs, model)]
    listed = list(inputs)
    if all(isinstance(item, Mapping) for item in listed):
        return [item for item in listed if isinstance(item, Mapping)]
    return [load_inputs([item for item in listed if isinstance(item, (str, os.PathLike))], model)]


def _runnable(
    model: onnx.ModelProto, dims: Mapping[str, int] | None, seeds: Sequence[int], attempt: Callable[[Results], None]
) -> list[dict[str, int]]:
    """The first two plans that the original runs at. Raises InputError naming the option to pass when there is none."""
    good: list[dict[str, int]] = []
    first: RunFailed | None = None
    started = time.monotonic()
    for plan in dim_plans(model, dims):
        try:
            attempt(dict(feeds_for(model, seed=seeds[0] if seeds else 0, dims=plan)))
        except RunFailed as error:
            first = first or error
            if error.stage != "run" and not good:
                break  # it died or hung: other sizes would cost as much again
        else:
            good.append(plan)
        if len(good) == 2 or (good and time.monotonic() - started > 30):
            break
    if not good and first is not None:
        raise InputError(
            f"the original model does not run on generated inputs: {first.reason}; {_advice(model)}"
        ) from first
    return good


def _advice(model: onnx.ModelProto) -> str:
    names = [value.name for value in model.graph.input]
    option = f"pass real inputs with --input {names[0] if names else 'NAME'}=FILE"
    symbols = list(roles(model.graph))
    if symbols:
        option += f" or sizes with {' '.join(f'--dim {symbol}=SIZE' for symbol in symbols[:4])}"
    return f"{option}, or skip the proof with --no-verify"


# --- the onnxruntime leg


@dataclass(frozen=True)
class _Settings:
    provider: str
    threads: int
    timeout: float


def _open_original(original: _Subject, provider: str, threads: int, timeout: float) -> Session:
    try:
        return open_session(original.source, provider=provider, optimize=False, threads=threads, timeout=timeout)
    except RunFailed as error:
        raise InputError(
            f"the original model does not load in onnxruntime: {error.reason}; skip the proof with --no-verify"
        ) from error


def _onnxruntime_leg(
    original: _Subject,
    candidate: _Subject,
    reference: Session,
    cases: Sequence[tuple[Case, Results]],
    exact: Sequence[Results | None],
    found: _Found,
    settings: _Settings,
) -> int:
    """Calibrate on the original, then compare the candidate with optimisations on and off."""
    expected = [reference.run(feeds, timeout=settings.timeout) for _, feeds in cases]
    for result, oracle in zip(expected, exact, strict=True):
        if oracle is not None:
            found.widen(noise([result, _as_computed(oracle, result)]))
    optimised = _calibrate(original, cases, expected, found, settings)
    for optimize in (True, False) if optimised else (False,):
        try:
            session = open_session(
                candidate.source,
                provider=settings.provider,
                optimize=optimize,
                threads=settings.threads,
                timeout=settings.timeout,
            )
            results = [session.run(feeds, timeout=settings.timeout) for _, feeds in cases]
        except RunFailed as error:
            reason = f"the second model does not run with optimisations {'on' if optimize else 'off'}: {error.reason}"
            found.add("onnxruntime", [Difference("(model)", None, None, None, math.inf, 0.0, reason)])
            continue
        for wanted, got in zip(expected, results, strict=True):
            found.add("onnxruntime", compare(wanted, got, tolerances(wanted, found.noise)))
    return len(cases)


def _calibrate(
    original: _Subject,
    cases: Sequence[tuple[Case, Results]],
    expected: Sequence[Results],
    found: _Found,
    settings: _Settings,
) -> bool:
    """Widen the noise by the original's other legal runs; False when it does not run with optimisations on."""
    optimised = True
    legal = [(settings.provider, True, settings.threads), (settings.provider, True, 2 if settings.threads == 1 else 1)]
    if settings.provider != "cpu":
        legal.append(("cpu", False, settings.threads))
    for provider, optimize, threads in legal:
        try:
            session = open_session(
                original.source, provider=provider, optimize=optimize, threads=threads, timeout=settings.timeout
            )
            for (_, feeds), wanted in zip(cases, expected, strict=True):
                found.widen(noise([wanted, session.run(feeds, timeout=settings.timeout)]))
        except RunFailed as error:
            if provider != settings.provider:
                continue  # a model may need its provider's own operators
            optimised = False
            found.note(
                f"the original does not run with optimisations on ({error.reason}): compared with optimisations off only"
            )
            break
    return optimised


def _as_computed(oracle: Results, result: Results) -> Results:
    """The float64 results in the dtypes that onnxruntime answered in."""
    return {name: _cast_like(oracle.get(name), value) for name, value in result.items()}


def _cast_like(value: Value, like: Value) -> Value:
    if isinstance(value, list) and isinstance(like, list) and len(value) == len(like):
        return [_cast_like(v, w) for v, w in zip(value, like, strict=True)]
    if hasattr(value, "astype") and hasattr(like, "dtype") and is_float(like):
        return value.astype(like.dtype)
    return value


# --- the float64 leg


class _Oracle:
    """Both models in the float64 reference, within one time budget. After a failure `why` says what happened and
    results are None.
    """

    def __init__(self, original: _Subject, candidate: _Subject, budget: float) -> None:
        self.subjects = {"original": original, "candidate": candidate}
        self.left = budget
        self.budget = budget
        self.why = ""
        self._made: dict[tuple[str, float], Reference] = {}

    def original(self, feeds: Results, jitter: float = 0.0) -> Results | None:
        return self._run("original", feeds, jitter)

    def candidate(self, feeds: Results) -> Results | None:
        return self._run("candidate", feeds, 0.0)

    def _run(self, which: str, feeds: Results, jitter: float) -> Results | None:
        if self.why and self.left <= 0:
            return None
        started = time.monotonic()
        try:
            if (which, jitter) not in self._made:
                if self.subjects[which].proto.ByteSize() > _TOO_LARGE:
                    raise Unsupported("the model is larger than 2 GB")
                self._made[which, jitter] = Reference(self.subjects[which].weights(), jitter=jitter)
            return self._made[which, jitter].run(feeds, seconds=self.left)
        except Unsupported as error:
            self.why = f"the {which}: {error}" if which == "candidate" else str(error)
            return None
        finally:
            self.left -= time.monotonic() - started
            if self.left <= 0:
                self.why = self.why or f"over its budget of {self.budget:g} s"


def _float64_leg(
    oracle: _Oracle,
    cases: Sequence[tuple[Case, Results]],
    exact: Sequence[Results | None],
    found: _Found,
    float64_exact: bool,
) -> Leg:
    """Compare the candidate's float64 results with the original's; as many cases as the budget allows."""
    count = 0
    for (_, feeds), expected in zip(cases, exact, strict=True):
        got = oracle.candidate(feeds) if expected is not None else None
        if expected is None or got is None:
            break
        limits = dict.fromkeys(expected, EXACT)
        if not float64_exact:
            limits = {name: max(ROUNDED, ROUNDED_FACTOR * found.noise.get(name, 0.0)) for name in expected}
        differences = compare(expected, got, _exact_for_integers(expected, limits))
        if not all(difference.ok for difference in differences):
            differences = _allow_for_condition(oracle, feeds, expected, got, limits, differences)
        found.add("float64", differences)
        count += 1
    if not float64_exact and count:
        found.note(
            f"weights were recomputed and rounded to their dtype: the float64 leg asks for {ROUNDED:g} of max, or what float32 costs the original"
        )
    why = oracle.why if count < len(cases) else ""
    return Leg("float64", count > 0, why, count, worst(found.of("float64")))


def _exact_for_integers(expected: Results, limits: Mapping[str, float]) -> dict[str, float]:
    floats = {name: tolerances({name: value}, {})[name] > 0 for name, value in expected.items()}
    return {name: limit if floats[name] else 0.0 for name, limit in limits.items()}


def _allow_for_condition(
    oracle: _Oracle,
    feeds: Results,
    expected: Results,
    got: Results,
    limits: Mapping[str, float],
    differences: list[Difference],
) -> list[Difference]:
    """Rerun the original with every sum perturbed in its last bit: what that moves is rounding, not a change (up to
    EXACT_LIMIT for floats).
    """
    perturbed = oracle.original(feeds, jitter=_JITTER)
    if perturbed is None:
        return differences
    own = noise([expected, perturbed])
    wider = {}
    for name, limit in _exact_for_integers(expected, limits).items():
        allowed = NOISE_FACTOR * own.get(name, 0.0)
        wider[name] = max(limit, min(allowed, EXACT_LIMIT) if limit else allowed)
    return compare(expected, got, wider)
