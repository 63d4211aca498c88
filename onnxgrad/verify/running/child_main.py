"""The main module of the child process, which runs models in onnxruntime or in float64.

`child_process.py` starts it without importing the package or onnx, so a child is ready in about 0.2
s. The child for float64 imports onnx and the evaluator, but not the rest of the package.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, BinaryIO

from onnxgrad.interpreter import ignore_interrupts
from onnxgrad.verify.running.child_sessions import Sessions, preload
from onnxgrad.verify.running.wire import receive, send

# bytes of address space that onnxruntime, numpy and their threads reserve without using them
_RESERVED = 1 << 30


class _Memory:
    """The soft limit of this process's address space: the limit of a request, plus the space that
    libraries and threads reserve.
    """

    def __init__(self) -> None:
        self.limit = 0

    def set(self, limit: int) -> None:
        """Limits the address space to `limit` bytes. 0 removes the limit, except a hard one."""
        if limit == self.limit:
            return
        try:
            import resource
        except ImportError:  # not a POSIX system: there is no such limit
            return
        self.limit = limit
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        most = min(limit + _RESERVED, 1 << 62) if limit else resource.RLIM_INFINITY
        if hard != resource.RLIM_INFINITY:
            most = hard if most == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answers requests until the parent closes the pipe. Every failure of a library becomes an
    answer.
    """
    sessions, memory = Sessions(), _Memory()
    _parent[:] = [requests, answers]
    while True:
        try:
            verb, limit, *arguments = receive(requests)
        except EOFError:
            return
        try:
            memory.set(limit)
            answer: tuple[Any, ...] = ("ok", _VERBS[verb](sessions, *arguments))
            del arguments
        except Exception as error:  # noqa: BLE001  # libraries raise their own classes; the parent interprets them
            kind = "MemoryError" if limit and _lacks_memory(error) else type(error).__name__
            answer = ("failed", kind, str(error))
        send(answers, answer)
        del answer


def _lacks_memory(error: Exception) -> bool:
    """Whether memory ran out below Python. protobuf then fails to read or write a message, and the
    parent has read and written this model before.
    """
    return type(error).__name__ in ("DecodeError", "EncodeError") or "bad_alloc" in str(error)


_parent: list[BinaryIO] = []  # the streams from and to the parent while we serve it


def _ask_parent(*call: Any) -> Any:
    """Returns the answer of the parent to a call that we make while we serve its request."""
    send(_parent[1], ("call", *call))
    status, answer = receive(_parent[0])
    if status != "ok":
        kind, words = answer
        raise type(kind, (RuntimeError,), {})(words)  # the message of the node's failure
    return answer


def _versions(_: Sessions) -> dict[str, Any]:
    import onnxruntime as ort

    return {"onnxruntime": ort.__version__, "providers": ort.get_available_providers()}


def _kernels(_: Sessions, provider: str) -> dict[str, list[Any]]:
    """Returns each operator's kernels on a provider: the first and the last version, and types."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    found: dict[str, list[Any]] = {}
    for kernel in state.get_all_opkernel_def():
        if kernel.provider == provider:
            name = f"{kernel.domain}::{kernel.op_name}" if kernel.domain else kernel.op_name
            entry = [*kernel.version_range, dict(kernel.type_constraints)]
            found.setdefault(name, []).append(entry)
    return found


def _preload(_: Sessions) -> None:
    import onnxruntime as ort

    preload(ort)


def _serving() -> Any:
    """Imports and returns the float64 evaluator, which imports onnx. Most children need neither."""
    from onnxgrad.verify.reference import server

    return server


@functools.cache
def _references() -> Any:
    """Returns the models that this process holds compiled for the float64 reference."""
    return _serving().References()


def _deciding() -> Any:
    """Imports and returns exact evaluation, which only the float64 child needs."""
    from onnxgrad.verify.exact import child

    return child


def _decided(first: Any, second: Any, *more: Any) -> Any:
    """Decides two models."""
    read = _serving().read
    return _deciding().decide_in_child(read(first), read(second), *more)


def _decided_window(old: Any, new: Any, claims: Any, witnesses: Any, *more: Any) -> Any:
    """Decides the window of a rewrite."""
    read = _serving().read
    graphs = {name: read(witness) for name, witness in witnesses.items()}
    return _deciding().decide_window_in_child(read(old), read(new), claims, graphs, *more)


_VERBS: dict[str, Callable[..., Any]] = {
    "versions": _versions,
    "kernels": _kernels,
    "preload": _preload,
    "has": Sessions.has,
    "close": Sessions.close_all,
    "open": Sessions.open,
    "run": Sessions.run,
    "time": Sessions.time,
    "optimized": Sessions.optimized,
    "peak": Sessions.peak,
    "exact.open": lambda _, *arguments: _references().open(_ask_parent, *arguments),
    "exact.run": lambda _, *arguments: _references().run(*arguments),
    "exact.covered": lambda _, *arguments: _references().covered(*arguments),
    "exact.mark": lambda _, *arguments: _references().mark(*arguments),
    "exact.goals": lambda _, *arguments: _references().goals(*arguments),
    "exact.reached": lambda _, *arguments: _references().reached(*arguments),
    "algebra.decide": lambda _, *arguments: _decided(*arguments),
    "algebra.window": lambda _, *arguments: _decided_window(*arguments),
    "exact.infer": lambda _, *arguments: _serving().infer_types(*arguments),
}


def _end_with_parent(pipe: int) -> None:
    """Ends this process as soon as the parent's end of `pipe` closes, however the parent died.

    The kernel's SIGIO ends the process even while a library computes and holds the interpreter's
    lock. A thread ends it on systems without that signal, or if the parent had already died.
    """
    if hasattr(os, "O_ASYNC"):
        import fcntl

        signal.signal(signal.SIGIO, signal.SIG_DFL)  # the default ends the process
        fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)

    def wait() -> None:
        os.read(pipe, 1)  # nobody writes
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def main() -> None:
    """Keeps the answer pipe private: the output of libraries goes to stderr, which the parent keeps
    in a file.
    """
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    pipe = int(sys.argv[2])
    ignore_interrupts()
    if pipe >= 0:
        _end_with_parent(pipe)
    # import the libraries while the parent is busy
    if sys.argv[1] == "float64":
        _references()
    elif sys.argv[1] in ("cpu", "runtime"):
        with contextlib.suppress(Exception):  # the first request reports the failure
            import onnxruntime  # noqa: F401
    gc.freeze()  # the imported objects stay
    gc.enable()
    serve(sys.stdin.buffer, answers)
