"""The checkpoints of a run in its folder: the last one, from which the run resumes, the best one,
and earlier ones; and the lock of the folder.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from onnxgrad.errors import InputError
from onnxgrad.ir.storage.atomic_files import discard, link_whole, refuse_file
from onnxgrad.wording import option

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

CHECKPOINT = "checkpoint.safetensors"
BEST = "best.safetensors"
LOCK = ".onnxgrad.lock"
_OF_STEP = re.compile(r"checkpoint-(\d+)\.safetensors")

Write = Callable[[Path], None]


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run. keep: the number of checkpoints that stay under names with
    their steps.
    """

    path: Path
    keep: int = 0

    @property
    def last(self) -> Path:
        """The checkpoint from which the run resumes."""
        return self.path / CHECKPOINT

    @property
    def best(self) -> Path:
        """The checkpoint of the smallest held-out loss."""
        return self.path / BEST

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the lock of the folder, which the system releases when the process ends, however it
        ends. Raises InputError if another run holds the lock.
        """
        new = not self.path.exists()
        self._make()
        handle = self._lock()
        _held.add(handle)
        try:
            yield
        finally:
            with suppress(OSError):  # Windows keeps the name of an open file
                (self.path / LOCK).unlink()
            _held.discard(handle)
            os.close(handle)
            if new:
                with suppress(OSError):  # only an empty folder goes
                    self.path.rmdir()

    def _lock(self) -> int:
        while True:
            try:
                handle = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
            except OSError as error:
                where = f"{self.path / LOCK}: cannot be written"
                raise InputError(f"{where}: {error.strerror or error}") from None
            try:
                if sys.platform == "win32":
                    msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
                else:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):
                os.close(handle)
                other = option("--folder", "folder")
                raise InputError(
                    f"{self.path}: another run trains in this folder: wait for its end, or choose "
                    f"another {other}"
                ) from None
            except OSError:  # the file system has no locks
                return handle
            if os.fstat(handle).st_nlink:
                return handle
            os.close(handle)  # the run that ended removed the name

    def save(self, write: Write, steps: int) -> None:
        """Writes the last checkpoint, taken after this many steps. Raises InputError."""
        self._make()
        write(self.last)
        self.link(steps)

    def save_best(self, write: Write) -> None:
        """Writes the best checkpoint. Call it before `save`, so that a run killed in between writes
        it again.
        """
        self._make()
        write(self.best)

    def _make(self) -> None:
        refuse_file(self.path)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{self.path}: cannot be made: {error.strerror or error}") from None

    def link(self, steps: int) -> None:
        """Links the last checkpoint to a name with its steps, and removes the oldest of these names
        beyond `keep`. Raises InputError if the disk is full.
        """
        if not self.keep:
            return
        name = self.path / f"checkpoint-{steps}.safetensors"
        try:
            link_whole(self.last, name)
        except OSError as error:
            raise InputError(f"{name}: cannot be written: {error.strerror or error}") from None
        discard(self.kept()[: -self.keep])

    def kept(self) -> list[Path]:
        """Returns the checkpoints with steps in their names, the oldest first."""
        found = {int(m[1]): p for p in self.path.iterdir() if (m := _OF_STEP.fullmatch(p.name))}
        return [found[steps] for steps in sorted(found)]


_held: set[int] = set()  # handles of locks


def _release_in_child() -> None:
    """Closes copies of locks in a forked process, which may live longer than the run."""
    while _held:
        os.close(_held.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_release_in_child)
