"""The files that a job reads are protected: no writer of the job replaces, extends or removes them.

A job states the files that it reads (`protecting`) and the files that it will write (`Writes`), so
that a meeting is refused before the work. `ir/storage/atomic_files.py`, through which every file is
written, asks `refuse` again before it changes a file that exists.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path

from google.protobuf.message import DecodeError
from onnx import ModelProto

from onnxgrad.errors import InputError
from onnxgrad.frozen import frozen
from onnxgrad.ir.storage.external_data import sources
from onnxgrad.ir.storage.weights_in_file import LARGE_FILE, read_without_weights

STDIN = "-"  # among names of files
_MOST = 10_000  # files of a folder that is read
_NO_MODELS = (".npz", ".npy", ".toml", ".py", ".json", ".safetensors", ".so")
_KEPT = "the input is never changed"

Identity = tuple[int, int]


@frozen
class Protected:
    """Names of files and folders that a job reads: the files of a folder, and a model with its
    external data. `-` is stdin. Names without a file are ignored. `owned` are globs of files
    that the job replaces in a folder that it reads, such as its checkpoints.
    """

    names: tuple[str, ...]
    owned: tuple[str, ...] = ()
    outer: Protected | None = None

    @cached_property
    def files(self) -> Mapping[Identity, str]:
        """Why each file must not change, by the identity of the file, which all its names share."""
        found: dict[Identity, str] = {}
        for name in dict.fromkeys(self.names):
            with contextlib.suppress(OSError, ValueError):  # a name may be no path
                found = {**_read(name, self.owned), **found}
        return found

    def reason(self, path: Path) -> str | None:
        """Returns why the file at `path` must not change; None if it may, or if there is none."""
        try:
            known = path.stat()
        except (OSError, ValueError):
            return None
        if stat.S_ISCHR(known.st_mode):  # a terminal or /dev/null may be both read and written
            return None
        own = self.files.get((known.st_dev, known.st_ino))
        return own or (None if self.outer is None else self.outer.reason(path))

    def inside(self, folder: Path, patterns: Iterable[str]) -> Path | None:
        """Returns a protected file of the folder whose name matches one of the patterns."""
        with contextlib.suppress(OSError):
            for path in sorted(folder.iterdir()):
                if _matches(path.name, patterns) and self.reason(path):
                    return path
        return None


_ACTIVE: ContextVar[Protected | None] = ContextVar("_ACTIVE", default=None)


@contextlib.contextmanager
def protecting(names: Iterable[str], owned: Iterable[str] = ()) -> Iterator[Protected]:
    """Protects the files with these names, and those of enclosing contexts, inside the context; see
    `Protected`.
    """
    token = _ACTIVE.set(Protected(tuple(names), tuple(owned), _ACTIVE.get()))
    try:
        yield active()
    finally:
        _ACTIVE.reset(token)


def active() -> Protected:
    """Returns the files that are protected here."""
    return _ACTIVE.get() or Protected(())


def refuse(path: Path) -> None:
    """Raises InputError if a file that is protected here would change."""
    found = _ACTIVE.get()
    if found is not None and (reason := found.reason(path)) is not None:
        raise InputError(f"{path}: {reason}; choose another output")


def is_protected(path: Path) -> bool:
    """Whether the file at `path` must not change here."""
    return active().reason(path) is not None


def _read(name: str, owned: Iterable[str]) -> dict[Identity, str]:
    """Returns the files that are read under one name."""
    if name == STDIN:
        return {_identity(os.fstat(sys.stdin.fileno())): f"is stdin, and {_KEPT}"}
    path = Path(name)
    if not path.is_dir():
        return _read_file(path, name)
    files = [Path(entry.path) for entry, _ in zip(os.scandir(path), range(_MOST), strict=False)]
    found: dict[Identity, str] = {}
    for file in sorted(files):
        with contextlib.suppress(OSError):
            if not file.is_dir() and not _matches(file.name, owned):
                found |= _read_file(file, str(file))
    return found


def _read_file(path: Path, name: str) -> dict[Identity, str]:
    known = path.stat()
    found = {_identity(known): f"output and input are the same file; {_KEPT}"}
    if stat.S_ISREG(known.st_mode):
        for source in _external(path):
            with contextlib.suppress(OSError):
                found[_identity(source.stat())] = (
                    f"the model {name} reads its weights from this file; {_KEPT}"
                )
    return found


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _identity(found: os.stat_result) -> Identity:
    return found.st_dev, found.st_ino


def _external(path: Path) -> Iterable[Path]:
    """Returns the files from which a model reads its weights; none if the file is no model."""
    if path.suffix in _NO_MODELS:
        return ()
    # a small file is faster to read with its weights
    proto = read_without_weights(path) if path.stat().st_size >= LARGE_FILE else None
    if proto is None:
        with contextlib.suppress(OSError, DecodeError):
            proto = ModelProto.FromString(path.read_bytes())
    return () if proto is None else sources(proto, path.parent)


# ---- the files that a job writes ----------------------------------------------------------------


@dataclass
class Writes:
    """The files that a job will write, each once: `places` by their names, and names that match
    globs in `folders`.
    """

    places: dict[str, str] = field(default_factory=dict)
    folders: list[tuple[str, tuple[str, ...], str]] = field(default_factory=list)

    def add(self, what: str, name: str | Path) -> None:
        """Adds the file that `what`. Raises InputError if something else writes it."""
        place = _place(Path(name))
        folder, last = os.path.split(place)
        inside = [by for at, globs, by in self.folders if at == folder and _matches(last, globs)]
        for by in (*inside, *([self.places[place]] if place in self.places else [])):
            raise InputError(f"{name}: is where {by}")
        self.places[place] = what

    def add_folder(self, what: str, folder: Path, globs: tuple[str, ...]) -> None:
        """Adds the files of a folder that `what`. Raises InputError for a file that the job
        reads.
        """
        if (taken := active().inside(folder, globs)) is not None:
            refuse(taken)
        self.folders.append((_place(folder), globs, what))


def _place(path: Path) -> str:
    """Returns one name for all spellings of a file, which need not exist."""
    place = Path(os.path.realpath(path))
    return str(place).casefold() if _folds_case(place.parent) else str(place)


def _folds_case(folder: Path) -> bool:
    """Whether the file system takes names for equal that differ in case, as far as the name of the
    folder shows it.
    """
    other = folder.with_name(folder.name.swapcase())
    with contextlib.suppress(OSError, ValueError):
        return other != folder and other.samefile(folder)
    return False
