"""Limits of the work on one model: one deadline, and one bound on memory; and how options write
bounds.

`with limited(timeout, max_memory):` starts the clock. Inside, at any depth, `current()` returns the
limits: child processes get their time and memory from them, and long loops check the deadline.
"""

from __future__ import annotations

import functools
import math
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import ParamSpec, TypeAlias, TypeVar, cast

from onnxgrad.errors import InputError, NotProved
from onnxgrad.frozen import frozen
from onnxgrad.wording import option

_P = ParamSpec("_P")
_R = TypeVar("_R")

SECONDS = 300.0  # default of --timeout
MOST_SECONDS = 1e6
UNLIMITED = 1 << 62
_UNITS = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "ki": 2**10,
    "mi": 2**20,
    "gi": 2**30,
    "ti": 2**40,
}
_SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,9})?)\s*([kmgt]i?)?b?", re.IGNORECASE)


class LimitReached(NotProved):
    """Time or memory ran out: the result is neither proved nor refuted. The message names the
    option that raises the limit.
    """


@frozen
class Limits:
    """`seconds` in all until `deadline` (of time.monotonic), and `memory` bytes for each
    process.
    """

    seconds: float
    memory: int
    deadline: float

    def left(self) -> float:
        """Returns the seconds until the deadline. Raises LimitReached after the deadline."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise self.out_of_time()
        return left

    def out_of_time(self) -> LimitReached:
        """Returns the error for a deadline that has passed."""
        return LimitReached(
            f"not proved: the work took longer than {self.seconds:g} s; raise the "
            f"limit with {option('--timeout', 'timeout=')}"
        )

    def out_of_memory(self) -> LimitReached:
        """Returns the error for memory that has run out."""
        return LimitReached(
            f"not proved: the work needs more memory than {size_text(self.memory)}; raise the "
            f"limit with {option('--max-memory', 'max_memory=')}"
        )


_current: ContextVar[Limits | None] = ContextVar("onnxgrad_limits", default=None)


def current() -> Limits:
    """Returns the limits in force; by default there is no deadline, and the default memory."""
    return _current.get() or Limits(float("inf"), default_memory(), float("inf"))


@contextmanager
def limited(timeout: float | None = None, max_memory: int | str | None = None) -> Iterator[Limits]:
    """Limits the code inside. None means the default. Inside other limits, the stricter ones apply.

    Raises InputError for values that are not limits.
    """
    outer = _current.get()
    if timeout is not None and not 0 < timeout < float("inf"):
        raise InputError(f"timeout must be a positive number of seconds, not {timeout!r}")
    memory = default_memory() if max_memory is None else read_size(max_memory)
    if outer is not None:
        memory = outer.memory if max_memory is None else min(memory, outer.memory)
    seconds = SECONDS if timeout is None else float(timeout)
    limits = Limits(seconds, memory, time.monotonic() + seconds)
    if outer is not None and (timeout is None or outer.deadline <= limits.deadline):
        limits = Limits(outer.seconds, memory, outer.deadline)
    token = _current.set(limits)
    try:
        yield limits
    finally:
        _current.reset(token)


def bounded(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Returns the function, limited by its arguments `timeout` and `max_memory`."""

    @functools.wraps(function)
    def within(*args: _P.args, **options: _P.kwargs) -> _R:
        timeout, memory = options.get("timeout"), options.get("max_memory")
        with limited(cast("float | None", timeout), cast("int | str | None", memory)):
            return function(*args, **options)

    return within


def read_size(text: int | str) -> int:
    """Returns the bytes of 4000000000, "4GB" or "3.5 GiB". Raises InputError."""
    if isinstance(text, int) and not isinstance(text, bool) and text > 0:
        return min(text, UNLIMITED)
    match = _SIZE.fullmatch(text.strip()) if isinstance(text, str) else None
    size = 0 if match is None else int(float(match[1]) * _UNITS[(match[2] or "").lower()])
    if size <= 0:
        raise InputError(
            f"{str(text)[:40]!r} is not an amount of memory: write a number of bytes, or "
            "text such as 4GB or 512MiB"
        )
    return min(size, UNLIMITED)


def size_text(size: int) -> str:
    """Returns a size of memory in binary units."""
    value, units = float(size), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{value:.3g} {units[0]}"


@functools.cache
def default_memory() -> int:
    """Returns half of the memory of this machine, or of the cgroup of this process."""
    found = [UNLIMITED]
    if hasattr(os, "sysconf"):
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    found += [int(text) for text in map(_first_line, _cgroup_files()) if text.isdecimal()]
    return min(size for size in found if size > 0) // 2


def _cgroup_files() -> Iterator[Path]:
    """Yields the files in which cgroups, version 2 and 1, limit the memory of our group and of the
    groups around it.
    """
    root = Path("/sys/fs/cgroup")
    yield root / "memory.max"
    yield root / "memory/memory.limit_in_bytes"
    try:
        entries = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for entry in entries:
        _, controllers, path = [*entry.split(":", 2), "", ""][:3]
        own = Path(path.lstrip("/"))
        for group in (own, *own.parents):
            if not controllers:
                yield root / group / "memory.max"
            elif "memory" in controllers.split(","):
                yield root / "memory" / group / "memory.limit_in_bytes"


def _first_line(path: Path) -> str:
    try:
        return path.read_text().partition("\n")[0]
    except OSError:
        return ""


# an interval of numbers with both ends
Interval: TypeAlias = "tuple[float, float]"


def read_interval(text: str, where: str) -> Interval:
    """Returns both ends of a text LOW..HIGH. Raises InputError."""
    low, _, high = text.partition("..")
    try:
        ends = float(low), float(high)
    except ValueError:
        ends = math.nan, math.nan
    if not -math.inf < ends[0] <= ends[1] < math.inf:
        raise InputError(f"{where} {text[:80]!r}: write LOW..HIGH, such as -3..3, LOW <= HIGH")
    return ends


def interval_text(interval: Interval) -> str:
    """Returns the text LOW..HIGH, which `read_interval` reads back exactly."""
    return "..".join(repr(end).removesuffix(".0") for end in interval)
