"""The arguments of `verify`, and the settings with which its models run, also in the background."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import TypeAlias

import numpy as np

from onnxgrad.errors import InputError, OnnxgradError
from onnxgrad.frozen import frozen
from onnxgrad.ir.storage.numpy_files import ArraysFile
from onnxgrad.name_lists import names_among
from onnxgrad.options import providers_of, several
from onnxgrad.verify.bounds import Bounds, PerOutput
from onnxgrad.verify.coverage.summary import wanted_share
from onnxgrad.verify.feeds.proof_cases import Inputs
from onnxgrad.verify.proof_model import Model
from onnxgrad.verify.running.background import Background, Later
from onnxgrad.verify.running.runtimes import Runtime
from onnxgrad.verify.running.session import Session, marks, open_session
from onnxgrad.verify.values import Feeds, Value
from onnxgrad.vocabulary import CHECKS
from onnxgrad.wording import option

Stored: TypeAlias = "Mapping[str, Value] | str | os.PathLike[str]"

# bytes that the child may hold in sessions of other models than the two that are compared
MOST_OPEN = 1 << 27
# onnxruntime's name of the folder of external weights, if a model is given as bytes
_FOLDER = "session.model_external_initializers_file_folder_path"


@frozen
class Settings:
    """The provider, or the other runtime, and the number of threads with which models run."""

    provider: str
    threads: int
    early: EarlyRuns | None = field(default=None, compare=False, repr=False)
    runtime: Runtime | None = None
    # bytes beyond which two sessions are open; None: as many as run ahead
    most: int | None = field(default=MOST_OPEN, compare=False, repr=False)

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
            most=self.most,
            session_options={} if folder is None else {_FOLDER: folder},
            runtime=self.runtime,
        )


class EarlyRuns:
    """Sessions that open and run in the background before the check asks for them. After the first
    failure, everything runs when it is asked for.
    """

    def __init__(self, line: Background, float64: Background) -> None:
        """`float64`: a thread for runs in float64 that begin meanwhile."""
        self.line, self.float64 = line, float64
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


@frozen(kw_only=True)
class Request:
    """The arguments of `verify`, parsed for the first provider. Raises InputError.

    `early`: what runs in the background. `runtime`: where the second model runs. `keep`: receives
    the values of a run. `by_regions`: compare between discontinuities if whole runs prove nothing.
    `scales`: also compare at growing scales of the inputs.
    """

    expect: Stored | None = None
    inputs: Inputs | None = None
    provider: str = "cpu"
    dims: Mapping[str, int] | None = None
    seeds: Sequence[int] = (0, 1)
    checks: Sequence[str] = CHECKS
    weights: str = "auto"
    float64_budget: float = 20.0
    threads: int = 1
    timeout: float | None = None
    max_memory: int | str | None = None
    allow_empty: Collection[str] = ()
    excuse: Mapping[str, str] = field(default_factory=dict)
    atol: PerOutput = None
    rtol: PerOutput = None
    metric: str | Iterable[str] | None = None
    map: Mapping[str, str] = field(default_factory=dict)
    coverage: str | float | None = None
    layers: bool = False
    exact: bool = False
    save: str | os.PathLike[str] | None = None
    against: str | Sequence[str] = ()
    early: EarlyRuns | None = field(default=None, repr=False)
    runtime: Runtime | None = None
    keep: ArraysFile | None = None
    by_regions: bool = True
    scales: bool = False
    bounds: Bounds = field(init=False)
    providers: Sequence[str] = field(init=False)
    share: float | None = field(init=False)

    def __post_init__(self) -> None:
        checks = several(self.checks, "verify: checks")
        unknown = [check for check in checks if check not in CHECKS]
        if unknown:
            raise InputError(f"unknown check {unknown[0]!r}: choose from {', '.join(CHECKS)}")
        if not checks:
            raise InputError("no check was chosen")
        if not len(self.seeds):
            raise InputError(f"{option('--seed', 'seeds')}: pass at least one seed")
        bounds = Bounds.of(self.atol, self.rtol, self.metric)
        providers = providers_of(self.provider)
        share = None if self.coverage is None else wanted_share(self.coverage)
        parsed = {
            "checks": checks,
            "bounds": bounds,
            "providers": providers if "onnxruntime" in checks else providers[:1],
            "share": share,
            "allow_empty": several(self.allow_empty, "verify: allow_empty"),
            "excuse": self.excuse or {},
            "map": self.map or {},
        }
        for name, value in parsed.items():
            object.__setattr__(self, name, value)

    @property
    def settings(self) -> Settings:
        """The settings with which the original runs."""
        most = MOST_OPEN if self.early is None else None
        return Settings(self.providers[0], self.threads, self.early, most=most)

    @property
    def there(self) -> Settings:
        """The settings with which the second model runs."""
        if self.runtime is None:
            return self.settings
        return replace(self.settings, runtime=self.runtime, early=None)

    @property
    def candidate(self) -> str:
        """The model that is compared with the original, for messages."""
        return "the second model" if self.runtime is None else "the model in the other runtime"

    def beside(self, runtime: Runtime) -> Request:
        """Returns the request for the same model in this and in another runtime. The float64
        reference only calibrates.
        """
        return replace(self, runtime=runtime, by_regions=False, weights="same")

    def alike(self, other: Request) -> bool:
        """True if both requests want the same runs of the original."""
        mine, theirs = (
            (r.settings, r.dims, [*r.seeds], [*r.checks], r.float64_budget, r.excuse)
            for r in (self, other)
        )
        return mine == theirs and self.inputs is other.inputs

    def on(self, provider: str) -> Request:
        """Returns the request for another provider, without the float64 check and the coverage."""
        return replace(
            self, provider=provider, early=None, checks=("onnxruntime",), coverage=None,
            layers=False, keep=None,
        )  # fmt: skip


def with_outputs(request: Request, outputs: Sequence[str]) -> Request:
    """Returns the request with the names of the model's outputs. Raises InputError if an option
    names an output that does not exist.
    """
    request.bounds.check(outputs)
    allowed = names_among([*request.allow_empty], outputs, "allow_empty")
    strange = [name for name in allowed if name not in outputs]
    if strange:
        raise InputError(
            f"{option('--allow-empty', 'allow_empty:')} {strange[0]}: the model has no such output "
            f"(outputs: {', '.join(outputs)})"
        )
    return replace(request, allow_empty=allowed)
