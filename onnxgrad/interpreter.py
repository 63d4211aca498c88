"""Starts Python processes of our own, so that no file of the working folder runs in them.

`python -c` and `python -m` search the working folder before everything else. It may contain a
stranger's `types.py` beside the model.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

_PACKAGE = """
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
spec = PathFinder.find_spec("onnxgrad", [{folder!a}])
sys.modules["onnxgrad"] = module_from_spec(spec)
spec.loader.exec_module(sys.modules["onnxgrad"])
"""


def cores() -> int:
    """Returns the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def python_command(statements: str, *words: str, package: bool = False) -> list[str]:
    """Returns the command line of an isolated Python (`-I`) that runs `statements`, with `words` as
    `sys.argv[1:]`.

    It searches for modules where this process does, except in the working folder. The path is set
    before anything is imported, and `sys` is imported for the statements. `package`: import this
    `onnxgrad` first, wherever it is stored.
    """
    path = [entry for entry in sys.path if isinstance(entry, str)]
    here = [entry for entry in path if is_working_folder(entry)]
    # an entry that Python adds itself stays, even if it is the working folder
    code = (
        f"import sys\nsys.path[:] = [p for p in {path!a} if p in sys.path or p not in {here!a}]\n"
    )
    if package:
        code += _PACKAGE.format(folder=str(Path(__file__).resolve().parents[1]))
    return [sys.executable, "-I", *_flags(), "-c", code + statements, *words]


def is_working_folder(entry: str) -> bool:
    """Whether an entry of `sys.path` is the working folder, which may be a stranger's."""
    try:
        return os.path.samefile(entry or os.curdir, os.curdir)
    except OSError:  # a folder does not exist
        return entry in ("", os.curdir)


def _flags() -> list[str]:
    """Returns flags in place of the environment variables that `-I` ignores, so that file names are
    encoded and compiled modules are stored as in this process.
    """
    flags = ["-X", f"utf8={sys.flags.utf8_mode}"]
    if sys.dont_write_bytecode:
        flags.append("-B")
    if sys.pycache_prefix is not None:
        flags += ["-X", f"pycache_prefix={sys.pycache_prefix}"]
    return flags


@contextlib.contextmanager
def interrupts_held() -> Iterator[None]:
    """Blocks SIGINT: a process started in this context receives no interrupt before it calls
    `ignore_interrupts`. This process receives interrupts when the context ends.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore_interrupts() -> None:
    """Ignores SIGINT in a process started under `interrupts_held`: the signal reaches the process
    group, and the parent decides.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def return_memory() -> None:
    """Returns freed memory to the system. glibc keeps blocks as large as weights for later."""
    import ctypes  # rarely needed

    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)
