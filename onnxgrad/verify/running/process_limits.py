"""The limits of the work on one model, for this process as well as for its children."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from onnxgrad.limits import Limits, limited

# seconds between two alarms, because an `except` may swallow the first
_AGAIN = 5.0
# bytes of address space for our process beyond its size when the work begins
_ROOM = 1 << 29


@contextlib.contextmanager
def bounding_us(timeout: float | None, max_memory: int | str | None) -> Iterator[None]:
    """Applies `limits.limited`. In the main thread, also limits our own time by an alarm and our
    own memory by our address space. Raises LimitReached.
    """
    with limited(timeout, max_memory) as limits, _alarm(limits), _address_space(limits):
        try:
            yield
        except MemoryError as error:
            raise limits.out_of_memory() from error


@contextlib.contextmanager
def _alarm(limits: Limits) -> Iterator[None]:
    if not _alone() or not hasattr(signal, "setitimer"):
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
    if not _alone():
        yield
        return
    try:
        import resource

        held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except (ImportError, OSError):  # this system has no such limit
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = [held + limits.memory + _ROOM, *(n for n in (soft, hard) if n != resource.RLIM_INFINITY)]
    resource.setrlimit(resource.RLIMIT_AS, (min(most), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _alone() -> bool:
    """True in the main thread. Another thread shares clock and memory with unrelated work."""
    return threading.current_thread() is threading.main_thread()
