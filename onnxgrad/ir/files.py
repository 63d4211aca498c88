"""Files that appear whole or not at all, on the disk and in their order; devices and pipes are
written into.

A file is made beside its place under another name, brought to the disk and renamed: whoever looks
sees the old file or the new one. Where several belong together the one that refers to the others
comes last. What a killed process left in the folder goes with the next file that is made there.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from types import TracebackType
from typing import IO

from onnxgrad.errors import InputError
from onnxgrad.ir import leftovers

_REFUSED = {stat.S_IFBLK: "a block device", stat.S_IFSOCK: "a socket"}


def is_stream(path: Path) -> bool:
    """Whether `path` leads to a device or a pipe, which is written into, rather than to a file or
    to nothing yet.

    Raises InputError for what can be neither written into nor replaced, such as a folder; OSError
    for a circle of links or a folder that cannot be entered.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return False
    if stat.S_ISDIR(mode):
        raise InputError(f"{path}: cannot be written: it is a folder; name a file")
    if stat.S_IFMT(mode) in _REFUSED:
        raise InputError(
            f"{path}: cannot be written: it is {_REFUSED[stat.S_IFMT(mode)]}; name a file"
        )
    return not stat.S_ISREG(mode)


def place_of(path: Path) -> Path:
    """Where the file of that name lies or will lie: links are followed and stay."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def write_stream(path: Path, data: bytes) -> None:
    """Write into a device or a pipe; for a pipe that nobody reads this waits, as everywhere."""
    with open(os.open(path, os.O_WRONLY | getattr(os, "O_NOCTTY", 0)), "wb") as file:
        file.write(data)


def write_whole(path: Path, data: bytes) -> None:
    """Write one file, or into a device or a pipe. Raises OSError and InputError; a file is then
    as it was.
    """
    if is_stream(path):
        write_stream(path, data)
        return
    with Staging(place_of(path).parent) as staging:
        part = staging.part()
        part.file.write(data)
        staging.publish((part, place_of(path)))


class Part:
    """A file in the making; `path` is its name until it is published."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # no mode of our own: the umask says who may read it, now and later
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        self.file: IO[bytes] = open(handle, "wb")  # noqa: SIM115
        self._held = leftovers.hold(handle)

    def release(self) -> None:
        """Say no more that somebody is writing it."""
        if self._held is not None:
            os.close(self._held)
            self._held = None

    def settle(self, *, sync: bool = True) -> None:
        """All of it on the disk; what a full disk refuses shows here at the latest."""
        if self.file.closed:
            return
        self.file.flush()
        if sync:
            os.fsync(self.file.fileno())
        self.file.close()


class Staging:
    """The parts of one result. At the end, however it comes, those that were not published are
    gone.

    A signal may end the work between any two lines, so what is to be removed is noted before it is
    made.
    """

    def __init__(self, folder: Path, *, sync: bool = True) -> None:
        self.folder = folder
        self.sync = sync
        self._names: list[Path] = []
        self._parts: list[Part] = []
        self._moves: tuple[tuple[Part, Path], ...] = ()

    def __enter__(self) -> Staging:
        leftovers.sweep(self.folder)
        return self

    def part(self) -> Part:
        """A new empty file in the folder. Raises OSError."""
        self._names.append(self.folder / leftovers.new_name())
        self._parts.append(Part(self._names[-1]))
        return self._parts[-1]

    def publish(self, *moves: tuple[Part, Path]) -> None:
        """Give each part its name, in this order; the last may replace a file, the names of the
        others are free.

        Raises OSError; then nothing has changed.
        """
        for part, _ in moves:
            part.settle(sync=self.sync)
        self._moves = moves
        for part, path in moves:
            os.replace(part.path, path)
            if self.sync:
                _sync_folder(path.parent)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        # The last move is the one that counts, and the file system knows whether it was made.
        if self._moves and self._moves[-1][0].path.exists():
            for part, path in self._moves[:-1]:
                if not part.path.exists():
                    path.unlink(missing_ok=True)
        for part in self._parts:
            with contextlib.suppress(OSError):  # the disk is full: that was said before
                part.file.close()
            part.release()
        for name in self._names:
            name.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Bring names to the disk, where the system can."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
