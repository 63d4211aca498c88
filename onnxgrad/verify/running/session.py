"""Models loaded in onnxruntime in a pooled child process, with the user's custom operators."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np

from onnxgrad.errors import InputError
from onnxgrad.limits import SECONDS, current
from onnxgrad.options import known_keywords
from onnxgrad.verify.proof_model import Model, sendable, source_of
from onnxgrad.verify.running.child_process import Child, Refused, RunFailed, held, needs_more_memory
from onnxgrad.verify.running.child_sessions import CACHED_SESSIONS
from onnxgrad.verify.running.device_memory import peak_on_device
from onnxgrad.verify.values import Feeds, Value
from onnxgrad.vocabulary import MOST_THREADS, PROVIDERS
from onnxgrad.wording import NO_ONNXRUNTIME, input_option, install, option

LIBRARIES: dict[str, None] = {}


@known_keywords
def custom_ops(path: str | os.PathLike[str]) -> None:
    """Have onnxruntime load a library of custom operators (`SessionOptions.
    register_custom_ops_library`) wherever it runs a model: proofs, `check_gradient`, benchmarks,
    training.

    It is native code, which runs with your rights: in child processes, and in this one for a
    `Trainer`. `onnxgrad.temporary_rules` forgets it. Raises InputError for a file that is not
    there; one that onnxruntime cannot load is refused when a model runs.
    """
    found = Path(path).absolute()
    if not found.is_file():
        raise InputError(f"{option('--custom-ops', 'custom_ops:')} {path}: no such file")
    LIBRARIES[str(found)] = None


def cannot_load(library: str, why: str) -> InputError:
    """Returns the error for a library that onnxruntime refuses."""
    return InputError(f"onnxruntime cannot load the custom operators of {library}: {why}")


def register(options: Any) -> None:
    """Have the sessions of onnxruntime's `options`, in this process, load the libraries. Raises
    InputError for one that onnxruntime cannot load.
    """
    for library in LIBRARIES:
        try:
            options.register_custom_ops_library(library)
        except Exception as error:  # onnxruntime's own class
            raise cannot_load(library, " ".join(str(error).split())) from error


class RuntimeMissing(InputError):
    """onnxruntime is not installed."""


# TF32 rounds float32 products to 10 bits; a proof wants the arithmetic that the file asks for.
PROVIDER_OPTIONS: dict[str, dict[str, str]] = {"cpu": {}, "cuda": {"use_tf32": "0"}}
_MOST_CHARACTERS = 4000  # characters of a message that are looked at
# "[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : " and the C++ function that refused: both say less
# than what follows them
_CLUTTER = re.compile(
    r"^\[ONNXRuntimeError\] : \d+ : \w+ : |\S*/onnxruntime/\S+:\d+ "
    r"[^()]*\([^()]*\) (const )?"
)

_NO_MEMORY = re.compile(r"bad_alloc|bad allocation|[Ff]ailed to allocate memory|[Oo]ut of memory")


def _held(provider: str) -> AbstractContextManager[Child]:
    """The warm child of a provider, for this thread alone."""
    return held(provider, _preload if provider != "cpu" else None)


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
    """`ask`, which raises this package's errors if the child refuses."""
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
    """Returns onnxruntime's message without its clutter, cut: it may hold a name of megabytes,
    through which no search goes from each of its letters.
    """
    return _CLUTTER.sub("", message[:_MOST_CHARACTERS])[:400]


@dataclass(frozen=True)
class Argument:
    """An input or output as onnxruntime reports it: type 'tensor(float)', shape of sizes,
    symbols and None.
    """

    name: str
    type: str
    shape: tuple[int | str | None, ...] | None


@dataclass(frozen=True)
class Session:
    """A model loaded in the child. It comes back by itself when the child died or dropped it."""

    inputs: tuple[Argument, ...]
    outputs: tuple[Argument, ...]
    providers: tuple[str, ...]
    placement: Mapping[str, int]  # nodes per provider; empty on the CPU
    provider: str
    _key: str
    _payload: bytes | str = field(repr=False)
    _config: Mapping[str, Any] = field(repr=False)

    @property
    def idle(self) -> bool:
        """Whether the provider got none of the nodes, so that all run on the CPU."""
        return bool(self.placement) and not self.placement.get(PROVIDERS[self.provider])

    def run(
        self, feeds: Feeds, *, outputs: Sequence[str] | None = None, timeout: float = SECONDS
    ) -> dict[str, Value]:
        """One run. `feeds` by input name; answers output name -> array (ml_dtypes for bf16, fp8, 4
        bits), list or None.

        Raises InputError for feeds that do not fit the inputs' names, RunFailed for everything that
        onnxruntime refuses.
        """
        missing = [
            i.name for i in self.inputs if i.name not in feeds and not i.type.startswith("optional")
        ]
        if missing:
            raise InputError(
                f"input {missing[0]!r} has no value; set it with {input_option(missing[0])}"
            )
        wanted = None if outputs is None else list(outputs)
        return cast("dict[str, Value]", self._ask(timeout, "run", _all_plain(feeds), wanted))

    def time(
        self, feeds: Feeds, count: int, *, timeout: float = SECONDS
    ) -> list[tuple[float, float]]:
        """(wall, CPU) seconds of each of `count` runs, measured in the child. Raises RunFailed
        as `run` does.
        """
        found = self._ask(timeout, "time", _all_plain(feeds), count)
        return cast("list[tuple[float, float]]", found)

    def peak_memory(self, feeds: Feeds, *, timeout: float = SECONDS) -> int | None:
        """Bytes that loading the model and one run take at most, in a process of its own, beyond
        what onnxruntime takes without a model: resident ones on the CPU, None on systems without
        /proc; those of onnxruntime's arena on a device.

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
        """One request about this session, which the child opens first where it is not open (any
        more).
        """
        with _held(self.provider) as child:
            if not _ask(child, timeout, "load", "has", self._key):
                _ask(
                    child,
                    timeout,
                    "load",
                    "open",
                    self._key,
                    sendable(self._payload),
                    dict(self._config),
                )
            return _ask(child, timeout, "run", verb, self._key, *arguments)


def _all_plain(feeds: Feeds) -> dict[str, Value]:
    return {name: _plain(value) for name, value in feeds.items()}


def _plain(value: Value) -> Value:
    """numpy's own string arrays become object arrays, the only kind of string tensor that
    onnxruntime takes.
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
    may_idle: bool = False,
) -> Session:
    """Load a model in the child. `session_options`: onnxruntime's session configuration entries.
    `keep`: how many sessions the child may hold (two on a device); beyond that the least recently
    used one is dropped, and comes back at its next run. `may_idle`: no node need run on the
    provider.

    Raises InputError when the provider (or onnxruntime) is missing, RunFailed when the model does
    not load.
    """
    if provider not in PROVIDERS:
        raise InputError(f"unknown provider {provider!r}: choose one of {', '.join(PROVIDERS)}")
    if not 1 <= threads <= MOST_THREADS:
        raise InputError(f"threads must be a number from 1 to {MOST_THREADS}, not {threads}")
    digest, payload = source_of(model)
    config = {
        "provider": PROVIDERS[provider],
        "provider_options": PROVIDER_OPTIONS[provider],
        "optimize": optimize,
        "threads": threads,
        "options": dict(session_options),
        "keep": keep,
        "libraries": list(LIBRARIES),
    }
    key = f"{digest} {optimize} {threads} {sorted(session_options.items())} {list(LIBRARIES)}"
    with _held(provider) as child:
        # by sessions of other models, which come back when they are wanted; a device holds few, and
        # its own libraries and context are gigabytes of the process
        if provider == "cpu" and child.resident() > current().memory / 4:
            child.kill()
    with _held(provider) as child:
        info = _ask(child, timeout, "load", "open", key, sendable(payload), config)
    if "library" in info:
        raise cannot_load(info["library"], _plain_words(info["why"]))
    if "missing" in info:
        raise InputError(how_to_get(info["missing"], info["available"]))
    session = Session(
        inputs=_arguments(info["inputs"]),
        outputs=_arguments(info["outputs"]),
        providers=tuple(info["providers"]),
        placement=info["placement"],
        provider=provider,
        _key=key,
        _payload=payload,
        _config=config,
    )
    if session.idle and not may_idle:
        raise RunFailed("load", f"no node of the model runs on {PROVIDERS[provider]}")
    return session


def close_sessions(provider: str) -> None:
    """Drop the sessions that the child holds; each comes back by itself at its next run."""
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
    """{'onnxruntime': version, 'providers': [...]} of what is installed. Raises InputError where
    nothing is.
    """
    with _held("cpu") as child:
        return cast("dict[str, Any]", _ask(child, 60.0, "load", "versions"))


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
) -> list[dict[str, Value]]:
    """`run` for several feeds over one session."""
    session = open_session(
        model,
        provider=provider,
        optimize=optimize,
        threads=threads,
        session_options=session_options,
        timeout=timeout,
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
) -> dict[str, Value]:
    """Run a model once in onnxruntime and answer its outputs by name.

    Raises InputError for a missing provider or input, RunFailed when onnxruntime refuses, dies, or
    exceeds `timeout` seconds.
    """
    return run_many(
        model,
        [feeds],
        provider=provider,
        optimize=optimize,
        threads=threads,
        outputs=outputs,
        timeout=timeout,
        session_options=session_options,
    )[0]
