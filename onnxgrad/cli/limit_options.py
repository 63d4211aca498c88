"""`--timeout` and `--max-memory`: what the work on one model may cost, on the command line for
our own process too.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from onnxgrad.errors import InputError
from onnxgrad.limits import MOST_SECONDS, SECONDS, Limits, limited, read_size

# seconds between the first call to stop and the next, should the first be lost in an `except`
_AGAIN = 5.0
# bytes of address space that our process has beyond what it holds when the work begins
_ROOM = 1 << 29


def add_limits(parser: argparse._ActionsContainer) -> None:
    """The options."""
    parser.add_argument(
        "--timeout", type=seconds, default=SECONDS, metavar="SECONDS",
        help=f"for all work on one model (default: {SECONDS:g})",
    )  # fmt: skip
    parser.add_argument(
        "--max-memory", type=memory, metavar="SIZE",
        help="for each process that works on it, such as 4GB (default: half of what the machine or "
             "its cgroup has)",
    )  # fmt: skip


def seconds(text: str) -> float:
    """For argparse: a positive number."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < MOST_SECONDS:
        raise argparse.ArgumentTypeError(f"a positive number is wanted, not {text[:40]!r}")
    return value


def memory(text: str) -> int:
    """For argparse: a size in bytes, such as 512MiB."""
    try:
        return read_size(text)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


@contextlib.contextmanager
def within_limits(args: argparse.Namespace, extra: float = 0.0) -> Iterator[None]:
    """The work on one model, bound by the options; `extra` seconds are asked for and do not count.

    Raises LimitReached. Beside the children this bounds our own process: its time by an alarm,
    where we are the main thread, its memory by its address space.
    """
    with (
        limited(args.timeout + extra, args.max_memory) as limits,
        _alarm(limits),
        _address_space(limits),
    ):
        try:
            yield
        except MemoryError as error:
            raise limits.out_of_memory() from error


@contextlib.contextmanager
def _alarm(limits: Limits) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread() or not hasattr(
        signal, "setitimer"
    ):
        yield
        return

    def ring(*_: Any) -> None:
        raise limits.out_of_time()

    before = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, limits.left(), _AGAIN)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def _address_space(limits: Limits) -> Iterator[None]:
    try:
        import resource

        held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except (ImportError, OSError):  # no such limit there
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = [held + limits.memory + _ROOM, *(n for n in (soft, hard) if n != resource.RLIM_INFINITY)]
    resource.setrlimit(resource.RLIMIT_AS, (min(most), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
