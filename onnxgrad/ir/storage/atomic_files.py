"""Writes files completely or not at all, synchronised and in order; devices and pipes are written
directly.

A file is written beside its path under another name, synchronised and renamed, so readers see the
old file or the new one. If one of several files refers to the others, it comes last. The next write
to a folder removes files that a killed process left there. Files that the job reads are refused
(`ir/storage/protection.py`), so everything that the package writes for a user passes through here.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import stat
import time
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from onnxgrad.errors import InputError
from onnxgrad.ir.storage.protection import is_protected, refuse

_LARGEST_TEXT = 1 << 28  # bytes
_PIECE = 1 << 20
_REFUSED = {stat.S_IFBLK: "a block device", stat.S_IFSOCK: "a socket"}


def regular(path: Path, most: int | None = None) -> Path:
    """Returns the path if it is a regular file or a link to one; reading a pipe may never end.
    Raises InputError for a device, a pipe, a folder, or a file of more than `most` bytes. Raises
    OSError if there is no file.
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


def hash_file(digest: Any, path: Path) -> None:
    """Adds the bytes of a file to a hash of `hashlib`, in pieces."""
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)


def text_of(path: Path) -> str:
    """Returns the text of a regular file of at most 256 MiB, in UTF-8. Raises as `regular`, and
    UnicodeDecodeError.
    """
    return regular(path, _LARGEST_TEXT).read_text(encoding="utf-8-sig")


def is_stream(path: Path) -> bool:
    """Whether `path` is a device or a pipe, which is written into; False for a file and for a path
    that does not exist yet.

    Raises InputError for a folder or anything else that can neither be written into nor replaced,
    OSError for a circle of links or a folder that cannot be entered.
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
    """Returns the path of the file itself: links are followed and stay."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def write_stream(path: Path, *data: bytes) -> None:
    """Writes into a device or a pipe; waits until a pipe has a reader, as usual."""
    with open(os.open(path, os.O_WRONLY | getattr(os, "O_NOCTTY", 0)), "wb") as file:
        file.writelines(data)


def write_whole(path: Path, data: bytes | Iterable[bytes]) -> None:
    """Writes a file, a device or a pipe, at once or in pieces. Raises OSError with the path, or
    InputError; a file is then as before.
    """
    pieces = [data] if isinstance(data, bytes) else data
    try:
        if is_stream(path):
            write_stream(path, *pieces)
            return
        place = place_of(path)
        with Staging(place.parent) as staging:
            part = staging.part(place)
            part.file.writelines(pieces)
            staging.publish((part, place))
    except OSError as error:  # it may name the temporary file
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


@contextlib.contextmanager
def opened_to_change(path: Path, mode: str) -> Iterator[IO[Any]]:
    """Opens a file to extend or to cut it, as text in UTF-8 unless `mode` has a b. Raises OSError,
    and InputError for a file that the job reads.
    """
    refuse(path)
    with open(path, mode, encoding=None if "b" in mode else "utf-8") as file:
        yield file


def link_whole(file: Path, name: Path) -> None:
    """Gives a file a second name, or copies it if the file system has no hard links; a file of that
    name is replaced. Raises OSError, and InputError for a file that the job reads.
    """
    refuse(name)
    part = name.parent / new_name()
    try:
        try:
            os.link(file, part)
        except OSError:
            shutil.copyfile(file, part)
        os.replace(part, name)
    finally:
        part.unlink(missing_ok=True)  # os.replace leaves it if both were one file


def refuse_file(folder: Path, where: str = "") -> None:
    """Raises InputError, which begins with `where`, if the path of a folder is one of a file."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{where}{folder}: cannot be written: it is a file; name a folder")


@contextlib.contextmanager
def made_folder(folder: Path) -> Iterator[None]:
    """Creates the folder; if the block fails, folders that were created and are empty are removed.
    Raises OSError.
    """
    missing = [p for p in (folder, *folder.parents) if not p.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:  # an interrupt leaves no folder either
        for path in missing:
            with contextlib.suppress(OSError):
                path.rmdir()
        raise


def discard(files: Iterable[Path]) -> None:
    """Removes files that nothing reads any more, as far as the system allows it. A file that the
    job reads stays.
    """
    for file in files:
        with contextlib.suppress(OSError):
            if not is_protected(file):
                file.unlink()


class Part:
    """An unfinished file; `path` is its name until it is published. It takes the mode of the file
    `like`, which it replaces or whose weights it holds. Without `like` the umask decides.
    """

    def __init__(self, path: Path, like: Path | None = None) -> None:
        self.path = path
        before: os.stat_result | None = None
        with contextlib.suppress(FileNotFoundError):
            before = None if like is None else like.stat()
        # closed to others until its owner and mode are set
        mode = 0o666 if before is None else 0o600
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode)
        self.file: IO[bytes] = open(handle, "wb")  # noqa: SIM115
        self._held = hold(handle)
        if before is not None:
            _take_over(handle, before)

    def release(self) -> None:
        """Releases the lock that marks the file as being written."""
        if self._held is not None:
            os.close(self._held)
            self._held = None

    def settle(self, *, sync: bool = True) -> None:
        """Flushes and closes the file, with `sync` to the disk; raises OSError if the disk is
        full.
        """
        if self.file.closed:
            return
        self.file.flush()
        if sync:
            os.fsync(self.file.fileno())
        self.file.close()


class Staging:
    """The parts of one result, in one folder or several. At the end, also after an error, parts
    that were not published are removed.

    A signal may end the work between any two lines, so files are recorded before they are created.
    """

    def __init__(self, *folders: Path, sync: bool = True) -> None:
        self.folders = sorted({*folders})
        self.sync = sync
        self._names: list[Path] = []
        self._parts: list[Part] = []
        self._moves: tuple[tuple[Part, Path], ...] = ()
        # second names of the replaced files, except of the last
        self._before: dict[Path, Path] = {}
        # files that nothing reads once all parts are published: they are removed at the end
        self.replaced: list[Path] = []
        self._locks: list[int] = []

    def __enter__(self) -> Staging:
        for folder in self.folders:
            sweep(folder)
        return self

    def part(self, like: Path) -> Part:
        """Returns a new empty file beside the path `like`, with the mode of the file there if there
        is one. Raises OSError, and InputError for a file that the job reads.
        """
        refuse(like)
        self._names.append(like.parent / new_name())
        self._parts.append(Part(self._names[-1], like))
        return self._parts[-1]

    def lock(self) -> None:
        """Locks the folders against other processes of ours until the end. Otherwise one might
        remove or overlook a file that another one is about to replace.
        """
        if not self._locks:  # in one order, so that two processes do not wait for each other
            held = map(hold_folder, self.folders)
            self._locks = [handle for handle in held if handle is not None]

    def publish(self, *moves: tuple[Part, Path]) -> None:
        """Renames each part to its path, in this order, replacing the file there.

        Raises OSError, and InputError for a file that the job reads; then nothing has changed.
        """
        for part, path in moves:
            refuse(path)
            part.settle(sync=self.sync)
        for _, path in moves[:-1]:
            if path.exists():
                self._names.append(path.parent / new_name())
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
        # The last move decides, and the file system shows whether it was made.
        if self._moves and self._moves[-1][0].path.exists():
            self._undo()
        elif self._moves:
            discard(self.replaced)
        for part in self._parts:
            with contextlib.suppress(OSError):  # a full disk was reported before
                part.file.close()
            part.release()
        for name in self._names:
            name.unlink(missing_ok=True)
        for handle in self._locks:
            os.close(handle)

    def _undo(self) -> None:
        """Puts back the files that the moves before the last one replaced."""
        for part, path in self._moves[:-1]:
            if part.path.exists():
                continue
            if path in self._before:
                os.replace(self._before[path], path)
            else:
                path.unlink(missing_ok=True)


def _take_over(handle: int, before: os.stat_result) -> None:
    """Copies the owner, if permitted, the group and the mode of another file."""
    if hasattr(os, "fchown"):
        owner = before.st_uid if os.geteuid() == 0 else -1
        with contextlib.suppress(OSError):  # a group that we are not in
            os.fchown(handle, owner, before.st_gid)
        os.fchmod(handle, stat.S_IMODE(before.st_mode) & 0o777)


def _sync_folder(folder: Path) -> None:
    """Synchronises the names in a folder, if the system can."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


_LOCKS = True
try:
    import fcntl
except ImportError:  # not on Windows: unfinished files stay there
    _LOCKS = False

# a lock may not reach other machines that write into a shared folder, so names carry the host
_HOST = f"{zlib.crc32(platform.node().encode()):08x}"
_OURS = re.compile(rf"\.onnxgrad-{_HOST}-[0-9a-f]{{16}}\.part")
_PATIENCE = 30.0  # seconds to wait for other processes that publish in a folder
_YOUNG = 10.0  # seconds in which a new file may not be locked yet


def new_name() -> str:
    """Returns a unique name for an unfinished file."""
    return f".onnxgrad-{_HOST}-{os.urandom(8).hex()}.part"


def hold(handle: int) -> int | None:
    """Locks an open file until the returned handle is closed; None if the system cannot."""
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
    """Waits for a folder's lock, and holds it until the returned handle is closed. None if the
    system has no locks, or another process holds it for too long.
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
    """Removes the unfinished files of ended processes of this machine, as far as they can be
    recognised and removed.
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
