"""Arrays that stay in files, and are read when their elements are needed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from onnx import TensorProto

from onnxgrad.errors import InputError
from onnxgrad.ir.storage.external_data import checked_place
from onnxgrad.ir.types import Array

# the types of tensors that stay in files: little-endian, as ONNX writes them
_DTYPES: dict[int, str] = {
    TensorProto.FLOAT: "<f4",
    TensorProto.FLOAT16: "<f2",
    TensorProto.DOUBLE: "<f8",
    TensorProto.BFLOAT16: "bfloat16",
}
_BLOCK = 1 << 19  # elements that are read at once


@dataclass(frozen=True)
class StoredArray:
    """An array of floats in a file. `dtype` is numpy's name, or "bfloat16". `transposed`: a matrix
    whose transpose lies there. Another process may read it as well.
    """

    path: str
    offset: int
    shape: tuple[int, ...]
    dtype: str
    transposed: bool = False

    @property
    def T(self) -> StoredArray:
        """The transpose of a matrix."""
        return replace(self, shape=self.shape[::-1], transposed=not self.transposed)

    def blocks(self) -> Iterator[tuple[int, int, Array]]:
        """Yields the first and the last place of some rows, and these in float64; of columns if it
        is transposed. The next block overwrites them. Raises InputError if the file has become
        shorter.
        """
        count, *others = self.shape[::-1] if self.transposed else self.shape or (1,)
        row, kind = math.prod(others), _dtype(self.dtype)
        step = max(1, min(count, _BLOCK // max(row, 1)))
        data, wide = np.empty((step, row), kind), np.empty((step, row))
        with open(self.path, "rb", buffering=0) as file:
            file.seek(self.offset)
            for start in range(0, count, step):
                end = min(count, start + step)
                _fill(file, data[: end - start])
                block = wide[: end - start]
                np.copyto(block, data[: end - start], casting="unsafe")
                shaped = block.reshape(end - start, *others)
                yield start, end, shaped.T if self.transposed else shaped

    def wide(self) -> Array:
        """Returns the array in float64."""
        made = np.empty(self.shape or (1,))
        by_rows = made.T if self.transposed else made
        for start, end, block in self.blocks():
            by_rows[start:end] = block.T if self.transposed else block
        return made.reshape(self.shape)

    def plus(self, added: Array) -> Array:
        """Returns the array plus one of the same shape, in float64."""
        made = np.empty(self.shape)
        for start, end, block in self.blocks():
            at = (slice(None), slice(start, end)) if self.transposed else slice(start, end)
            np.add(block, added[at], out=made[at])
        return made

    def rows(self, positions: np.ndarray[Any, Any]) -> Array:
        """Returns these rows along the first axis in float64; the others are not read."""
        shape = self.shape[::-1] if self.transposed else self.shape
        lying = np.memmap(self.path, _dtype(self.dtype), "r", self.offset, shape)
        return np.take(lying.T if self.transposed else lying, positions, axis=0).astype(np.float64)


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
    return StoredArray(str(path), offset, tuple(tensor.dims), _DTYPES[tensor.data_type])
