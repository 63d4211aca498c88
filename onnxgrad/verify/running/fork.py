"""Child processes as forks of a program that has just started. A fork has imported what the program
has, such as numpy, which takes longer than everything else that a child does before its first
model.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Mapping
from typing import NoReturn

from onnxgrad.interpreter import is_working_folder
from onnxgrad.startup import IS_PROGRAM
from onnxgrad.verify.running.child_main import main

# the parameters of glibc's mallopt that its environment variables set at the start of a process
_MALLOPT = {"MALLOC_MMAP_THRESHOLD_": -3, "MALLOC_TRIM_THRESHOLD_": -1}


def may_fork() -> bool:
    """True if a fork of this process is as good as a new one: the process is ours, small, and has
    one thread, so that no lock is held by a thread that the fork lacks.
    """
    if not IS_PROGRAM or sys.platform != "linux":
        return False
    try:
        return len(os.listdir("/proc/self/task")) == 1
    except OSError:  # /proc is not mounted
        return False


def become(kind: str, watched: int, settings: Mapping[str, str]) -> NoReturn:
    """Turns a fork into a child that serves at its stdin until its parent ends. `watched`: the only
    other file that stays open. `settings`: environment variables of a new child.
    """
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) != watched:
            with contextlib.suppress(OSError):  # the one that lists the folder
                os.close(int(name))
    code = 1
    try:
        # the parent's may be closed, or other objects
        sys.stdin, sys.stdout, sys.stderr = (
            open(number, mode, closefd=False)  # noqa: SIM115  # open until the end
            for number, mode in enumerate("rww")
        )
        sys.argv[1:] = kind, str(watched)
        _isolate()
        _set_allocator(settings)
        main()
        code = 0
    except BaseException:  # noqa: BLE001  # the parent reads the last line, as of a new child
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


def _set_allocator(settings: Mapping[str, str]) -> None:
    allocator = getattr(ctypes.CDLL(None), "mallopt", None)
    if allocator is None:  # not glibc
        return
    for name in settings.keys() & _MALLOPT.keys() - os.environ.keys():
        allocator(_MALLOPT[name], int(settings[name]))


def _isolate() -> None:
    """Removes the working folder from the module search path, as `python -I` does, unless this
    Python is installed there.
    """
    sys.path[:] = [p for p in sys.path if not is_working_folder(p) or p.startswith(sys.prefix)]
