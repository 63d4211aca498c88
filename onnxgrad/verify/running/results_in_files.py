"""Large results of a child process as files, which the parent reads when it needs them: no pipe
holds their elements, and neither process keeps them. The child imports neither onnx nor the rest of
the package for it.
"""

from __future__ import annotations

import os
import tempfile
from typing import Any, NamedTuple

import numpy as np

# bytes from which on a result becomes a file
_LARGE = 1 << 20
_FLOATS = {"float64": "<f8", "float32": "<f4", "float16": "<f2", "bfloat16": "bfloat16"}


class ResultFile(NamedTuple):
    """A result in a file."""

    path: str
    shape: tuple[int, ...]
    dtype: str


def to_files(found: dict[str, Any], folder: str | None) -> dict[str, Any]:
    """Returns results with those that are large arrays of floats in new files of a folder (None:
    nowhere), unless its disk is full. Drops each array of `found` as soon as it is written.
    """
    return {name: _to_file(found.pop(name), folder) for name in [*found]}


def _to_file(value: Any, folder: str | None) -> Any:
    if folder is None or not isinstance(value, np.ndarray) or value.nbytes < _LARGE:
        return value
    if value.dtype.name not in _FLOATS:
        return value
    try:
        handle, path = tempfile.mkstemp(suffix=".result", dir=folder)
    except OSError:
        return value
    try:
        _write(handle, value)
    except OSError:
        os.unlink(path)
        return value
    return ResultFile(path, value.shape, _FLOATS[value.dtype.name])


def _write(handle: int, value: Any) -> None:
    with os.fdopen(handle, "wb") as file:
        np.ascontiguousarray(value).tofile(file)
