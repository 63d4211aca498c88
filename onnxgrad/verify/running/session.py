"""Models loaded by onnxruntime in a pooled child process."""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import field
from pathlib import Path
from typing import Any, cast

import numpy as np
from onnx import ModelProto

from onnxgrad.errors import InputError
from onnxgrad.frozen import frozen
from onnxgrad.limits import SECONDS, current
from onnxgrad.verify.proof_model import Model, received, sendable, source_of
from onnxgrad.verify.running.child_process import Child, Refused, RunFailed, held, needs_more_memory
from onnxgrad.verify.running.child_sessions import CACHED_SESSIONS
from onnxgrad.verify.running.device_memory import peak_on_device
from onnxgrad.verify.running.kernel_versions import Kernels
from onnxgrad.verify.running.libraries import LIBRARIES, cannot_load
from onnxgrad.verify.running.runtimes import Runtime
from onnxgrad.verify.values import Feeds, Value
from onnxgrad.vocabulary import MOST_THREADS, PROVIDERS
from onnxgrad.wording import NO_ONNXRUNTIME, input_option, install, one_line


class RuntimeMissing(InputError):
    """onnxruntime is not installed."""


# TF32 rounds float32 products to 10 bits; a proof needs the arithmetic that the file specifies.
PROVIDER_OPTIONS: dict[str, dict[str, str]] = {"cpu": {}, "cuda": {"use_tf32": "0"}}
_MOST_CHARACTERS = 4000  # characters of a message that are searched
# "[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : ", the file (often a temporary one), and the C++
# function that raised it: all are less useful than the text after them
_CLUTTER = re.compile(
    r"^\[ONNXRuntimeError\] : \d+ : \w+ : (Load model from .*? failed:)?|"
    r"\S*/onnxruntime/\S+:\d+ [^()]*\([^()]*\) (const )?"
)

_NO_MEMORY = re.compile(r"bad_alloc|bad allocation|[Ff]ailed to allocate memory|[Oo]ut of memory")


def _held(kind: str) -> AbstractContextManager[Child]:
    """Returns the warm child of a provider or of a `Runtime`, locked for this thread."""
    on_cpu = kind == "cpu" or kind.endswith(f"\0{PROVIDERS['cpu']}")
    return held(kind, None if on_cpu else _preload)


def _preload(child: Child) -> None:
    try:
        _ask(child, 60.0, "load", "preload")
    except RunFailed as error:
        if error.limit:
            raise
        raise cannot_preload(error.reason) from error


def cannot_preload(why: str) -> InputError:
    """Returns the error for a device whose libraries cannot be loaded."""
    return InputError(f"the libraries of the provider cannot be loaded: {why}")


def _ask(child: Child, timeout: float, stage: str, verb: str, *arguments: Any) -> Any:
    """Calls `Child.ask`, and raises this package's errors if the child refuses."""
    try:
        return child.ask(timeout, verb, *arguments)
    except Refused as refused:
        if (
            refused.kind in ("ModuleNotFoundError", "ImportError")
            and "onnxruntime" in refused.words
        ):
            raise RuntimeMissing(NO_ONNXRUNTIME) from None
        if refused.kind == "MemoryError" or _NO_MEMORY.search(refused.words):
            raise RunFailed("memory", needs_more_memory()) from None
        raise RunFailed(stage, _plain_words(refused.words)) from None


def _plain_words(message: str) -> str:
    """Returns onnxruntime's message without its clutter. The message is cut first: it may contain a
    name of megabytes, which makes the search slow.
    """
    return _CLUTTER.sub("", one_line(message[:_MOST_CHARACTERS]))[:400]


_COURTESY_SECONDS, _COURTESY_FACTOR = 2.0, 10.0


def courtesy(longest: float) -> float:
    """Returns the time limit, in seconds, of a run that proves nothing if it is cut: ten times the
    `longest` proper run, and at least two seconds.
    """
    return max(_COURTESY_SECONDS, _COURTESY_FACTOR * longest)


@frozen
class Argument:
    """An input or output as onnxruntime describes it: a type such as 'tensor(float)', and a shape
    of sizes, symbols and None.
    """

    name: str
    type: str
    shape: tuple[int | str | None, ...] | None


@frozen
class Session:
    """A model loaded in the child. It is loaded again if the child died or dropped it."""

    inputs: tuple[Argument, ...]
    outputs: tuple[Argument, ...]
    providers: tuple[str, ...]
    placement: Mapping[str, int]  # nodes per provider; empty on the CPU
    provider: str  # or the kind of a `Runtime`
    _key: str
    _payload: bytes | str = field(repr=False)
    _config: Mapping[str, Any] = field(repr=False)
    # results of runs before anything asked for them, by `marks` of their feeds; each is used once
    known: dict[object, tuple[Feeds, dict[str, Value]]] = field(
        default_factory=dict, repr=False, compare=False
    )
    _seconds: list[float] = field(default_factory=list, repr=False, compare=False)  # of runs

    @property
    def courtesy(self) -> float:
        """The time limit, in seconds, of a run that proves nothing if it is cut."""
        return courtesy(max(self._seconds, default=SECONDS))

    @property
    def idle(self) -> bool:
        """True if the provider got none of the nodes, so that all run on the CPU."""
        return bool(self.placement) and not self.placement.get(self._config["provider"])

    def run(
        self,
        feeds: Feeds,
        *,
        outputs: Sequence[str] | None = None,
        timeout: float = SECONDS,
        optional: bool = False,
        apart: Path | None = None,
    ) -> dict[str, Any]:
        """Runs the model once. `feeds`: by input name. Returns the outputs by name: an array
        (ml_dtypes for bfloat16, float8 and 4 bits), a list or None. `optional`: a run that proves
        nothing if it is cut; its limit is the `courtesy`. `apart`: a folder; large floats stay in
        files there (`StoredArray`).

        Raises InputError if an input is missing or unknown, and RunFailed if onnxruntime fails.
        """
        if outputs is None and apart is None and self.known:
            found = self.known.pop(marks(feeds), None)
            if found is not None:
                return found[1]
        missing = [
            i.name for i in self.inputs if i.name not in feeds and not i.type.startswith("optional")
        ]
        if missing:
            raise InputError(
                f"input {missing[0]!r} has no value; set it with {input_option(missing[0])}"
            )
        wanted = None if outputs is None else list(outputs)
        start = time.monotonic()
        timeout = self.courtesy if optional else timeout
        folder = None if apart is None else str(apart)
        found = self._ask(timeout, "run", _all_plain(feeds), wanted, folder)
        if not optional:  # else it would raise the limit of the next
            self._seconds.append(time.monotonic() - start)
        return received(found)

    def time(
        self, feeds: Feeds, count: int, *, timeout: float = SECONDS
    ) -> list[tuple[float, float]]:
        """Returns the (wall, CPU) seconds of each of `count` runs, measured in the child. Raises
        RunFailed as `run` does.
        """
        found = self._ask(timeout, "time", _all_plain(feeds), count)
        return cast("list[tuple[float, float]]", found)

    def optimized(self) -> ModelProto:
        """Returns the model as onnxruntime optimised it. It is empty if the session was not opened
        with `again`, or this system has no files in memory.
        """
        made = ModelProto()
        made.ParseFromString(self._ask(SECONDS, "optimized", self._config["again"]))
        return made

    def peak_memory(self, feeds: Feeds, *, timeout: float = SECONDS) -> int | None:
        """Returns the most bytes that loading the model and one run need, in a separate process,
        beyond onnxruntime without a model. On the CPU this is resident memory, and None on systems
        without /proc. On a device it is the memory of onnxruntime's arena.

        Raises RunFailed, and InputError if this onnxruntime does not count a device's memory.
        """
        child = Child(self.provider)
        ask = functools.partial(_ask, child, timeout)
        try:
            if self.provider != "cpu":
                _preload(child)
                payload, version = sendable(self._payload), versions()["onnxruntime"]
                return peak_on_device(ask, payload, self._config, _all_plain(feeds), version)
            ask("load", "versions")  # imports onnxruntime
            before = child.resident()
            ask("load", "open", self._key, sendable(self._payload), dict(self._config))
            ask("run", "time", self._key, _all_plain(feeds), 1)
            peak = child.peak()
        finally:
            child.kill()
        return max(peak - before, 0) if peak else None

    def _ask(self, timeout: float, verb: str, *arguments: Any) -> Any:
        """Sends a request about this session. The child opens it first if necessary, for which it
        has more time.
        """
        with _held(self.provider) as child:
            if not _ask(child, timeout, "load", "has", self._key):
                given = self._key, sendable(self._payload), dict(self._config)
                _ask(child, SECONDS, "load", "open", *given)
            return _ask(child, timeout, "run", verb, self._key, *arguments)


def marks(feeds: Feeds) -> object:
    """Returns a key for feeds with the same arrays (not only equal ones)."""
    return frozenset((name, id(value)) for name, value in feeds.items())


def _all_plain(feeds: Feeds) -> dict[str, Value]:
    return {name: _plain(value) for name, value in feeds.items()}


def _plain(value: Value) -> Value:
    """Converts numpy's string arrays to object arrays, the only string tensors that onnxruntime
    accepts.
    """
    if isinstance(value, list):
        return [_plain(v) for v in value]
    if value is None:
        return None
    array = np.asarray(value)
    return (
        array.astype(object)
        if array.dtype.kind in "US"
        else np.ascontiguousarray(array).reshape(array.shape)
    )


def open_session(
    model: Model,
    *,
    provider: str = "cpu",
    optimize: bool = True,
    threads: int = 1,
    session_options: Mapping[str, str] = {},
    timeout: float = SECONDS,
    keep: int = CACHED_SESSIONS,
    most: int | None = None,
    may_idle: bool = False,
    again: bool = False,
    runtime: Runtime | None = None,
) -> Session:
    """Loads a model in the child. `session_options`: onnxruntime's session configuration entries.
    `keep`: how many sessions the child may hold (two on a device). Beyond that, the least recently
    used session is dropped, and loaded again at its next run. With 1, no memory of a run stays for
    the next on the CPU. `most`: the bytes beyond which the child holds two sessions. `may_idle`:
    accept a model of which no node runs on the provider. `again`: the model is opened with other
    threads as well, and onnxruntime optimises it only once. `runtime`: in place of the provider.

    Raises InputError if the provider or onnxruntime is missing, and RunFailed if the model does not
    load.
    """
    if provider not in PROVIDERS:
        raise InputError(f"unknown provider {provider!r}: choose one of {', '.join(PROVIDERS)}")
    if not 1 <= threads <= MOST_THREADS:
        raise InputError(f"threads must be a number from 1 to {MOST_THREADS}, not {threads}")
    digest, payload = source_of(model)
    config = {
        "provider": PROVIDERS[provider] if runtime is None else runtime.provider,
        "provider_options": PROVIDER_OPTIONS[provider]
        if runtime is None
        else {**dict(runtime.options)},
        "optimize": optimize,
        "threads": threads,
        "options": dict(session_options),
        "keep": keep,
        "lean": keep == 1 and provider == "cpu",
        **({} if most is None else {"most": most}),
        "libraries": list(LIBRARIES),
        "again": digest if again else "",
    }
    key = f"{digest} {optimize} {threads} {sorted(session_options.items())} {list(LIBRARIES)}"
    if runtime is not None:
        key += f" {runtime.options}"
    kind = provider if runtime is None else runtime.kind
    with _held(kind) as child:
        # drop sessions of other models, which are loaded again on demand; a device holds few, and
        # its libraries and context alone need gigabytes
        if child.on_cpu and child.resident() > current().memory / 4:
            child.kill()
    with _held(kind) as child:
        info = _ask(child, timeout, "load", "open", key, sendable(payload), config)
    if "library" in info:
        raise cannot_load(info["library"], _plain_words(info["why"]))
    if "missing" in info and runtime is not None:
        raise InputError(f"{runtime.python or 'onnxruntime'}: {info['missing']} does not start")
    if "missing" in info:
        raise InputError(how_to_get(info["missing"], info["available"]))
    session = Session(
        inputs=_arguments(info["inputs"]),
        outputs=_arguments(info["outputs"]),
        providers=tuple(info["providers"]),
        placement=info["placement"],
        provider=kind,
        _key=key,
        _payload=payload,
        _config=config,
    )
    if session.idle and not may_idle:
        raise RunFailed("load", f"no node of the model runs on {config['provider']}")
    return session


def close_sessions(provider: str) -> None:
    """Drops the sessions that the child holds. Each is loaded again at its next run."""
    with _held(provider) as child:
        _ask(child, SECONDS, "load", "close")


def _arguments(found: Iterable[tuple[str, str, Any]]) -> tuple[Argument, ...]:
    return tuple(
        Argument(name, kind, None if shape is None else tuple(shape)) for name, kind, shape in found
    )


def how_to_get(provider: str, available: Sequence[str]) -> str:
    """Returns advice for a provider that onnxruntime lacks, or that does not start."""
    known = versions()
    if provider in known["providers"]:
        return (
            f"{provider} is part of onnxruntime {known['onnxruntime']} but does not start here: "
            f"it needs an NVIDIA driver and the CUDA and cuDNN libraries ({install('gpu')})"
        )
    return (
        f"{provider} is missing: onnxruntime {known['onnxruntime']} has {', '.join(available)}; "
        f"to get it: pip uninstall onnxruntime, then {install('gpu')}"
    )


@functools.cache
def versions() -> dict[str, Any]:
    """Returns {'onnxruntime': version, 'providers': [...]} of the installation. Raises InputError
    if onnxruntime is not installed.
    """
    with _held("cpu") as child:
        return cast("dict[str, Any]", _ask(child, 60.0, "load", "versions"))


@functools.cache
def kernels(provider: str = PROVIDERS["cpu"]) -> Kernels:
    """Returns the kernels that the installed onnxruntime has on a provider, by operator. Raises
    RunFailed if this build of onnxruntime does not tell.
    """
    with _held("cpu") as child:
        return cast("Kernels", _ask(child, 60.0, "load", "kernels", provider))


def run_many(
    model: Model,
    list_of_feeds: Iterable[Feeds],
    *,
    provider: str = "cpu",
    optimize: bool = True,
    threads: int = 1,
    outputs: Sequence[str] | None = None,
    timeout: float = SECONDS,
    session_options: Mapping[str, str] = {},
    keep: int = CACHED_SESSIONS,
) -> list[dict[str, Value]]:
    """Runs a model in onnxruntime on several feeds, with one session. `keep`: as `open_session`."""
    session = open_session(
        model,
        provider=provider,
        optimize=optimize,
        threads=threads,
        session_options=session_options,
        timeout=timeout,
        keep=keep,
    )
    return [session.run(feeds, outputs=outputs, timeout=timeout) for feeds in list_of_feeds]


def run(
    model: Model,
    feeds: Feeds,
    *,
    provider: str = "cpu",
    optimize: bool = True,
    threads: int = 1,
    outputs: Sequence[str] | None = None,
    timeout: float = SECONDS,
    session_options: Mapping[str, str] = {},
    keep: int = CACHED_SESSIONS,
    most: int | None = None,
    apart: Path | None = None,
) -> dict[str, Any]:
    """Runs a model once in onnxruntime and returns its outputs by name. `keep`, `most`: as
    `open_session`. `apart`: as `Session.run`.

    Raises InputError if a provider or an input is missing, and RunFailed if onnxruntime fails,
    crashes or exceeds `timeout` seconds.
    """
    session = open_session(
        model,
        provider=provider,
        optimize=optimize,
        threads=threads,
        session_options=session_options,
        timeout=timeout,
        keep=keep,
        most=most,
    )
    return session.run(feeds, outputs=outputs, timeout=timeout, apart=apart)
