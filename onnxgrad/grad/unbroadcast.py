"""Fits partials to their operands: casts them, and sums them over broadcast axes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from onnx import TensorProto

from onnxgrad.errors import InputError
from onnxgrad.grad.registry import FORM
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission.emitter import emitter
from onnxgrad.ir.emission.fill_and_reshape import fill, reshape_like, shape_of, with_type_of
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import (
    FLOAT_DTYPES,
    Shape,
    TensorType,
    Type,
    dtype_name,
    element_count,
)
from onnxgrad.ir.var import Var


def fit(
    partial: Var, operand: Var, rule: str, broadcasts: bool, binding: Binding, index: int
) -> Var:
    """Returns `partial` with the type of `operand`: cast if necessary, and summed over the axes
    that were broadcast.

    Raises InputError, which names rule and binding, if its shape cannot be that of operand `index`.
    """
    if partial.dtype and operand.dtype and partial.dtype != operand.dtype:
        if partial.dtype not in FLOAT_DTYPES:
            raise InputError(
                f"the gradient rule of {rule} returned {dtype_name(partial.dtype)} for operand "
                f"{index} at '{binding}': a partial of {operand.type} must be floating-point"
            )
        partial = op.Cast(partial, to=operand.dtype)
    decided = (
        reduced_axes(partial.shape, operand.shape)
        if broadcasts
        else "mismatch" * _differ(partial.shape, operand.shape)
    )
    if decided == "mismatch":
        raise InputError(
            f"the gradient rule of {rule} returned {partial.type} for operand {index} of type "
            f"{operand.type} at '{binding}': the shapes must be equal"
        )
    if isinstance(decided, tuple):
        if decided and partial.shape is not None and operand.shape is not None:
            partial = _sum_over(partial, decided, len(partial.shape) - len(operand.shape))
    elif broadcasts:
        partial = _unbroadcast_at_run_time(partial, operand)
    if partial.block is not emitter().block and partial.shape != operand.shape:
        partial = op.Identity(partial)  # a type that holds in a branch may not hold outside
    return with_type_of(partial, operand)


def reduced_axes(source: Shape | None, wanted: Shape | None) -> tuple[int, ...] | str:
    """Returns the axes of `source` to sum over to get `wanted`; "undecided" if the known sizes do
    not decide, or "mismatch".
    """
    if source is None or wanted is None:
        return "undecided"
    lead = len(source) - len(wanted)
    if lead < 0:
        return "mismatch"
    axes = list(range(lead))
    verdict = ""
    for i, (s, w) in enumerate(zip(source[lead:], wanted, strict=True), lead):
        if w == 1 and s != 1:
            # if the adjoint's axis turns out to be 1 as well, summing over it is still right
            axes.append(i)
        elif isinstance(s, int) and isinstance(w, int) and s != w:
            return "mismatch"
        elif not (isinstance(w, int) or s == 1 or (w is not None and s == w)):
            verdict = "undecided"
    return verdict or tuple(axes)


def _differ(source: Shape | None, wanted: Shape | None) -> bool:
    return (
        source is not None
        and wanted is not None
        and (
            len(source) != len(wanted)
            or any(
                isinstance(s, int) and isinstance(w, int) and s != w for s, w in zip(source, wanted)
            )
        )
    )


def contradict(a: Type | None, b: Type | None) -> bool:
    """Whether no tensor can be of both types."""
    if not (isinstance(a, TensorType) and isinstance(b, TensorType)):
        return False
    return bool(a.dtype and b.dtype and a.dtype != b.dtype) or _differ(a.shape, b.shape)


def _sum_over(partial: Var, axes: tuple[int, ...], lead: int) -> Var:
    inner = len(axes) > lead
    if not inner and _has_rows(partial, lead):
        return _sum_of_rows(partial, lead)
    result = op.ReduceSum(partial, list(axes), keepdims=int(inner))
    if inner and lead:
        result = op.Squeeze(result, list(range(lead)))
    return result


# the row of ones has a column for each row of the sum: a ReduceSum adds up more rows than this
_MOST_ROWS = 1 << 16


def _has_rows(v: Var, lead: int) -> bool:
    """Whether a product should sum over the leading axes: sizes are known, the dtype is float32."""
    shape = v.shape or ()
    rows, columns = element_count(shape[:lead]), element_count(shape[lead:])
    if v.dtype != TensorProto.FLOAT or rows is None or not columns or len(shape) == lead:
        return False
    return FORM.get() == "fast" and 1 < rows <= _MOST_ROWS


def _sum_of_rows(v: Var, lead: int) -> Var:
    """Emits the sum over the leading axes as a product, 1' V. In onnxruntime, it takes 0.24 to 0.95
    of the time of a ReduceSum, and rounds less: for a million rows it is off by 4e-6, a ReduceSum
    by 2e-5 (`scripts/bench_forms.py`).
    """
    shape: tuple[Any, ...] = v.shape or ()
    rows, columns = math.prod(shape[:lead]), math.prod(shape[lead:])
    flat = v if len(shape) == 2 else op.Reshape(v, [-1, columns])
    total: Var = op.MatMul(fill(np.array([rows]), 1.0, v.dtype), flat)
    return total if len(shape) == lead + 1 else op.Reshape(total, np.array(shape[lead:], np.int64))


def _unbroadcast_at_run_time(partial: Var, operand: Var) -> Var:
    """Sums over the axes whose sizes differ at run time."""
    return sum_to(partial, shape_of(operand), operand.rank)


def sum_to(partial: Var, wanted: Any, rank: int | None) -> Var:
    """Emits the sum over the axes of `partial` that broadcasting a tensor of the sizes `wanted`, of
    this rank, adds or enlarges.
    """
    actual = shape_of(partial)
    padded = wanted
    if partial.rank is None or rank is None:
        missing = op.Shape(actual) - op.Shape(wanted)
        padded = op.Concat(op.Expand(np.array([1], np.int64), missing), wanted, axis=0)
    elif partial.rank > rank:
        padded = op.Concat(np.ones(partial.rank - rank, np.int64), wanted, axis=0)
    axes = op.Reshape(op.NonZero(op.Not(op.Equal(actual, padded))), [-1])
    summed = op.ReduceSum(partial, axes, keepdims=1, noop_with_empty_axes=1)
    if partial.rank is not None and partial.rank == rank:
        return summed
    return op.Reshape(summed, wanted, allowzero=1)


def sum_by_scale(each: Var, scale: Var, axis: int, rank: int) -> Var:
    """Emits the sum of `each` over the elements that share an element of `scale`, which is one
    number, or has one per position along `axis`.
    """
    if scale.rank == 0 or scale.shape == (1,):
        return reshape_like(op.ReduceSum(each, keepdims=0), scale)
    others = [i for i in range(rank) if i != axis % rank]
    return op.ReduceSum(each, others, keepdims=0) if others else each
