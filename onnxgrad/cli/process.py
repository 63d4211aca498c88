"""The process around one command: signals, closed streams, warnings of libraries."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from types import FrameType
from typing import Any, TextIO

from onnxgrad.errors import RuleWarning, RunWarning
from onnxgrad.wording import printable

# signals by which a user or a system ends a program
_SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)
_CLEANING = 1.0  # seconds after a signal in which another one does not disturb the cleaning up


class Stopped(KeyboardInterrupt):
    """A signal ended the run. `exit_code` is the one that a shell reports after that signal."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number
        self.words = (
            "interrupted" if number == signal.SIGINT else f"ended by {signal.Signals(number).name}"
        )


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """Signals that end a program raise Stopped in here, so that it cleans up as after an error.

    Those that the caller handles or ignores stay as they are, and so do all of them outside the
    main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    last = -_CLEANING

    def stop(number: int, _: FrameType | None) -> None:
        nonlocal last
        before, last = last, time.monotonic()
        if last - before >= _CLEANING:
            raise Stopped(number)

    ours = [
        n for n in _SIGNALS if signal.getsignal(n) in (signal.SIG_DFL, signal.default_int_handler)
    ]
    handlers = {n: signal.signal(n, stop) for n in ours}
    _before.update(handlers)
    try:
        yield
    finally:
        _before.clear()
        for n, handler in handlers.items():
            signal.signal(n, handler)


# the handlers that `stoppable` took the place of
_before: dict[int, Any] = {}


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Signals do inside what they did before `stoppable`: an error raised in the middle of an
    import leaves libraries of C half made, which complain. Nor is garbage looked for, which imports
    leave none of: it takes a tenth of their time.
    """
    collects = gc.isenabled()
    gc.disable()
    handlers = {n: signal.signal(n, handler) for n, handler in _before.items()}
    try:
        yield
    finally:
        for n, handler in handlers.items():
            signal.signal(n, handler)
        if collects:
            gc.enable()


def open_streams() -> None:
    """Put the null device where stdin, stdout or stderr is closed: the next file opened would take
    its number, and get what a library prints. What Python writes there is lost, as it is anywhere.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
    if sys.stdout is None:
        sys.stdout = _nowhere()
    if sys.stderr is None:
        sys.stderr = _nowhere()


def leave(code: int) -> None:
    """End this process with an exit code, at once: Python's own way takes a tenth of a second, for
    memory that the system takes back anyway. Returns if another thread has work to finish.
    """
    threads = (t for t in threading.enumerate() if t is not threading.main_thread())
    if any(not t.daemon for t in threads):
        return
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _nowhere() -> TextIO:
    return open(os.devnull, "w", encoding="utf-8", errors="replace")  # lives as long as the program


def drop(stream: TextIO) -> None:
    """Discard the rest of a stream; Python would try to write it again at exit, and complain."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@contextlib.contextmanager
def quiet_libraries(verbose: bool) -> Iterator[None]:
    """Warnings of libraries are not messages of ours: not printed, or one line each with -v. Those
    of a rule that failed are ours.
    """

    def show(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
        words = printable(" ".join(str(message).split()))
        if issubclass(category, RuleWarning):
            print(f"warning: {words}", file=sys.stderr)
        elif issubclass(category, RunWarning):
            print(f"note: {words}", file=sys.stderr)
        elif verbose:
            print(f"{category.__name__}: {words}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.showwarning = show
        warnings.simplefilter("always", RuleWarning)
        warnings.simplefilter("always", RunWarning)
        yield
