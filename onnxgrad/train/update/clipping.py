"""Gradient clipping, by element or by the norm of all gradients; and norms.

A training step clips between the gradients and the optimiser: unscaling (`mixed_precision`) and the
mean over micro-batches come first. The mean is a factor, so that each gradient is multiplied once.
As every update then waits for all gradients, parameters may be updated in place. Both engines clip
by `averaged_and_clipped`: the graph as operators, `blocks` in a flat buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from operator import mul
from typing import Any, Protocol

from onnx import TensorProto, helper

from onnxgrad.ir.ops import op
from onnxgrad.ir.types import is_static

# onnxruntime adds a float32 reduction up in a few running sums: the error is 1e-6 for this many
# equal elements, and 6e-3 for 40 million
_ACCURATE = 1 << 16


def sum_of_squares(x: Any, math: Any = op) -> Any:
    """Returns the sum of the squares of all elements of a Var or array, a scalar. A large one is
    summed row by row.
    """
    shape = x.shape
    if not is_static(shape) or len(shape) < 2 or prod(shape) <= _ACCURATE:
        return math.ReduceSumSquare(x, keepdims=0)
    first = next((i for i in range(1, len(shape)) if prod(shape[i:]) <= _ACCURATE), len(shape) - 1)
    rows = math.ReduceSum(x * x, list(range(first, len(shape))), keepdims=0)
    return math.ReduceSum(rows, keepdims=0)


def element_type(x: Any) -> int:
    """Returns the ONNX element type of an array, a NumPy number or a Var."""
    return (
        int(x.dtype) if isinstance(x.dtype, int) else int(helper.np_dtype_to_tensor_dtype(x.dtype))
    )


def widest(xs: Sequence[Any]) -> int:
    """Returns the dtype for sums over these: float64 if one of them is float64, else float32."""
    double = any(element_type(x) == TensorProto.DOUBLE for x in xs)
    return int(TensorProto.DOUBLE if double else TensorProto.FLOAT)


def in_dtype(x: Any, dtype: int, math: Any = op) -> Any:
    """Returns `x` with that dtype; `x` itself if it already has it."""
    return x if element_type(x) == dtype else math.Cast(x, to=dtype)


def global_norm(xs: Sequence[Any], math: Any = op) -> Any:
    """Returns the root of the sum of all squares of all tensors: a float32 scalar, or float64 if
    one of them is float64.

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
    """Returns each element limited to [-limit, limit], NaN unchanged:
    torch.nn.utils.clip_grad_value_.

    gs: Vars, or arrays with `train.array_math`.
    """
    return [math.Clip(g, -limit, limit) for g in gs]


class Clipping(Protocol):
    """The options that apply to gradients before the optimiser: micro-batches whose gradients are
    averaged, and limits.
    """

    @property
    def accumulate(self) -> int: ...
    @property
    def clip_value(self) -> float | None: ...
    @property
    def clip_norm(self) -> float | None: ...


def averaged_and_clipped(
    gs: Sequence[Any],
    how: Clipping,
    *,
    norm: bool,
    norm_of: Callable[[Sequence[Any]], Any] = global_norm,
    scaled: Callable[[Any, Any], Any] = mul,
    math: Any = op,
    mean: Any = None,
) -> tuple[Sequence[Any], Any, Any]:
    """Returns the gradients, which are sums over micro-batches, clipped by value; the remaining
    factor of all of them (None for 1); and, if `norm` or if they are clipped by it, the norm of
    their mean, computed by `norm_of`.

    mean: the factor of the mean over micro-batches, by default 1 / `accumulate`. The remaining
    factor contains it, unless that had to come before clipping by
    value, and min(limit / (norm + 1e-6), 1): torch.nn.utils.clip_grad_norm_. If the norm is Inf or
    NaN, so are all gradients times the factor, so that the step is not mistaken for a valid one
    (PyTorch's error_if_nonfinite). Source: Pascanu, Mikolov and Bengio, "On the difficulty of
    training recurrent neural networks", 2013.
    """
    factor: Any = mean
    if mean is None and how.accumulate > 1:
        factor = 1 / how.accumulate
    if how.clip_value is not None:
        gs = gs if factor is None else [scaled(g, factor) for g in gs]
        gs, factor = clip_by_value(gs, how.clip_value, math), None
    if how.clip_norm is None and not norm:
        return gs, factor, None
    found = norm_of(gs) if factor is None else norm_of(gs) * factor
    if how.clip_norm is not None:
        clipping = _clip_coefficient(found, how.clip_norm, math)
        factor = clipping if factor is None else clipping * factor
    return gs, factor, found


def _clip_coefficient(norm: Any, limit: float, math: Any) -> Any:
    """Returns min(limit / (norm + 1e-6), 1); NaN if the norm is Inf or NaN."""
    return math.Min(limit / (norm + 1e-6), 1.0) + 0.0 * norm


def times(g: Any, factor: Any, math: Any = op) -> Any:
    """Returns g times a number or scalar, which may be out of float16's range, in the dtype of
    g.
    """
    if isinstance(factor, float):
        return g * factor
    return in_dtype(in_dtype(g, element_type(factor), math) * factor, element_type(g), math)
