"""Running models in onnxruntime, in a pooled child process.

onnxruntime can kill its process (SIGFPE while folding INT64_MIN / -1), hang or eat the memory, so it runs where that
costs nothing: a child that is started once, reused, limited in time and memory, and killed at exit. A child that dies
means `RunFailed`, never the end of us.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias, cast

import numpy as np
import onnx

from onnxgrad.errors import InputError, NotProved
from onnxgrad.verify.child import receive, send

Value: TypeAlias = "np.ndarray[Any, Any] | list[Any] | None"  # a tensor, a sequence, an absent optional
Feeds: TypeAlias = Mapping[str, Value]
Model: TypeAlias = "onnx.ModelProto | bytes | str | os.PathLike[str]"

PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
# TF32 rounds float32 products to 10 bits; a proof wants the arithmetic that the file asks for.
PROVIDER_OPTIONS: dict[str, dict[str, str]] = {"cpu": {}, "cuda": {"use_tf32": "0"}}
_TWO_GB = 2**31 - 1


class RunFailed(NotProved):
    """onnxruntime could not load or run a model. `stage`: load, run, timeout, memory or killed; `reason`: its own
    words.
    """

    def __init__(self, stage: str, reason: str) -> None:
        self.stage = stage
        self.reason = reason
        verb = {"load": "could not load the model", "run": "could not run the model"}.get(stage, "gave no answer")
        super().__init__(f"onnxruntime {verb}: {reason}")


class _Child:
    """One child process; not shared between threads without its lock."""

    def __init__(self, limited: bool) -> None:
        self.lock = threading.Lock()
        self.log = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the child
        limit = _memory_limit()
        script = str(Path(__file__).with_name("child.py"))
        # Our own sys.path, so that both ends see the same packages and the folder of child.py shadows no standard
        # module.
        code = f"import sys; sys.path[:] = {sys.path!r}; import runpy; runpy.run_path({script!r}, run_name='__main__')"
        self.rss_limit = None if limited else limit
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, str(limit if limited else 0)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log,
        )  # fmt: skip
        self.requests = cast(BinaryIO, self.process.stdin)
        self.answers = cast(BinaryIO, self.process.stdout)
        self.owner = os.getpid()
        atexit.register(self.kill)

    def alive(self) -> bool:
        return self.owner == os.getpid() and self.process.poll() is None

    def kill(self) -> None:
        """Kill and reap. A fork of the process that started the child leaves it alone."""
        if self.owner != os.getpid():
            return
        atexit.unregister(self.kill)
        self.process.kill()
        self.process.wait()
        for stream in (self.requests, self.answers, self.log):
            try:
                stream.close()
            except BrokenPipeError:  # what was left unsent goes nowhere
                continue

    def ask(self, timeout: float, verb: str, *arguments: Any) -> Any:
        """One request. Raises RunFailed(killed | timeout | memory) when the child is lost, _Refused when it answers
        with a failure.
        """
        lost = ""
        done = threading.Event()

        def watch() -> None:
            nonlocal lost
            deadline = time.monotonic() + timeout
            while not done.wait(min(0.2, max(0.0, deadline - time.monotonic()))):
                if time.monotonic() >= deadline:
                    lost = "timeout"
                elif self.rss_limit is not None and _resident(self.process.pid) > self.rss_limit:
                    lost = "memory"
                if lost:
                    self.process.kill()
                    return

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            send(self.requests, (verb, *arguments))
            status, *answer = receive(self.answers)
        except (EOFError, BrokenPipeError) as error:
            done.set()
            watcher.join()
            code = self.process.wait()
            said = self._said()
            self.kill()
            raise RunFailed(lost or "killed", _obituary(lost, code, timeout, said)) from error
        finally:
            done.set()
        watcher.join()
        if status == "failed":
            raise _Refused(*answer)
        return answer[0]

    def _said(self) -> str:
        """The last line that the child wrote to stderr."""
        self.log.seek(0)
        lines = self.log.read().decode("utf-8", "replace").strip().splitlines()
        return lines[-1][:300] if lines else ""


class _Refused(Exception):
    """The child answered with an exception: its class name and its words."""

    def __init__(self, kind: str, words: str) -> None:
        super().__init__(words)
        self.kind = kind
        self.words = words


def _obituary(lost: str, code: int, timeout: float, said: str) -> str:
    if lost == "timeout":
        return f"no answer within {timeout:g} s; raise the time limit (--timeout) or use smaller inputs"
    if lost == "memory":
        return "it used more memory than this machine has"
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        return f"it died of {name}" + (f" ({said})" if said else "")
    return f"it exited with {code}" + (f" ({said})" if said else "")


def _memory_limit() -> int:
    """Bytes a child may use: this machine's memory, 4 GiB at least (onnxruntime alone reserves over one)."""
    if not hasattr(os, "sysconf"):
        return 0
    return max(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), 4 << 30)


def _resident(pid: int) -> int:
    """Resident bytes of a process; 0 where the system has no /proc."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


_pool: dict[str, _Child] = {}
_pool_lock = threading.Lock()


def _child(provider: str) -> _Child:
    """The warm child of a provider, started on first use and again after a death."""
    with _pool_lock:
        child = _pool.get(provider)
        if child is None or not child.alive():
            child = _pool[provider] = _Child(limited=provider == "cpu")
            if provider != "cpu":
                _ask(child, 60.0, "load", "preload")
        return child


def _ask(child: _Child, timeout: float, stage: str, verb: str, *arguments: Any) -> Any:
    """`ask` with the child's refusals told in this package's errors."""
    try:
        with child.lock:
            return child.ask(timeout, verb, *arguments)
    except _Refused as refused:
        if refused.kind in ("ModuleNotFoundError", "ImportError") and "onnxruntime" in refused.words:
            raise InputError("onnxruntime is not installed: pip install 'onnxgrad[cpu]' (or 'onnxgrad[gpu]')") from None
        raise RunFailed(stage, refused.words[:600]) from None


@dataclass(frozen=True)
class Argument:
    """An input or output as onnxruntime reports it: `type` such as 'tensor(float)', `shape` of sizes, symbols and None.
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

    def run(self, feeds: Feeds, *, outputs: Sequence[str] | None = None, timeout: float = 120.0) -> dict[str, Value]:
        """One run. `feeds` by input name; answers output name -> array (ml_dtypes for bf16, fp8, 4 bits), list or None.

        Raises InputError for feeds that do not fit the inputs' names, RunFailed for everything that onnxruntime
        refuses.
        """
        missing = [i.name for i in self.inputs if i.name not in feeds and not i.type.startswith("optional")]
        if missing:
            raise InputError(f"input {missing[0]!r} got no value; give one with --input {missing[0]}=FILE")
        child = _child(self.provider)
        if not _ask(child, timeout, "load", "has", self._key):
            _ask(child, timeout, "load", "open", self._key, _sendable(self._payload), dict(self._config))
        plain = {name: _plain(value) for name, value in feeds.items()}
        wanted = None if outputs is None else list(outputs)
        return cast("dict[str, Value]", _ask(child, timeout, "run", "run", self._key, plain, wanted))


def _plain(value: Value) -> Value:
    """numpy's own string arrays become object arrays, the only kind of string tensor that onnxruntime takes."""
    if isinstance(value, list):
        return [_plain(v) for v in value]
    if value is None:
        return None
    array = np.asarray(value)
    return array.astype(object) if array.dtype.kind in "US" else np.ascontiguousarray(array).reshape(array.shape)


def _sendable(payload: bytes | str) -> Any:
    return payload if isinstance(payload, str) else pickle.PickleBuffer(payload)


def _source(model: Model) -> tuple[str, bytes | str]:
    """(digest, bytes or absolute path) of a model. A path is known by name, time and size: reading gigabytes twice
    helps nobody.
    """
    if isinstance(model, onnx.ModelProto):
        if model.ByteSize() > _TWO_GB:
            raise InputError("the model is larger than 2 GB: save it with external data and pass its path")
        model = model.SerializeToString()
    if isinstance(model, bytes):
        return hashlib.blake2b(model, digest_size=16).hexdigest(), model
    path = Path(model).absolute()
    try:
        stat = path.stat()
    except OSError as error:
        raise InputError(f"cannot read {model}: {error.strerror}") from error
    return f"{path}\0{stat.st_mtime_ns}\0{stat.st_size}", str(path)


def open_session(
    model: Model,
    *,
    provider: str = "cpu",
    optimize: bool = True,
    threads: int = 1,
    session_options: Mapping[str, str] = {},
    timeout: float = 120.0,
) -> Session:
    """Load a model in the child. `session_options`: onnxruntime's session configuration entries.

    Raises InputError when the provider (or onnxruntime) is missing, RunFailed when the model does not load.
    """
    if provider not in PROVIDERS:
        raise InputError(f"unknown provider {provider!r}: choose one of {', '.join(PROVIDERS)}")
    digest, payload = _source(model)
    config = {
        "provider": PROVIDERS[provider],
        "provider_options": PROVIDER_OPTIONS[provider],
        "optimize": optimize,
        "threads": threads,
        "options": dict(session_options),
    }
    key = f"{digest} {optimize} {threads} {sorted(session_options.items())}"
    info = _ask(_child(provider), timeout, "load", "open", key, _sendable(payload), config)
    if "missing" in info:
        raise InputError(_how_to_get(info["missing"], info["available"]))
    placement = info["placement"]
    if placement and not placement.get(PROVIDERS[provider]):
        raise RunFailed("load", f"no node of the model runs on {PROVIDERS[provider]} (placed: {placement})")
    return Session(
        inputs=_arguments(info["inputs"]),
        outputs=_arguments(info["outputs"]),
        providers=tuple(info["providers"]),
        placement=placement,
        provider=provider,
        _key=key,
        _payload=payload,
        _config=config,
    )


def _arguments(found: Iterable[tuple[str, str, Any]]) -> tuple[Argument, ...]:
    return tuple(Argument(name, kind, None if shape is None else tuple(shape)) for name, kind, shape in found)


def _how_to_get(provider: str, available: Sequence[str]) -> str:
    known = versions()
    if provider in known["providers"]:
        return (
            f"{provider} is part of onnxruntime {known['onnxruntime']} but does not start here: "
            f"it needs an NVIDIA driver and the CUDA and cuDNN libraries (pip install 'onnxgrad[gpu]')"
        )
    return (
        f"{provider} is missing: onnxruntime {known['onnxruntime']} has {', '.join(available)}; "
        f"to get it: pip uninstall onnxruntime, then pip install 'onnxgrad[gpu]'"
    )


def run_many(
    model: Model,
    list_of_feeds: Iterable[Feeds],
    *,
    provider: str = "cpu",
    optimize: bool = True,
    threads: int = 1,
    outputs: Sequence[str] | None = None,
    timeout: float = 120.0,
    session_options: Mapping[str, str] = {},
) -> list[dict[str, Value]]:
    """`run` for several feeds over one session."""
    session = open_session(
        model, provider=provider, optimize=optimize, threads=threads, session_options=session_options, timeout=timeout
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
    timeout: float = 120.0,
    session_options: Mapping[str, str] = {},
) -> dict[str, Value]:
    """Run a model once in onnxruntime and answer its outputs by name.

    Raises InputError for a missing provider or input, RunFailed when onnxruntime refuses, dies, or exceeds `timeout`
    seconds.
    """
    return run_many(
        model, [feeds], provider=provider, optimize=optimize, threads=threads, outputs=outputs, timeout=timeout,
        session_options=session_options,
    )[0]  # fmt: skip


@functools.cache
def versions() -> dict[str, Any]:
    """{'onnxruntime': version, 'providers': [...]} of the installed onnxruntime. Raises InputError where it is missing.
    """
    return cast("dict[str, Any]", _ask(_child("cpu"), 60.0, "load", "versions"))


@functools.cache
def runtime_limits() -> tuple[int, int]:
    """(highest IR version, highest opset) that the installed onnxruntime loads by default, found by loading a one-node
    model.
    """

    def loads(ir_version: int, opset: int) -> bool:
        try:
            open_session(_probe(ir_version, opset))
        except RunFailed:
            return False
        return True

    def highest(start: int, accepts: Any) -> int:
        value = start
        while accepts(value + 1):
            value += 1
        return value

    ir_version = highest(
        8, lambda v: loads(v, 17)
    )  # every onnxruntime that this package supports takes IR 8 and opset 17
    return ir_version, highest(17, lambda v: loads(ir_version, v))


def _probe(ir_version: int, opset: int) -> bytes:
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy")
    graph = onnx.helper.make_graph([onnx.helper.make_node("Neg", ["x"], ["y"])], "probe", [x], [y])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
    model.ir_version = ir_version
    return bytes(model.SerializeToString())


def close() -> None:
    """Kill every child of this process; the next run starts fresh ones."""
    with _pool_lock:
        for child in _pool.values():
            child.kill()
        _pool.clear()
