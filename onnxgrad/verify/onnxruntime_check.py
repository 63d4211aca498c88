"""The onnxruntime check of a proof: both models as deployed, compared within the original's own
noise.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from onnxgrad.errors import CannotRun
from onnxgrad.ir.storage.numpy_files import ArraysFile
from onnxgrad.verify.bounds import Bounds
from onnxgrad.verify.compare import Difference
from onnxgrad.verify.feeds.proof_cases import Inputs, Results
from onnxgrad.verify.interface import Demands
from onnxgrad.verify.proof_model import Model, ProofModel
from onnxgrad.verify.report import Leg
from onnxgrad.verify.running.child_process import RunFailed
from onnxgrad.verify.running.session import Session, open_session, versions
from onnxgrad.verify.tolerance import at_tie, in_onnxruntime, is_float
from onnxgrad.verify.trials import Found, Trial


@dataclass(frozen=True)
class Settings:
    """Where and how the models run."""

    provider: str
    threads: int

    def open(self, model: Model, *, optimize: bool) -> Session:
        """A session of a model, on the CPU alone if the provider has none of its kernels. Errors as
        `open_session`.
        """
        return open_session(
            model,
            provider=self.provider,
            optimize=optimize,
            threads=self.threads,
            may_idle=True,
        )


@dataclass(frozen=True)
class Request:
    """The arguments of `verify` for one provider, read."""

    settings: Settings
    inputs: Inputs | None
    dims: Mapping[str, int] | None
    seeds: Sequence[int]
    legs: Sequence[str]
    weights: str
    budget: float
    allow_empty: Collection[str]
    bounds: Bounds
    names: Mapping[str, str]
    coverage: float | None
    layers: bool = False
    keep: ArraysFile | None = None  # receives the values of a run
    excuse: Mapping[str, str] = field(default_factory=dict)  # outputs, and the masks of their rows

    def on(self, provider: str) -> Request:
        """The same on one more provider; float64 and coverage are those of the first."""
        settings = replace(self.settings, provider=provider)
        return replace(
            self, settings=settings, legs=("onnxruntime",), coverage=None, layers=False, keep=None
        )


def limit_reached(what: str, error: RunFailed) -> str:
    """Returns the report's words for a model that reached a limit."""
    return f"{what} reached a limit: {error.reason}"


def open_original(original: ProofModel, settings: Settings) -> Session:
    """The original with optimisations off. Raises InputError when it does not load, RunFailed at
    a limit.
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
    trials: Sequence[Trial],
    found: Found,
    settings: Settings,
    demands: Demands,
    at_zero: Sequence[Trial] = (),
) -> Leg:
    """Calibrate on the original, then compare the candidate with optimisations on and off; so far
    as it runs `at_zero`, where a dimension is empty.
    """
    agreeing = list(at_zero)
    why = calibrate(original, trials, settings, agreeing)
    return held_against(candidate, trials, found, settings, demands, why, agreeing)


def held_against(
    candidate: ProofModel,
    trials: Sequence[Trial],
    found: Found,
    settings: Settings,
    demands: Demands,
    why: str = "",
    at_zero: Sequence[Trial] = (),
) -> Leg:
    """Compare the candidate, with optimisations on (unless `why` says why the original does not run
    so) and off, with the results that the trials expect.
    """
    idle: list[bool] = []
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
            reason = f"{demands.of} does not run {how}: {error.reason}"
            if error.stage == "killed":
                reason += f"; this crash is a fault of onnxruntime {versions()['onnxruntime']}"
            found.add(
                "onnxruntime", [Difference("(model)", None, None, None, math.inf, 0.0, reason)]
            )
            continue
        idle.append(session.idle)
        if session.placement:
            placed = ", ".join(f"{count} on {name}" for name, count in session.placement.items())
            found.notes.append(f"nodes {how}: {placed}")
        for trial, got in zip(trials, results):
            paths = {name: demands.on_paths(name) for name in trial.expected}
            own = in_onnxruntime(trial.expected, trial.noise, paths)
            near = {name: at_tie(demands.on_paths(name)) for name in trial.expected}
            same = trial.expected if optimize and trial.deploys(got) else got
            differences = trial.judge(trial.expected, same, demands.allows(own), near)
            found.add("onnxruntime", differences, trial.expected, how)
        if optimize or why:
            _hold_at_zero(session, at_zero, found, demands, how)
    if idle and all(idle):
        found.idle[settings.provider] = None
    return found.leg("onnxruntime", len(trials), why)


def _hold_at_zero(
    session: Session, at_zero: Sequence[Trial], found: Found, demands: Demands, how: str
) -> None:
    """Compare the candidate at empty dimensions. If it does not run there, that is noted: an
    operator may refuse what the chain that it replaces accepts.
    """
    for trial in at_zero:
        symbols = [name for name, size in trial.case.dims.items() if size == 0]
        try:
            got = demands.names.results(session.run(demands.names.feeds(trial.feeds)))
        except RunFailed as error:
            found.not_at_zero.update(dict.fromkeys(symbols, error.reason))
            continue
        own = in_onnxruntime(trial.expected, trial.noise, demands.dtypes)
        differences = trial.judge(trial.expected, got, demands.allows(own), {})
        if not all(difference.ok for difference in differences):
            sizes = ", ".join(f"{symbol}=0" for symbol in symbols)
            found.notes.append(f"the models differ {how} at {sizes}")
            found.add("onnxruntime", differences, trial.expected, f"{how}, {sizes}")


def calibrate(
    original: ProofModel,
    trials: Sequence[Trial],
    settings: Settings,
    at_zero: list[Trial] | None = None,
) -> str:
    """Widen the noise by the original's other legal runs, and by float64; why not, if it does
    not run with optimisations on. Of `at_zero` only those stay that run there as well.
    """
    for trial in trials:
        if trial.exact is not None:
            trial.widen(as_computed(trial.exact, trial.expected))
    other_threads = 2 if settings.threads == 1 else 1
    legal = [(settings, True), (Settings(settings.provider, other_threads), True)]
    if settings.provider != "cpu":
        legal.append((Settings("cpu", settings.threads), False))
    for setting, optimize in legal:
        try:
            session = setting.open(original.source, optimize=optimize)
            first = setting == settings
            # cases that were added agree with float64: one more run of them is enough
            for trial in trials if first else [t for t in trials if not t.case.how]:
                again = session.run(trial.feeds)
                trial.deployed = again if first else trial.deployed
                trial.widen(trial.with_parts(again))
            if at_zero and first:
                at_zero[:] = [trial for trial in at_zero if _widened(trial, session)]
        except RunFailed as error:
            if setting.provider != settings.provider:
                continue  # a model may need its provider's own operators
            return (
                f"the original does not run with optimisations on ({error.reason}): compared with "
                "optimisations off"
            )
    return ""


def _widened(trial: Trial, session: Session) -> bool:
    """Whether a session runs the feeds of a trial and agrees; the trial's noise is then wider."""
    try:
        again = session.run(trial.feeds)
    except RunFailed:
        return False
    trial.widen(again)
    return trial.agrees(again)


def as_computed(exact: Results, computed: Results) -> Results:
    """Float64 results in the dtypes that onnxruntime answered in."""
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
