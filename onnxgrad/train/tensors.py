"""Arrays by name in a safetensors file, the format that other tools read: `state.safetensors`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from onnxgrad.errors import InputError
from onnxgrad.ir.files import write_whole
from onnxgrad.ir.types import Array

Arrays = Mapping[str, Array]


_KEY = "onnxgrad"


# the format's names of dtypes, where numpy's own reader does not know them all
_DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "BOOL": "bool",
    "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U64": "uint64", "U32": "uint32",
    "U16": "uint16", "U8": "uint8",
}  # fmt: skip


def _library() -> Any:
    try:
        import safetensors.numpy
    except ImportError:
        raise InputError("safetensors is not installed: pip install 'onnxgrad[train]'") from None
    return safetensors


def to_bytes(arrays: Mapping[str, Array], metadata: Mapping[str, str] | None = None) -> bytes:
    """A safetensors file; its bytes do not depend on the order of the names. InputError without
    the library.
    """
    # strides would be ignored silently: the library writes memory as it lies
    contiguous = {name: np.require(array, requirements="C") for name, array in arrays.items()}
    # one entry: the library writes several in any order
    data: bytes = _library().numpy.save(
        contiguous, {_KEY: json.dumps(dict(metadata or {}), sort_keys=True)}
    )
    return data


def from_bytes(data: bytes, where: str) -> tuple[dict[str, Array], dict[str, str]]:
    """The arrays and the metadata of a safetensors file. Raises InputError for what is none,
    naming `where`.
    """
    library = _library()
    try:
        return {name: _array(**told) for name, told in library.deserialize(data)}, _metadata(data)
    except Exception as error:  # noqa: BLE001 - the library has a class of its own for each kind of damage
        raise InputError(f"{where} is no safetensors file: {str(error).splitlines()[0]}") from None


def _array(dtype: str, shape: Sequence[int], data: bytes) -> Array:
    return np.frombuffer(data, np.dtype(_DTYPES[dtype])).reshape(shape).copy()


def _metadata(data: bytes) -> dict[str, str]:
    """Of the header, which is JSON behind its length in 8 bytes."""
    length = int.from_bytes(data[:8], "little")
    said = json.loads(data[8 : 8 + length]).get("__metadata__", {})
    found: dict[str, str] = json.loads(said.get(_KEY, "{}"))
    return found


def write(
    path: Path, arrays: Mapping[str, Array], metadata: Mapping[str, str] | None = None
) -> None:
    """Write the file whole or not at all."""
    write_whole(path, to_bytes(arrays, metadata))


def read(path: Path) -> tuple[dict[str, Array], dict[str, str]]:
    """What `write` wrote. Raises InputError for a file that is missing or damaged."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    return from_bytes(data, str(path))
