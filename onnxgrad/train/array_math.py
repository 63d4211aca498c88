"""The operators that the formulas of training use, over numpy arrays: what `op` is to values of a
graph.

Names, operands and results are those of ONNX. As there, Python's numbers take the dtype of what
they meet, so float32 stays float32. Only what some formula uses is here.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
from onnx import helper

from onnxgrad.ir.types import numpy_dtype


def Cast(x: Any, *, to: int) -> Any:
    """`x` in the dtype of that ONNX element type; the same array where it has it already."""
    return np.asarray(x).astype(numpy_dtype(to), copy=False)[()]


def element_type(x: Any) -> int:
    """The ONNX element type of an array, a number of numpy's or a Var."""
    return (
        int(x.dtype) if isinstance(x.dtype, int) else int(helper.np_dtype_to_tensor_dtype(x.dtype))
    )


def Abs(x: Any) -> Any:
    """|x|"""
    return np.abs(x)


def Sign(x: Any) -> Any:
    """-1, 0 or 1"""
    return np.sign(x)


def Sqrt(x: Any) -> Any:
    """The square root."""
    return np.sqrt(x)


def Cos(x: Any) -> Any:
    """The cosine."""
    return np.cos(x)


def Floor(x: Any) -> Any:
    """The largest whole number that is not above."""
    return np.floor(x)


def Pow(x: Any, exponent: Any) -> Any:
    """x^exponent"""
    return np.power(x, exponent)


def Clip(x: Any, low: Any, high: Any) -> Any:
    """Within [low, high]; NaN stays."""
    return np.clip(x, low, high)


def Max(*xs: Any) -> Any:
    """The largest, element by element; NaN where one is."""
    return reduce(np.maximum, xs)


def Min(*xs: Any) -> Any:
    """The smallest, element by element; NaN where one is."""
    return reduce(np.minimum, xs)


def Equal(a: Any, b: Any) -> Any:
    """a == b"""
    return np.equal(a, b)


def Less(a: Any, b: Any) -> Any:
    """a < b"""
    return np.less(a, b)


def Greater(a: Any, b: Any) -> Any:
    """a > b"""
    return np.greater(a, b)


def And(a: Any, b: Any) -> Any:
    """Both."""
    return np.logical_and(a, b)


def Where(condition: Any, a: Any, b: Any) -> Any:
    """`a` where the condition holds, `b` elsewhere."""
    return np.where(condition, a, b)[()]


def ReduceSum(x: Any, axes: Sequence[int] | None = None, *, keepdims: int = 1) -> Any:
    """The sum along these axes, of all without."""
    return np.sum(x, axis=None if axes is None else tuple(axes), keepdims=bool(keepdims))


def ReduceMean(x: Any, axes: Sequence[int] | None = None, *, keepdims: int = 1) -> Any:
    """The mean along these axes, of all without."""
    return np.mean(x, axis=None if axes is None else tuple(axes), keepdims=bool(keepdims))


def ReduceSumSquare(x: Any, axes: Sequence[int] | None = None, *, keepdims: int = 1) -> Any:
    """The sum of the squares along these axes, of all without."""
    return ReduceSum(np.square(x), axes, keepdims=keepdims)
