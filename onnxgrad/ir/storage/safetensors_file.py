"""Reads and writes arrays by name in safetensors files, such as `state.safetensors`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from onnxgrad.errors import InputError
from onnxgrad.ir.storage.atomic_files import regular, write_whole
from onnxgrad.ir.types import Array
from onnxgrad.wording import install

Arrays = Mapping[str, Array]
# dtypes and shapes by name
Outlines: TypeAlias = Mapping[str, tuple[np.dtype[Any], Sequence[int]]]


_KEY = "onnxgrad"


# dtypes by the format's names; the library's reader for NumPy does not know them all
_DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "BOOL": "bool",
    "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U64": "uint64", "U32": "uint32",
    "U16": "uint16", "U8": "uint8",
}  # fmt: skip


# the order of dtypes in a file
_ORDER = (
    "U64", "I64", "F64", "F32", "U32", "I32", "BF16", "F16", "U16", "I16", "I8", "U8", "BOOL",
)  # fmt: skip


def _library() -> Any:
    try:
        import safetensors.numpy
    except ImportError:
        raise InputError(f"safetensors is not installed: {install('train')}") from None
    return safetensors


def write(
    path: Path, arrays: Mapping[str, Array], metadata: Mapping[str, str] | None = None
) -> None:
    """Writes the file array by array, and replaces an existing one atomically. Raises InputError if
    it cannot be written.
    """
    try:
        write_whole(path, pieces(arrays, metadata))
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or error}") from None


def pieces(
    arrays: Mapping[str, Array], metadata: Mapping[str, str] | None = None
) -> Iterator[bytes]:
    """Yields the bytes of a file as the library writes them, independent of the order of the names.
    Arrays are not copied, while the library's function holds all of them twice. Raises InputError
    for a dtype that cannot be stored.
    """
    # one entry, because the library writes several in any order
    words = {_KEY: json.dumps(dict(metadata or {}), sort_keys=True)}
    entries: dict[str, Any] = {"__metadata__": words}
    codes = {np.dtype(dtype): code for code, dtype in _DTYPES.items()}
    for name, array in arrays.items():
        if array.dtype not in codes:
            raise InputError(f"'{name}' is {array.dtype}, which a safetensors file cannot hold")
    order = sorted(arrays, key=lambda k: (_ORDER.index(codes[arrays[k].dtype]), k.encode()))
    end = 0
    for name in order:
        array = arrays[name]
        places = [end, end := end + array.nbytes]
        entries[name] = {
            "dtype": codes[array.dtype],
            "shape": list(array.shape),
            "data_offsets": places,
        }
    header = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    header += b" " * (-len(header) % 8)
    yield len(header).to_bytes(8, "little") + header
    for name in order:
        # the bytes must be contiguous
        flat: Any = np.ascontiguousarray(arrays[name]).reshape(-1)
        yield flat.view(np.uint8).data


def read(path: Path) -> tuple[dict[str, Array], dict[str, str]]:
    """Returns arrays and metadata of a file. Raises InputError if it is missing, damaged or of
    another format.
    """
    with opened(path) as stored:
        return dict(stored), stored.metadata


@contextmanager
def opened(path: Path, zeros: Outlines | None = None) -> Iterator[Stored]:
    """Opens a file whose arrays are read on access, inside of the context. `zeros` are arrays that
    the file may lack, because they are zeros. Raises InputError as `read` does.
    """
    with ExitStack() as files:
        with _reading(path):
            regular(path)
        with _reading(path), _library().safe_open(path, framework="numpy"):  # checks the header
            file = files.enter_context(open(path, "rb"))
            length = int.from_bytes(file.read(8), "little")
            stored = Stored(path, file, 8 + length, json.loads(file.read(length)), zeros or {})
        yield stored


def copy(values: Mapping[str, Array], name: str, into: Array) -> None:
    """Copies a value into a flat array, from an open file without a temporary copy."""
    if isinstance(values, Stored) and values.outlines[name].dtype == into.dtype:
        values.read(name, into)
    else:
        into[:] = values[name].reshape(-1)


class Stored(Mapping[str, Array]):
    """The arrays of an open file; each is read on access, directly into its memory.

    outlines: zeros of their shapes and dtypes, which take no memory. Arrays that the file lacks are
    `zeros`. Raises InputError for a damaged array.
    """

    def __init__(
        self, path: Path, file: BufferedReader, start: int, header: dict[str, Any], zeros: Outlines
    ) -> None:
        metadata = header.pop("__metadata__", {})
        self.metadata: dict[str, str] = json.loads(metadata.get(_KEY, "{}"))
        if not isinstance(self.metadata, dict) or {*map(type, self.metadata.values())} - {str}:
            raise ValueError("its metadata of onnxgrad is not an object of texts")
        self._path, self._file, self._start, self._header = path, file, start, header
        stored = {name: (self._dtype(name), entry["shape"]) for name, entry in header.items()}
        self.outlines: dict[str, Array] = {
            name: np.broadcast_to(np.zeros((), dtype), shape)
            for name, (dtype, shape) in {**zeros, **stored}.items()
        }

    def _dtype(self, name: str) -> np.dtype[Any]:
        dtype = self._header[name]["dtype"]
        if dtype not in _DTYPES:
            raise InputError(
                f"{self._path}: '{name}' is {dtype}, which is not read: convert it to one of "
                f"{', '.join(_DTYPES)}"
            )
        return np.dtype(_DTYPES[dtype])

    def __getitem__(self, name: str) -> Array:
        outline = self.outlines[name]
        elements = np.empty(outline.size, outline.dtype)
        self.read(name, elements)
        return elements.reshape(outline.shape)

    def read(self, name: str, into: Array) -> None:
        """Reads the elements of an array into a flat array of its dtype."""
        if name not in self._header:
            into[:] = 0
            return
        with _reading(self._path):
            self._file.seek(self._start + self._header[name]["data_offsets"][0])
            if self._file.readinto(into.view(np.uint8).data) != into.nbytes:
                raise ValueError(f"'{name}' ends too early")

    def place(self, name: str) -> tuple[Path, int] | None:
        """Returns the file of an array, and the offset there; None for zeros that it lacks."""
        entry = self._header.get(name)
        return None if entry is None else (self._path, self._start + entry["data_offsets"][0])

    def __contains__(self, name: object) -> bool:
        return name in self.outlines  # that of Mapping would read the array

    def __iter__(self) -> Iterator[str]:
        return iter(self.outlines)

    def __len__(self) -> int:
        return len(self.outlines)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Converts errors of reading the file to InputError."""
    try:
        yield
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    except Exception as error:  # noqa: BLE001  # the library has a class of its own for each kind of damage
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise InputError(f"{path} is not a safetensors file: {reason}") from None
