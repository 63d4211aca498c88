"""The onnxruntime check of a proof: both models run as deployed, and are compared within the
original's own noise.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto

from onnxgrad.errors import CannotRun, OnnxgradError
from onnxgrad.ir import domains
from onnxgrad.ir.storage.numpy_files import ArraysFile
from onnxgrad.verify.bounds import Bounds
from onnxgrad.verify.compare import Difference, noise
from onnxgrad.verify.feeds.edge_cases import WIDE_CASE
from onnxgrad.verify.feeds.proof_cases import Inputs, Results
from onnxgrad.verify.interface import Demands
from onnxgrad.verify.non_finite import Apart
from onnxgrad.verify.proof_model import Model, ProofModel
from onnxgrad.verify.report import Leg
from onnxgrad.verify.running.background import Background, Later
from onnxgrad.verify.running.child_process import RunFailed
from onnxgrad.verify.running.runtimes import Runtime
from onnxgrad.verify.running.session import Session, marks, open_session, versions
from onnxgrad.verify.tolerance import at_tie, in_onnxruntime, is_float
from onnxgrad.verify.trials import Found, Trial
from onnxgrad.verify.values import Feeds

# onnxruntime's name of the folder of external weights, if a model is given as bytes
_FOLDER = "session.model_external_initializers_file_folder_path"


@dataclass(frozen=True)
class Settings:
    """The provider, or the other runtime, and the number of threads with which models run."""

    provider: str
    threads: int
    early: EarlyRuns | None = field(default=None, compare=False, repr=False)
    runtime: Runtime | None = None

    @property
    def name(self) -> str:
        """The provider's name in reports."""
        return self.provider if self.runtime is None else self.runtime.provider

    def open(
        self, model: Model, *, optimize: bool, again: bool = False, folder: str | None = None
    ) -> Session:
        """Opens a session for a model, on the CPU if the provider has no kernel for any of its
        nodes. `folder`: that of weights outside of a ModelProto. `again` and errors as in
        `open_session`.
        """
        opened = None if self.early is None else self.early.opened(self, model, optimize)
        return opened or open_session(
            model,
            provider=self.provider,
            optimize=optimize,
            threads=self.threads,
            may_idle=True,
            again=again,
            session_options={} if folder is None else {_FOLDER: folder},
            runtime=self.runtime,
        )


class EarlyRuns:
    """Sessions that open and run in the background before the check asks for them. After the first
    failure, everything runs when it is asked for.
    """

    def __init__(self, line: Background) -> None:
        self.line = line
        self._room = _MOST_HELD
        self._sessions: dict[object, tuple[Model, Later[Session | None]]] = {}

    def begin(
        self,
        model: Model,
        ways: Iterable[tuple[Settings, bool]],
        feeds: Sequence[Feeds] = (),
        again: bool = False,
    ) -> None:
        """Begins to open a model in several ways (settings, and whether onnxruntime optimises), if
        that has not begun, and to run it on some feeds. `again`: as in `open_session`.
        """
        for settings, optimize in ways:
            key = settings, id(model), optimize
            if key not in self._sessions:
                self._sessions[key] = (
                    model,
                    self.line.call(self._open, settings, model, optimize, again and optimize),
                )
            opened = self._sessions[key][1]
            if feeds:
                self._sessions[key] = model, self.line.call(self._run, opened, feeds)

    def opened(self, settings: Settings, model: Model, optimize: bool) -> Session | None:
        """Waits for a session that was begun, and returns it; None if there is none. Each is
        returned once.
        """
        begun = self._sessions.pop((settings, id(model), optimize), None)
        return None if begun is None else begun[1].result()

    def _open(
        self, settings: Settings, model: Model, optimize: bool, again: bool
    ) -> Session | None:
        if self._room <= 0:
            return None
        try:
            return replace(settings, early=None).open(model, optimize=optimize, again=again)
        except OnnxgradError:  # the check meets it where it belongs
            self._room = 0
            return None

    def _run(self, opened: Later[Session | None], list_of_feeds: Sequence[Feeds]) -> Session | None:
        session = opened.result()
        if session is None or self._room <= 0:
            return None
        try:
            for feeds in list_of_feeds:
                results = session.run(feeds)
                self._room -= sum(np.asarray(v).nbytes for v in results.values())
                session.known[marks(feeds)] = feeds, results
        except OnnxgradError:  # as above
            self._room = 0
            return None
        return session


_MOST_HELD = 1 << 28  # bytes of results that wait for the check


def both_ways(settings: Settings) -> list[tuple[Settings, bool]]:
    """Returns the ways in which the candidate runs: the settings, and whether onnxruntime
    optimises.
    """
    return [(settings, True), (settings, False)]


def legal_ways(settings: Settings) -> list[tuple[Settings, bool]]:
    """Returns the ways in which the original may run, beside its run without optimisations: the
    settings, and whether onnxruntime optimises.
    """
    other = replace(settings, threads=2 if settings.threads == 1 else 1)
    on_cpu = [] if settings.provider == "cpu" else [(replace(settings, provider="cpu"), False)]
    return [(settings, True), (other, True), *on_cpu]


@dataclass(frozen=True)
class Request:
    """The parsed arguments of `verify` for one provider."""

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
    excuse: Mapping[str, str] = field(default_factory=dict)  # output -> mask of its rows
    by_regions: bool = True  # compare between discontinuities if whole runs prove nothing
    against: Runtime | None = None  # where the second model runs

    @property
    def there(self) -> Settings:
        """The settings with which the second model runs."""
        if self.against is None:
            return self.settings
        return replace(self.settings, runtime=self.against, early=None)

    def beside(self, runtime: Runtime) -> Request:
        """Returns the request for the same model in this and in another runtime. The float64
        reference only calibrates.
        """
        return replace(self, against=runtime, by_regions=False, weights="same")

    def alike(self, other: Request) -> bool:
        """True if both requests want the same runs of the original."""
        mine, theirs = (
            (r.settings, r.dims, [*r.seeds], [*r.legs], r.budget, r.excuse) for r in (self, other)
        )
        return mine == theirs and self.inputs is other.inputs

    def on(self, provider: str) -> Request:
        """Returns the request for another provider, without the float64 check and the coverage."""
        settings = replace(self.settings, provider=provider, early=None)
        return replace(
            self, settings=settings, legs=("onnxruntime",), coverage=None, layers=False, keep=None
        )


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
    trials: Sequence[Trial],
    found: Found,
    settings: Settings,
    demands: Demands,
    at_zero: Sequence[Trial] = (),
    apart: Apart | None = None,
    there: Settings | None = None,
) -> Leg:
    """Calibrates on the original, then compares the candidate with optimisations on and off.
    `at_zero`: cases with an empty dimension, which count only if the original runs them again and
    agrees. `apart`: the case of NaN and infinite values, which decides nothing. `there`: the
    settings of the candidate, if they differ.
    """
    agreeing, where = list(at_zero), there or settings
    why = calibrate(original, trials, settings, agreeing, apart)
    if where.runtime is not None:
        _add_noise_of(where, candidate, trials, demands)
    return held_against(
        candidate, trials, found, where, demands, why, agreeing, original.proto, apart
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
) -> Leg:
    """Compares the candidate, with optimisations on and off, with the expected results of the
    trials. `why`: the reason why the original does not run with optimisations on; then the
    candidate runs with them off only. `original`: for the reasons of a candidate that does not run.
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
            lacks = _refused(f"{demands.of} does not run {how}", error, found, original)
            if lacks:
                return Leg("onnxruntime", False, lacks)
            continue
        idle.append(session.idle)
        if session.placement:
            placed = ", ".join(f"{count} on {name}" for name, count in session.placement.items())
            found.notes.append(f"nodes {how}: {placed}")
        for trial, got in zip(trials, results):
            paths = {name: demands.on_paths(name) for name in trial.expected}
            own = in_onnxruntime(trial.expected, _noise(trial), paths)
            near = {name: at_tie(demands.on_paths(name)) for name in trial.expected}
            same = trial.expected if optimize and trial.deploys(got) else got
            differences = trial.judge(trial.expected, same, demands.allows(own), near)
            found.add("onnxruntime", differences, trial.expected, how)
        if optimize or why:
            _hold_more(session, at_zero, apart, found, demands, how)
    if idle and all(idle):
        found.idle[settings.name] = None
    return found.leg("onnxruntime", len(trials), why)


# of wide values: a Softmax of scores of 1e4 keeps four digits in float32, whatever the original's
# own runs show; float64 judges them with all digits
_WIDE_NOISE = 9e-5


def _noise(trial: Trial) -> Mapping[str, float]:
    if not trial.case.how.startswith(WIDE_CASE):
        return trial.noise
    return {name: max(trial.noise.get(name, 0.0), _WIDE_NOISE) for name in trial.expected}


def _hold_more(
    session: Session, at_zero: Sequence[Trial], apart: Apart | None, found: Found,
    demands: Demands, how: str,
) -> None:  # fmt: skip
    """Compares the candidate at NaN and infinite values, and at empty dimensions. Adds a note if it
    does not run at these, because an operator may refuse inputs that the replaced chain accepts.
    """
    if apart is not None:
        apart.hold(session, demands)
    for trial in at_zero:
        symbols = [name for name, size in trial.case.dims.items() if size == 0]
        try:
            feeds = demands.names.feeds(trial.feeds)
            got = demands.names.results(session.run(feeds, timeout=session.courtesy))
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
    apart: Apart | None = None,
) -> str:
    """Widens the noise by the original's other legal runs and by its float64 results. Returns why
    the original does not run with optimisations on, or an empty text. Removes from `at_zero` the
    cases that do not run there or disagree.
    """
    for trial in trials:
        if trial.exact is not None:
            trial.widen(as_computed(trial.exact, trial.expected))
    for setting, optimize in legal_ways(settings):
        try:
            session = setting.open(original.source, optimize=optimize)
            first = setting == settings
            # added cases agree with float64, so one more run of them is enough
            for trial in trials if first else [t for t in trials if not t.case.how]:
                again = session.run(trial.feeds)
                trial.deployed = again if first else trial.deployed
                trial.widen(trial.with_parts(again))
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


def _widened(trial: Trial, session: Session) -> bool:
    """Returns whether a session runs the feeds of a trial and agrees with it. Widens the trial's
    noise.
    """
    try:
        again = session.run(trial.feeds, timeout=session.courtesy)
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
