"""Files that appear whole or not at all, on the disk and in their order; devices and pipes are
written into.

A file is made beside its place under another name, brought to the disk and renamed: whoever looks
sees the old file or the new one. Where several belong together the one that refers to the others
comes last. What a killed process left in the folder goes with the next file that is made there.
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
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO

from onnxgrad.errors import InputError

_LARGEST_TEXT = 1 << 28  # bytes
_REFUSED = {stat.S_IFBLK: "a block device", stat.S_IFSOCK: "a socket"}


def regular(path: Path, most: int | None = None) -> Path:
    """The path of a regular file, or of a link to one: anything else may never end. Raises
    InputError for a device, a pipe or a folder and for a file of more than `most` bytes, OSError
    where there is none.
    """
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        kind = "a folder" if stat.S_ISDIR(found.st_mode) else "a device or a pipe"
        raise InputError(f"{path}: is {kind}; name a file")
    if most is not None and found.st_size > most:
        raise InputError(
            f"{path}: has {found.st_size:,} bytes, more than the {most:,} that are read"
        )
    return path


def text_of(path: Path) -> str:
    """The text of a regular file of at most 256 MiB, in UTF-8. Errors as `regular`, and
    UnicodeDecodeError.
    """
    return regular(path, _LARGEST_TEXT).read_text(encoding="utf-8-sig")


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
    """Write one file, or into a device or a pipe. Raises OSError, which names it, and InputError; a
    file is then as it was.
    """
    try:
        if is_stream(path):
            write_stream(path, data)
            return
        place = place_of(path)
        with Staging(place.parent) as staging:
            part = staging.part(place)
            part.file.write(data)
            staging.publish((part, place))
    except OSError as error:  # a full disk is no fault of the file that was being made
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


@contextlib.contextmanager
def made_folder(folder: Path) -> Iterator[None]:
    """The folder is there in here; what had to be made of it goes when the block fails and left it
    empty. Raises OSError.
    """
    missing = [p for p in (folder, *folder.parents) if not p.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:  # an interrupt too leaves no folder
        for path in missing:
            with contextlib.suppress(OSError):
                path.rmdir()
        raise


class Part:
    """A file in the making; `path` is its name until it is published. Who may read it says the file
    `like`, which it replaces or whose model has its weights in it, else the umask.
    """

    def __init__(self, path: Path, like: Path | None = None) -> None:
        self.path = path
        before = _stat(like)
        # closed to others until it is known who may read it
        mode = 0o666 if before is None else 0o600
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode)
        self.file: IO[bytes] = open(handle, "wb")  # noqa: SIM115
        self._held = hold(handle)
        if before is not None:
            _take_over(handle, before)

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
        # second names of what is replaced before the last
        self._before: dict[Path, Path] = {}
        self._lock: int | None = None

    def __enter__(self) -> Staging:
        sweep(self.folder)
        return self

    def part(self, like: Path | None = None) -> Part:
        """A new empty file in the folder, with the mode of the file `like` if there is one. Raises
        OSError.
        """
        self._names.append(self.folder / new_name())
        self._parts.append(Part(self._names[-1], like))
        return self._parts[-1]

    def lock(self) -> None:
        """Keep other processes of ours from publishing in the folder until the end, so that none
        takes away or overlooks what another one is about to replace.
        """
        if self._lock is None:
            self._lock = hold_folder(self.folder)

    def publish(self, *moves: tuple[Part, Path]) -> None:
        """Give each part its name, in this order; what had it is replaced.

        Raises OSError; then nothing has changed.
        """
        for part, _ in moves:
            part.settle(sync=self.sync)
        for _, path in moves[:-1]:
            if path.exists():
                self._names.append(self.folder / new_name())
                self._before[path] = self._names[-1]
                os.link(path, self._names[-1])
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
                if part.path.exists():
                    continue
                if path in self._before:
                    os.replace(self._before[path], path)
                else:
                    path.unlink(missing_ok=True)
        for part in self._parts:
            with contextlib.suppress(OSError):  # the disk is full: that was said before
                part.file.close()
            part.release()
        for name in self._names:
            name.unlink(missing_ok=True)
        if self._lock is not None:
            os.close(self._lock)


def _stat(path: Path | None) -> os.stat_result | None:
    """Returns the status of a file, None if there is none."""
    try:
        return None if path is None else path.stat()
    except FileNotFoundError:
        return None


def _take_over(handle: int, before: os.stat_result) -> None:
    """The owner, if we may set it, the group and the mode of another file."""
    if hasattr(os, "fchown"):
        owner = before.st_uid if os.geteuid() == 0 else -1
        with contextlib.suppress(OSError):  # a group that we are not in
            os.fchown(handle, owner, before.st_gid)
        os.fchmod(handle, stat.S_IMODE(before.st_mode) & 0o777)


def _sync_folder(folder: Path) -> None:
    """Bring names to the disk, where the system can."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


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
