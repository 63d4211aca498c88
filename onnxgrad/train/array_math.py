"""The operators of training formulas over NumPy arrays: the counterpart of `op`.

Names, operands and results are those of ONNX. As in `op`, Python's numbers take the dtype of the
other operand, so float32 stays float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from onnxgrad.ir.types import numpy_dtype


def Cast(x: Any, *, to: int) -> Any:
    """Returns `x` with this ONNX element type; the same array if it already has it."""
    return np.asarray(x).astype(numpy_dtype(to), copy=False)[()]


# element by element; Clip leaves NaN as it is
Abs, Sign, Sqrt, Log, Cos, Floor, Pow, Clip = (
    np.abs, np.sign, np.sqrt, np.log, np.cos, np.floor, np.power, np.clip,
)  # fmt: skip
Equal, Less, Greater, And = np.equal, np.less, np.greater, np.logical_and


def Max(*xs: Any) -> Any:
    """Returns the largest elements; NaN if one is NaN."""
    return reduce(np.maximum, xs)


def Min(*xs: Any) -> Any:
    """Returns the smallest elements; NaN if one is NaN."""
    return reduce(np.minimum, xs)


def Where(condition: Any, a: Any, b: Any) -> Any:
    """Returns `a` where the condition holds, else `b`."""
    return np.where(condition, a, b)[()]


def ReduceSum(x: Any, axes: Sequence[int] | None = None, *, keepdims: int = 1) -> Any:
    """Returns the sum along these axes, or of all elements."""
    return np.sum(x, axis=None if axes is None else tuple(axes), keepdims=bool(keepdims))


def ReduceMean(x: Any, axes: Sequence[int] | None = None, *, keepdims: int = 1) -> Any:
    """Returns the mean along these axes, or of all elements."""
    return np.mean(x, axis=None if axes is None else tuple(axes), keepdims=bool(keepdims))


def ReduceSumSquare(x: Any, axes: Sequence[int] | None = None, *, keepdims: int = 1) -> Any:
    """Returns the sum of the squares along these axes, or of all elements."""
    return ReduceSum(np.square(x), axes, keepdims=keepdims)
