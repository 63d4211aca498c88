"""Gradient clipping, by element or by the norm of all gradients; and norms.

A training step clips between the gradients and the optimiser: unscaling (`mixed_precision`) and the
mean over micro-batches come first. `factor` is theirs, so that each gradient is multiplied once. As
every update then waits for all gradients, parameters may be updated in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from onnx import TensorProto, helper

from onnxgrad.ir.ops import op
from onnxgrad.ir.types import is_static

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


def element_type(x: Any) -> int:
    """The ONNX element type of an array, a number of numpy's or a Var."""
    return (
        int(x.dtype) if isinstance(x.dtype, int) else int(helper.np_dtype_to_tensor_dtype(x.dtype))
    )


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


def clip_by_value(gs: Sequence[Any], limit: float, math: Any = op) -> list[Any]:
    """Each element within [-limit, limit], NaN as it is: torch.nn.utils.clip_grad_value_.

    gs: Vars, or arrays with `train.array_math`.
    """
    return [math.Clip(g, -limit, limit) for g in gs]


def clip_by_global_norm(
    gs: Sequence[Any], limit: float, math: Any = op, *, factor: Any = None
) -> tuple[list[Any], Any]:
    """All gradients times min(limit / (norm + 1e-6), 1), and the norm:
    torch.nn.utils.clip_grad_norm_.

    norm: of all of them together, as a scalar of float32, or of float64 where one of them is.
    factor: a scalar by which they are multiplied before, such as 1 / scale or 1 / micro-batches;
    the norm is that of the products. Where the norm is Inf or NaN all gradients become NaN, so that
    nothing passes for a step (PyTorch's error_if_nonfinite). Source: Pascanu, Mikolov and Bengio,
    "On the difficulty of training recurrent neural networks", 2013.
    """
    dtype = widest(gs)
    norm = global_norm(gs, math)
    if factor is not None:
        factor = in_dtype(factor, dtype, math)
        norm = norm * math.Abs(factor)
    coefficient = clip_coefficient(norm, limit, math)
    if factor is not None:
        coefficient = coefficient * factor
    return [_times(g, coefficient, math) for g in gs], norm


def clip_coefficient(norm: Any, limit: float, math: Any = op) -> Any:
    """min(limit / (norm + 1e-6), 1); NaN where the norm is Inf or NaN."""
    return math.Min(limit / (norm + 1e-6), 1.0) + 0.0 * norm


def _times(g: Any, factor: Any, math: Any) -> Any:
    """g times a scalar, which float16 may be too narrow for, in the dtype of g."""
    return in_dtype(in_dtype(g, element_type(factor), math) * factor, element_type(g), math)
