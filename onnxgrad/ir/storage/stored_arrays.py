"""Arrays that stay in files, and are read when their elements are needed."""

from __future__ import annotations

import contextlib
import math
import os
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from onnx import TensorProto

from onnxgrad.errors import InputError
from onnxgrad.frozen import frozen
from onnxgrad.ir.storage.external_data import checked_place
from onnxgrad.ir.storage.lazy_arrays import LazyArray, spans
from onnxgrad.ir.types import Array

# the types of tensors that stay in files: little-endian, as ONNX writes them
_DTYPES: dict[int, str] = {
    TensorProto.FLOAT: "<f4",
    TensorProto.FLOAT16: "<f2",
    TensorProto.DOUBLE: "<f8",
    TensorProto.BFLOAT16: "bfloat16",
}


@frozen(kw_only=True)
class StoredArray(LazyArray):
    """An array of floats in a file. `dtype` is numpy's name, or "bfloat16". `transposed`: a matrix
    whose transpose lies there.
    """

    path: str
    offset: int
    dtype: str

    def blocks(self) -> Iterator[tuple[int, int, Array]]:
        """Yields blocks as `LazyArray.blocks`. Raises InputError if the file has become shorter."""
        lying, kind = self.lying, _dtype(self.dtype)
        with open(self.path, "rb", buffering=0) as file:
            file.seek(self.offset)
            for start, end in spans(lying):
                shape = (end - start, *lying[1:])
                if not start:
                    data, wide = np.empty(shape, kind), np.empty(shape)
                _fill(file, data[: end - start])
                block = wide[: end - start]
                np.copyto(block, data[: end - start], casting="unsafe")
                yield start, end, block.T if self.transposed else block

    def rows(self, positions: np.ndarray[Any, Any]) -> Array:
        """Returns these rows along the first axis in float64; the others are not read."""
        lying = np.memmap(self.path, _dtype(self.dtype), "r", self.offset, self.lying)
        return np.take(lying.T if self.transposed else lying, positions, axis=0).astype(np.float64)

    def part(self, axis: int, start: int, end: int) -> Array:
        """Returns the places from `start` to `end` along an axis, in the file's dtype. No more than
        these, and a block of rows, is in memory. Raises InputError as `blocks`.
        """
        if self.transposed:
            lies = replace(self, shape=self.lying, transposed=False)
            return lies.part(1 - axis, start, end).T
        kind, row = _dtype(self.dtype), self.shape[1:]
        made = np.empty((*self.shape[:axis], end - start, *self.shape[axis + 1 :]), kind)
        inside = (slice(None),) * axis + (slice(start, end),) if axis else ()
        for first, last in (spans(self.shape) if axis else [(start, end)]) if made.size else ():
            at = self.offset + first * math.prod(row) * kind.itemsize
            try:
                lying = np.memmap(self.path, kind, "r", at, (last - first, *row))
            except (OSError, ValueError) as error:
                raise InputError(f"{self.path}: became shorter while it was read") from error
            (made[first:last] if axis else made)[...] = lying[inside]
        return made


def as_stored(tensor: TensorProto, folder: Path) -> Array:
    """Returns the elements of an external tensor of floats in its own type, without a second copy.
    Raises InputError as `stored`.
    """
    path, offset = checked_place(tensor, folder)
    made = np.empty(tuple(tensor.dims), _dtype(_DTYPES[tensor.data_type]))
    with open(path, "rb", buffering=0) as file:
        file.seek(offset)
        _fill(file, made)
    return made


def temporary(path: str, shape: tuple[int, ...], dtype: str) -> StoredArray:
    """Returns the array that fills a file. The file is removed with the array."""
    made = StoredArray(path=path, offset=0, shape=shape, dtype=dtype)
    weakref.finalize(made, _remove, path)
    return made


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):  # its folder may have been removed
        os.unlink(path)


def _fill(file: Any, data: Array) -> None:
    """Fills an array with the next bytes of a file. Raises InputError at its end."""
    left: Any = data.reshape(-1).view(np.uint8).data
    while left:
        count = file.readinto(left)
        if not count:
            raise InputError(f"{file.name}: became shorter while it was read")
        left = left[count:]


def _dtype(name: str) -> np.dtype[np.generic]:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def is_storable(tensor: TensorProto) -> bool:
    """Whether an external tensor can stay in its file."""
    return tensor.data_location == TensorProto.EXTERNAL and tensor.data_type in _DTYPES


def stored(tensor: TensorProto, folder: Path) -> StoredArray:
    """Returns an external tensor of floats of a model in `folder`. Raises InputError as
    `external_data.internalize`.
    """
    path, offset = checked_place(tensor, folder)
    return StoredArray(
        path=str(path), offset=offset, shape=tuple(tensor.dims), dtype=_DTYPES[tensor.data_type]
    )


def floats_at(path: str, offset: int, outline: Array) -> StoredArray | None:
    """Returns the array with the shape and dtype of another one that lies in a file; None for a
    dtype that cannot stay there.
    """
    kind = outline.dtype
    text = kind.name if kind == np.dtype(ml_dtypes.bfloat16) else kind.str
    if text not in _DTYPES.values():
        return None
    return StoredArray(path=path, offset=offset, shape=outline.shape, dtype=text)
