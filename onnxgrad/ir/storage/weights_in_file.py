"""Reads a model file without its large weights, and writes it with them. The weights refer to their
place in the file, as external data does, so no copy of the model holds them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from google.protobuf.message import DecodeError
from onnx import GraphProto, ModelProto, TensorProto

from onnxgrad.ir.preflight.tensors import raw_bytes
from onnxgrad.ir.protobufs import copy_fields
from onnxgrad.ir.storage import external_data as external
from onnxgrad.ir.types import Array

# weights of this many bytes or more stay in the file: those that decide a rewrite are smaller
LARGE = 1 << 18
# a file of this size is read without them if it is rewritten or proved
LARGE_FILE = 1 << 26
# a file of more fields is read as a whole: it has few large weights for its size, or is no model
_MOST_FIELDS = 1 << 19
# protobuf's wire types
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
# numbers of fields in onnx.proto
_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9


class _Unlike(Exception):
    """The file differs from what onnx writes. An ordinary read reports the fault, if any."""


def read_without_weights(path: Path) -> ModelProto | None:
    """Returns the model of a file whose large initializers refer to their bytes in it. None if it
    has no large initializers, is not a plain file with one name, or must be read as a whole.
    """
    try:
        found = path.lstat()
        # onnx reads no external data through a link, nor from a file with two names
        if not path.is_file() or path.is_symlink() or found.st_nlink != 1 or found.st_size < LARGE:
            return None
        with open(path, "rb") as file:
            return _Reader(file).model(found.st_size, path.name)
    except (OSError, DecodeError, _Unlike):
        return None


class _Reader:
    """Reads the messages of an open file field by field."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.left = _MOST_FIELDS

    def model(self, size: int, name: str) -> ModelProto | None:
        """Returns the model of the file, None if no weight stays in it."""
        graphs: list[tuple[int, int]] = []
        rest = b"".join(self.others(0, size, ModelProto, _GRAPH, graphs))
        if len(graphs) != 1:
            return None
        tensors: list[tuple[int, int]] = []
        nodes = b"".join(self.others(*graphs[0], GraphProto, _INITIALIZER, tensors))
        model = ModelProto()
        model.ParseFromString(rest)
        model.graph.ParseFromString(nodes)
        some = False
        for start, end in tensors:
            some |= self.tensor(start, end, model.graph.initializer.add(), name)
        return model if some else None

    def tensor(self, start: int, end: int, tensor: TensorProto, name: str) -> bool:
        """Reads a tensor. Returns whether its bytes stay in the file."""
        places: list[tuple[int, int]] = []
        tensor.ParseFromString(b"".join(self.others(start, end, TensorProto, _RAW_DATA, places)))
        if not places:
            return False
        at, behind = places[-1]  # the last one counts
        size = behind - at
        if size < LARGE or raw_bytes(tensor) != size or tensor.HasField("data_location"):
            self.file.seek(at)
            tensor.raw_data = self.file.read(size)
            return False
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", name), ("offset", at), ("length", size)):
            tensor.external_data.add(key=key, value=str(value))
        return True

    def others(
        self, start: int, end: int, of: Any, wanted: int, places: list[tuple[int, int]]
    ) -> Iterator[bytes]:
        """Yields the bytes of a message of a class without the field `wanted`, and adds the places
        of its contents to `places`. Raises _Unlike if the message does not end where it should, has
        too many fields, or one that onnx does not know.
        """
        at, known = start, of.DESCRIPTOR.fields_by_number
        while at < end:
            self.left -= 1
            tag, behind = self.varint(at, end)
            kind = tag & 7
            if kind == _BYTES:
                length, begin = self.varint(behind, end)
                behind = begin + length
            elif kind == _VARINT:
                behind = self.varint(behind, end)[1]
            elif kind in (_FIXED64, _FIXED32):
                behind += 8 if kind == _FIXED64 else 4
            else:
                raise _Unlike
            if behind > end or not self.left or tag >> 3 not in known:
                raise _Unlike
            if kind == _BYTES and tag >> 3 == wanted:
                places.append((begin, behind))
            else:
                self.file.seek(at)
                yield self.file.read(behind - at)
            at = behind

    def varint(self, at: int, end: int) -> tuple[int, int]:
        """Returns a number, and where it ends."""
        self.file.seek(at)
        value = 0
        for i, byte in enumerate(self.file.read(min(10, end - at))):
            value |= (byte & 0x7F) << (7 * i)
            if byte < 0x80:
                return value, at + i + 1
        raise _Unlike


def own_data(path: Path) -> list[Path]:
    """The files of weights of the model at `path` that `save` wrote."""
    try:
        size = path.stat().st_size
        if size >= external.MAX_BYTES:
            return []
        model = read_without_weights(path) if size >= LARGE_FILE else None
        if model is None:
            model = ModelProto()
            model.ParseFromString(path.read_bytes())
    except (OSError, DecodeError):  # there is no file, or it is no model
        return []
    named = re.compile(re.escape(path.name) + r"\.[0-9a-f]{16}(-\d+)?\.data")
    return [path.with_name(n) for n in sorted(external.locations(model)) if named.fullmatch(n)]


# ---- writing -------------------------------------------------------------------------------------


def pieces(
    model: ModelProto, folder: Path | None, arrays: Mapping[str, Array], digests: external.Digests
) -> Iterator[bytes]:
    """Yields the bytes of a model as protobuf writes them, with the large weights that stayed in
    `digests.files`, and with external data of `folder` that is converted. Arrays in `arrays`, by
    name, replace them. Raises InputError if a file has become shorter, and NotProved if
    `digests` has another digest of a tensor.
    """
    tensors = model.graph.initializer
    outlines = [_outline(tensor, digests.files) for tensor in tensors]
    begins = [_begin(_INITIALIZER, len(a) + size + len(b)) for a, size, b in outlines]
    before, behind = _around(model, _GRAPH)
    first, last = _around(model.graph, _INITIALIZER)
    of_tensors = sum(len(a) + size + len(b) for a, size, b in outlines) + sum(map(len, begins))
    yield before + _begin(_GRAPH, len(first) + of_tensors + len(last)) + first
    for tensor, begin, (head, size, tail) in zip(tensors, begins, outlines, strict=True):
        yield begin + head
        if size and tensor.name in arrays:
            yield as_it_lies(arrays[tensor.name])
        elif size:
            content = hashlib.blake2b(digest_size=16)
            for data in external.pieces(tensor, folder):
                content.update(data)
                yield data
            external.unchanged(tensor, content.digest(), digests)
        yield tail
    yield last + behind


def _outline(tensor: TensorProto, files: Collection[str]) -> tuple[bytes, int, bytes]:
    """Returns the bytes of a tensor before its elements, the number of element bytes in files, and
    the bytes after them.
    """
    if not external.stays_inside(tensor, files):
        return tensor.SerializeToString(), 0, b""
    first, last = _around(tensor, _RAW_DATA)
    size = raw_bytes(tensor) or 0
    return first + _begin(_RAW_DATA, size), size, last


def as_it_lies(array: Array) -> Any:
    """The bytes of an array as they lie in a file, not copied."""
    little: Any = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"), copy=False))
    return little.reshape(-1).view(np.uint8).data


def _around(message: Any, number: int) -> tuple[bytes, bytes]:
    """Returns the bytes of a message before and after a field, without the fields that refer to
    external data.
    """
    first, last = type(message)(), type(message)()
    names = {f.name: f.number for f, _ in message.ListFields()}
    of_place = ("external_data", "data_location") if number == _RAW_DATA else ()
    copy_fields(message, first, (*(k for k, n in names.items() if n >= number), *of_place))
    copy_fields(message, last, (*(k for k, n in names.items() if n <= number), *of_place))
    return first.SerializeToString(), last.SerializeToString()


def _begin(number: int, size: int) -> bytes:
    """The tag and the length of a field of bytes."""
    found, left = bytearray([number << 3 | _BYTES]), size
    while left > 0x7F:
        found.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*found, left])
