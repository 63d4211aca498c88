"""Arrays of .npz and .npy files. Each header is compared with the bytes of its file before memory
is allocated for the array.
"""

from __future__ import annotations

import math
import struct
import zipfile
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal, TypeAlias

import numpy as np

from onnxgrad.errors import InputError
from onnxgrad.ir.storage.atomic_files import Staging, is_stream, place_of, regular
from onnxgrad.ir.types import Array
from onnxgrad.wording import one_line

_PACKED = 1 << 30  # bytes that a small compressed file may become
_RATIO = 100  # beyond _PACKED: bytes for each byte of the file
_LONGEST = (1 << 16) - 1 - len(".npy")  # bytes of a name in a zip file
_HEADER = 10_000  # bytes; numpy's limit
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_MAPPED = 1 << 26  # bytes of an array from which on it stays in the file
# shape, whether the first axis is the innermost, dtype
Header: TypeAlias = tuple[tuple[int, ...], bool, "np.dtype[Any]"]


def read_arrays(path: Path, *, mapped: bool = False) -> Array | dict[str, Array]:
    """Returns the array of an .npy file, or the arrays of an .npz file by name. mapped: large
    uncompressed arrays of an .npz file stay in the file, and may be larger than the memory.

    Raises InputError for a file that is missing, damaged, pickled, or smaller than its headers say.
    """
    try:
        size = regular(path).stat().st_size
        with open(path, "rb") as file:
            start = file.read(6)
            if start[:2] == b"PK":
                return _archive(file, size, mapped)
            if not start:
                raise ValueError("the file is empty")
            if start != np.lib.format.MAGIC_PREFIX:
                raise ValueError("not an .npy or .npz file; save it with numpy.save or savez")
            file.seek(0)
            _check(file, size)
            file.seek(0)
            array: Array = np.lib.format.read_array(file, allow_pickle=False)
            return array
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
    # numpy, zipfile and zlib raise a dozen types for damaged files
    except Exception as error:
        why = one_line(error, 200) or type(error).__name__
        raise InputError(f"{path}: cannot be read: {why}") from error


def _archive(file: IO[bytes], size: int, mapped: bool) -> dict[str, Array]:
    """Returns the arrays of a zip file of `size` bytes."""
    arrays: dict[str, Array] = {}
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        if not members:
            raise ValueError("it holds no arrays")
        total = sum(member.file_size for member in members)
        if sum(member.compress_size for member in members) > size:
            raise ValueError("its members are larger than the file")
        if total > max(_PACKED, _RATIO * size):
            raise ValueError(f"{size:,} bytes unpack to {total:,}; save it with numpy.savez")
        for member in members:
            name = member.filename.removesuffix(".npy")
            if name in arrays:
                raise ValueError(f"two members are named {name!r}")
            if member.compress_type not in _METHODS or member.flag_bits & 1:
                raise ValueError(f"member {name!r} is encrypted or compressed by another tool")
            with archive.open(member) as head:
                shape, by_columns, dtype = _check(head, member.file_size)
                skipped = head.tell()
            if mapped and member.compress_size == member.file_size >= _MAPPED:  # as it is
                order: Literal["F", "C"] = "F" if by_columns else "C"
                at = _start(file, member) + skipped
                arrays[name] = np.asarray(np.memmap(file, dtype, "r", at, shape, order))
                continue
            with archive.open(member) as whole:
                arrays[name] = np.lib.format.read_array(whole, allow_pickle=False)
                if whole.read(1):  # the checksum is compared at the end
                    raise ValueError(f"member {name!r} is larger than its header says")
    return arrays


def mapped_at(array: Array) -> tuple[Path, int] | None:
    """Returns the file in which an array of `read_arrays` stays, and the offset there; None if it
    is in memory, or its first axis is the innermost.
    """
    base: Any = array.base
    stays = isinstance(base, np.memmap) and base.filename and array.flags.c_contiguous
    return (Path(base.filename), base.offset) if stays else None


def _start(file: IO[bytes], member: zipfile.ZipInfo) -> int:
    """Returns where the bytes of a member begin, after its header and the names in it."""
    file.seek(member.header_offset)
    header = file.read(30)
    names: tuple[int, int] = struct.unpack("<HH", header[26:])
    return member.header_offset + 30 + sum(names)


def _check(file: IO[bytes], size: int) -> Header:
    """Returns the header. Raises ValueError if it describes more than `size` bytes."""
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        header = np.lib.format.read_array_header_1_0(file)
    elif version == (2, 0) and int.from_bytes(file.read(4), "little") <= _HEADER:
        file.seek(-4, 1)
        header = np.lib.format.read_array_header_2_0(file)
    else:
        raise ValueError(f"format {version} or the length of its header is not supported")
    shape, _, dtype = header
    if dtype.hasobject:
        raise ValueError("holds Python objects (pickled); save arrays of numbers")
    if any(length < 0 for length in shape):
        raise ValueError(f"the header has the negative shape {shape}")
    needed = math.prod(shape) * max(1, dtype.itemsize)
    if needed > size - file.tell():
        raise ValueError(
            f"the header describes {needed:,} bytes, and {max(0, size - file.tell()):,} follow"
        )
    return header


class ArraysFile(AbstractContextManager["ArraysFile"]):
    """An .npz file that is written array by array. It appears only if the block ends without an
    error and added an array.
    """

    def __init__(self, path: Path) -> None:
        """Raises InputError for a path that cannot be a file."""
        self.path, self.names = path, dict[str, None]()
        self._left = ExitStack()
        try:
            if is_stream(path):
                raise InputError(f"{path}: is a device or a pipe; name a file")
            place = place_of(path)
            self._staging = self._left.enter_context(Staging(place.parent))
            self._part, self._place = self._staging.part(place), place
        except OSError as error:
            self._left.close()
            raise self._cannot(error) from error
        self._archive = zipfile.ZipFile(self._part.file, "w")

    def add(self, name: str, array: Array) -> str:
        """Adds an array, once per name. Floats and integers that numpy lacks become wider. Returns
        why the array cannot be added; an empty text if it was.
        """
        if name in self.names or not name or len(name.encode("utf-8", "replace")) > _LONGEST:
            return "" if name in self.names else "its name does not fit into a zip file"
        held: Array = np.asarray(array)
        if held.dtype.kind == "O":
            held = held.astype(str)
        elif held.dtype.isbuiltin == 2:  # of ml_dtypes
            held = held.astype(np.float32 if "float" in held.dtype.name else np.int8)
        self.names[name] = None
        member = zipfile.ZipInfo(f"{name}.npy")  # dated 1980: equal arrays give equal bytes
        member.filename = f"{name}.npy"
        try:
            with self._archive.open(member, "w", force_zip64=True) as file:
                np.lib.format.write_array(file, held, allow_pickle=False)
        except OSError as error:
            raise self._cannot(error) from error
        return ""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        with self._left:
            if kind is not None or not self.names:
                with suppress(OSError):
                    self._archive.close()
                return
            try:
                self._archive.close()
                self._staging.publish((self._part, self._place))
            except OSError as failed:
                raise self._cannot(failed) from failed

    def _cannot(self, error: OSError) -> InputError:
        return InputError(f"{self.path}: cannot be written: {error.strerror or error}")
