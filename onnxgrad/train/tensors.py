"""Arrays by name in a safetensors file, the format that other tools read: `state.safetensors`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

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


def write(
    path: Path, arrays: Mapping[str, Array], metadata: Mapping[str, str] | None = None
) -> None:
    """Write the file whole or not at all."""
    write_whole(path, to_bytes(arrays, metadata))


def read(path: Path) -> tuple[dict[str, Array], dict[str, str]]:
    """What `write` wrote. Raises InputError for a file that is missing, none, or damaged.

    The library checks the header; the elements are read once, straight into their arrays.
    """
    library = _library()
    try:
        with library.safe_open(path, framework="numpy"), open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header: dict[str, Any] = json.loads(file.read(length))
            said = header.pop("__metadata__", {})
            return {
                name: _array(file, 8 + length, told) for name, told in header.items()
            }, json.loads(said.get(_KEY, "{}"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    except Exception as error:  # noqa: BLE001 - the library has a class of its own for each kind of damage
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise InputError(f"{path} is no safetensors file: {reason}") from None


def _array(file: BinaryIO, start: int, told: Mapping[str, Any]) -> Array:
    begin, end = told["data_offsets"]
    file.seek(start + begin)
    elements = np.fromfile(file, np.uint8, end - begin)
    return elements.view(np.dtype(_DTYPES[told["dtype"]])).reshape(told["shape"])
