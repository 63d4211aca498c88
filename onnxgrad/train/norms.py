"""Sums of squares that keep their digits however large a tensor is, and norms over several
tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from onnx import TensorProto

from onnxgrad.ir.ops import op
from onnxgrad.ir.types import is_static
from onnxgrad.train.array_math import element_type

# onnxruntime adds a float32 reduction up in a few running sums: off by 1e-6 for as many elements of
# one size, by 6e-3 for 40 million
_ACCURATE = 1 << 16


def sum_of_squares(x: Any, math: Any = op) -> Any:
    """The sum of the squares of all elements of a Var or array, a scalar; of a large one row by
    row.
    """
    shape = x.shape
    if not is_static(shape) or len(shape) < 2 or prod(shape) <= _ACCURATE:
        return math.ReduceSumSquare(x, keepdims=0)
    first = next((i for i in range(1, len(shape)) if prod(shape[i:]) <= _ACCURATE), len(shape) - 1)
    rows = math.ReduceSum(x * x, list(range(first, len(shape))), keepdims=0)
    return math.ReduceSum(rows, keepdims=0)


def widest(xs: Sequence[Any]) -> int:
    """The dtype for sums over these: float64 where one of them has it, float32 otherwise."""
    double = any(element_type(x) == TensorProto.DOUBLE for x in xs)
    return int(TensorProto.DOUBLE if double else TensorProto.FLOAT)


def in_dtype(x: Any, dtype: int, math: Any = op) -> Any:
    """`x` in that dtype; itself where it has it."""
    return x if element_type(x) == dtype else math.Cast(x, to=dtype)


def global_norm(xs: Sequence[Any], math: Any = op) -> Any:
    """The root of the sum of all squares of all tensors: a scalar of float32, of float64 where one
    of them is.

    Squares are formed in that dtype, so float16 does not overflow.
    """
    dtype = widest(xs)
    total = None
    for x in xs:
        wide = in_dtype(x, TensorProto.FLOAT, math) if element_type(x) != TensorProto.DOUBLE else x
        part = in_dtype(sum_of_squares(wide, math), dtype, math)
        total = part if total is None else total + part
    return math.Sqrt(total)
