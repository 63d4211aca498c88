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
from onnxgrad.startup import IS_PROGRAM
from onnxgrad.wording import one_line, printable

# signals with which a user or the system ends a program
_SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)
_CLEANING = 1.0  # seconds after a signal during which further signals do not disturb the cleanup


class Stopped(KeyboardInterrupt):
    """A signal ended the run. `exit_code` is the one that shells report after that signal."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number
        self.words = (
            "interrupted" if number == signal.SIGINT else f"ended by {signal.Signals(number).name}"
        )


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """Signals that end a program raise Stopped inside this context, so that it cleans up as after
    an error.

    Signals that the caller handles or ignores stay as they are. Outside the main thread, all
    signals do.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    last = -_CLEANING

    def stop(number: int, _: FrameType | None) -> None:
        nonlocal last
        before, last = last, time.monotonic()
        if last - before >= _CLEANING:
            _received[:] = [Stopped(number)]
            raise _received[0]

    ours = [
        n for n in _SIGNALS if signal.getsignal(n) in (signal.SIG_DFL, signal.default_int_handler)
    ]
    handlers = {n: signal.signal(n, stop) for n in ours}
    _before.update(handlers)
    try:
        yield
    finally:
        _before.clear()
        _received.clear()
        for n, handler in handlers.items():
            signal.signal(n, handler)


# the handlers that `stoppable` replaced, and the signal that ended its run
_before: dict[int, Any] = {}
_received: list[Stopped] = []


def cause(error: BaseException) -> BaseException:
    """Returns the signal that ended the run, if there was one: C libraries, and imports, turn the
    exception into others of their own.
    """
    return next(iter(_received), error)


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Restores the signal handlers from before `stoppable` inside this context, because an
    exception in the middle of an import leaves C libraries half initialised. Also switches the
    garbage collector off: imports leave no garbage, and it takes a tenth of their time. If the
    process is ours, it never looks at the imported objects again.
    """
    collects = gc.isenabled()
    gc.disable()
    handlers = {n: signal.signal(n, handler) for n, handler in _before.items()}
    try:
        yield
    finally:
        for n, handler in handlers.items():
            signal.signal(n, handler)
        if IS_PROGRAM:  # in another program its owner may ask what refers to an object
            gc.freeze()
        if collects:
            gc.enable()


@contextlib.contextmanager
def one_blas_thread() -> Iterator[None]:
    """Inside this context, numpy is imported without threads for products, of which this process
    computes small ones only: a process with threads does not fork its children.
    """
    name = "OPENBLAS_NUM_THREADS"
    if not IS_PROGRAM or name in os.environ:
        yield
        return
    os.environ[name] = "1"
    try:
        yield
    finally:
        del os.environ[name]


def open_streams() -> None:
    """Opens the null device for each of stdin, stdout and stderr that is closed. Otherwise the next
    opened file would get its number and receive the output of libraries. Output of Python to it is
    lost.
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
    """Ends this process immediately with an exit code. A normal exit takes a tenth of a second to
    free memory that the system reclaims anyway. Returns if another thread has work to finish.
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
    return open(os.devnull, "w", encoding="utf-8", errors="replace")  # open until the end


def drop(stream: TextIO) -> None:
    """Discards the rest of a stream. Otherwise Python would write it again at exit, and
    complain.
    """
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@contextlib.contextmanager
def quiet_libraries(verbose: bool) -> Iterator[None]:
    """Prints no warnings of libraries inside this context; with -v, one line for each. Warnings of
    onnxgrad are always printed.
    """

    def show(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
        words = printable(one_line(message))
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
