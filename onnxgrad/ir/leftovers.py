"""What a killed process left behind: unfinished files, told from those that somebody is writing.

Who writes an unfinished file holds a lock on it, which ends with the process, however that ends.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import secrets
import stat
import time
import zlib
from pathlib import Path

_LOCKS = True
try:
    import fcntl
except ImportError:  # not on Windows: nothing is taken away there
    _LOCKS = False

# a lock need not reach other machines that write into a shared folder
_HOST = f"{zlib.crc32(platform.node().encode()):08x}"
_OURS = re.compile(rf"\.onnxgrad-{_HOST}-[0-9a-f]{{16}}\.part")
_PATIENCE = 30.0  # seconds that publishing in a folder waits for others who do
_YOUNG = 10.0  # seconds in which a file may be made and not yet locked


def new_name() -> str:
    """A name for an unfinished file, which nobody else has."""
    return f".onnxgrad-{_HOST}-{secrets.token_hex(8)}.part"


def hold(handle: int) -> int | None:
    """Lock an open file until what is returned is closed; None where the system cannot."""
    if not _LOCKS:
        return None
    held = os.dup(handle)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(held)
        return None
    return held


def hold_folder(folder: Path) -> int | None:
    """Lock a folder until what is returned is closed, after those who hold it; None where the
    system cannot, or somebody holds it for long.
    """
    if not _LOCKS:
        return None
    handle = os.open(folder, os.O_RDONLY)
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return handle
        except BlockingIOError:
            if time.monotonic() < until:
                time.sleep(0.01)
                continue
        except OSError:  # the file system knows no locks
            pass
        os.close(handle)
        return None


def sweep(folder: Path) -> None:
    """Take away the unfinished files of processes of this machine that are gone; what cannot be
    told or taken away stays.
    """
    if not _LOCKS:
        return
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for path in [Path(e.path) for e in entries if _OURS.fullmatch(e.name)]:
            with contextlib.suppress(OSError):
                _remove(path)


def _remove(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        found = os.fstat(handle)
        begun = found.st_size > 0 or time.time() - found.st_mtime > _YOUNG
        if stat.S_ISREG(found.st_mode) and begun:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
    finally:
        os.close(handle)
