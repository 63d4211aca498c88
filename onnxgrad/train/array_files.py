"""Arrays by name from an .npz file or a folder of .npy files, and in a temporary file.

The files are mapped, so they may be larger than the memory. Several .npy files may hold one array.
"""

from __future__ import annotations

import mmap
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from onnxgrad.errors import InputError
from onnxgrad.ir.storage.atomic_files import regular
from onnxgrad.ir.storage.numpy_files import read_arrays
from onnxgrad.ir.types import Array
from onnxgrad.wording import counted, shape_text

# NAME-0.npy, NAME-1.npy, ... or NAME-00000-of-00004.npy
_SHARD = re.compile(r"(.+?)-(\d{1,9})(?:-of-(\d{1,9}))?")
# bytes from which on an array is put into a temporary file, if all of them have the second number
_LARGE, _WORTH_A_FILE = 1 << 12, 1 << 24


class Shards:
    """One array of `parts` along the first axis. Rows are read from the files when indexed."""

    def __init__(self, parts: Sequence[Array]) -> None:
        self.parts = parts
        self.dtype = parts[0].dtype
        self._ends = np.cumsum([len(part) for part in parts])
        self.shape: tuple[int, ...] = (int(self._ends[-1]), *parts[0].shape[1:])
        self.ndim = len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> Array:
        rows = np.arange(len(self))[rows]
        found = np.empty((*rows.shape, *self.shape[1:]), self.dtype)
        which = np.searchsorted(self._ends, rows, side="right")
        for i in np.unique(which):
            start = self._ends[i] - len(self.parts[i])
            found[which == i] = self.parts[i][rows[which == i] - start]
        return found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.asarray(self[:], dtype)


class Picked:
    """These rows of an array, which are read when indexed."""

    def __init__(self, array: Array, rows: Array) -> None:
        self.array, self.rows = array, rows
        self.dtype, self.ndim = array.dtype, array.ndim
        self.shape: tuple[int, ...] = (len(rows), *array.shape[1:])

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> Array:
        return np.asarray(self.array[self.rows[rows]])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.asarray(self[:], dtype)


def picked(arrays: Mapping[str, Array], rows: Array) -> dict[str, Array]:
    """Returns these rows of each array, without reading them."""
    found: Any = {name: Picked(array, rows) for name, array in arrays.items()}
    return found  # type: ignore[no-any-return]  # used as arrays


class OnDisk(dict[str, Array]):
    """Arrays by name. The large ones are read-only and lie in a temporary file, which the system
    reads again after `release`.
    """

    file: mmap.mmap

    def release(self) -> None:
        """Frees the memory of what was read."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self.file.madvise(mmap.MADV_DONTNEED)

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


def on_disk(arrays: Mapping[str, Array]) -> Mapping[str, Array]:
    """Moves large arrays into a temporary file without a name. Returns `arrays` if they are small,
    or if there is no room for the file.
    """
    large = [k for k, a in arrays.items() if a.nbytes >= _LARGE and not is_zeros(a)]
    if sum(arrays[name].nbytes for name in large) < _WORTH_A_FILE:
        return arrays
    found, begins = OnDisk(arrays), {}
    try:
        with tempfile.TemporaryFile() as file:
            for name in large:
                begins[name] = file.seek(-(-file.tell() // _LARGE) * _LARGE)
                file.write(np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8).data)
            file.flush()
            found.file = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError:
        return arrays
    for name, begin in begins.items():
        own = arrays[name]
        flat = np.frombuffer(found.file, np.uint8, own.nbytes, begin)
        found[name] = flat.view(own.dtype).reshape(own.shape)
    return found


def is_zeros(array: Array) -> bool:
    """Whether every byte is 0."""
    return not np.ascontiguousarray(array).reshape(-1).view(np.uint8).any()


def as_array(given: Any) -> Array:
    """Returns data as an array, without reading the files of shards or the rows of others."""
    array: Any = given if isinstance(given, (Shards, Picked)) else np.asarray(given)
    return array  # type: ignore[no-any-return]  # used as one


def read_npz(path: Path) -> dict[str, Array]:
    """Returns the arrays of an .npz file, or of a folder that has NAME.npy or NAME-0.npy,
    NAME-1.npy, ... for each name. Raises InputError if the file is missing or of another kind.
    """
    if path.is_dir():
        return _read_folder(path)
    stored = read_arrays(path, mapped=True)
    if isinstance(stored, np.ndarray):
        raise InputError(
            f"{path}: has one array without a name: write an .npz with one array for each input"
        )
    return stored


def _read_folder(path: Path) -> dict[str, Array]:
    files = {file.stem: file for file in sorted(path.glob("*.npy"))}
    shards: dict[str, dict[str, re.Match[str]]] = {}
    for stem in files:
        if match := _SHARD.fullmatch(stem):
            shards.setdefault(match[1], {})[stem] = match
    found: dict[str, Array] = {}
    for name, matches in shards.items():
        if len(matches) == 1 and not any(m[3] for m in matches.values()):
            continue  # a whole array whose name ends in a number
        if name in files:
            raise InputError(
                f"{path} has {name}.npy and {next(iter(matches))}.npy: remove one of them"
            )
        found[name] = as_array(_joined(path, name, matches))
        for stem in matches:
            del files[stem]
    found |= {stem: _mapped(file) for stem, file in files.items()}
    return dict(sorted(found.items()))


def _joined(path: Path, name: str, matches: Mapping[str, re.Match[str]]) -> Shards:
    order = sorted(matches, key=lambda stem: int(matches[stem][2]))
    numbers = [int(matches[stem][2]) for stem in order]
    begin = min(numbers[0], 1)
    count = max(len(order), *(int(m[3] or 0) for m in matches.values()))
    if numbers != [*range(begin, begin + count)]:
        odd = next(n for n in range(begin, begin + count) if numbers.count(n) != 1)
        what = "several have" if numbers.count(odd) else "none has"
        raise InputError(
            f"{path}: '{name}' has {counted(len(order), 'file')}, but {what} number {odd}"
        )
    parts = {stem: _mapped(path / f"{stem}.npy") for stem in order}
    first = parts[order[0]]
    for stem, part in parts.items():
        if not part.ndim or part.dtype != first.dtype or part.shape[1:] != first.shape[1:]:
            raise InputError(
                f"{path / stem}.npy is {part.dtype}{shape_text(part.shape)}, but {order[0]}.npy is "
                f"{first.dtype}{shape_text(first.shape)}: files of one array differ in length only"
            )
    return Shards(list(parts.values()))


def _mapped(path: Path) -> Array:
    try:
        return np.asarray(np.load(regular(path), mmap_mode="r", allow_pickle=False))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from None
