"""Adjoints of tensors: made to fit their value (broadcasting undone once, here), added up, zero."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import TensorProto, numpy_helper

from onnxgrad.errors import InputError
from onnxgrad.ir.block import Binding, Var
from onnxgrad.ir.ops import emitter, op
from onnxgrad.ir.types import FLOAT_DTYPES, Dim, Shape, TensorType, Type, dtype_name, is_static, numpy_dtype


def fit(partial: Var, operand: Var, rule: str, broadcasts: bool, binding: Binding, index: int) -> Var:
    """`partial` with the type of `operand`: cast if need be, summed over the axes that were broadcast.

    Raises InputError naming rule and binding when its shape cannot be that of operand `index`.
    """
    if partial.dtype and operand.dtype and partial.dtype != operand.dtype:
        if partial.dtype not in FLOAT_DTYPES:
            raise InputError(
                f"the gradient rule of {rule} answered {dtype_name(partial.dtype)} for operand {index} at '{binding}': "
                f"a partial of {operand.type} must be floating-point"
            )
        partial = op.Cast(partial, to=operand.dtype)
    decided = reduced_axes(partial.shape, operand.shape) if broadcasts else _contradiction(partial.shape, operand.shape)
    if decided == "mismatch":
        raise InputError(
            f"the gradient rule of {rule} answered {partial.type} for operand {index} of type {operand.type} at "
            f"'{binding}': the shapes must be equal"
        )
    if isinstance(decided, tuple):
        if decided and partial.shape is not None and operand.shape is not None:
            partial = _sum_over(partial, decided, len(partial.shape) - len(operand.shape))
    elif broadcasts:
        partial = _unbroadcast_at_run_time(partial, operand)
    return with_type_of(partial, operand)


def reduced_axes(source: Shape | None, wanted: Shape | None) -> tuple[int, ...] | str:
    """The axes of `source` to sum over to get `wanted`; "undecided" by what is known, or "mismatch"."""
    if source is None or wanted is None:
        return "undecided"
    lead = len(source) - len(wanted)
    if lead < 0:
        return "mismatch"
    axes = list(range(lead))
    verdict = ""
    for i, (s, w) in enumerate(zip(source[lead:], wanted, strict=True), lead):
        if w == 1 and s != 1:
            # the adjoint's axis may turn out to be 1 as well: summing over it is right all the same
            axes.append(i)
        elif isinstance(s, int) and isinstance(w, int) and s != w:
            return "mismatch"
        elif not (isinstance(w, int) or s == 1 or (w is not None and s == w)):
            verdict = "undecided"
    return verdict or tuple(axes)


def _contradiction(source: Shape | None, wanted: Shape | None) -> str:
    if source is None or wanted is None:
        return ""
    sizes = zip(source, wanted)
    differ = len(source) != len(wanted) or any(isinstance(s, int) and isinstance(w, int) and s != w for s, w in sizes)
    return "mismatch" if differ else ""


def contradict(a: Type | None, b: Type | None) -> bool:
    """Whether no tensor is of both types."""
    if not (isinstance(a, TensorType) and isinstance(b, TensorType)):
        return False
    return bool(a.dtype and b.dtype and a.dtype != b.dtype) or bool(_contradiction(a.shape, b.shape))


def _sum_over(partial: Var, axes: tuple[int, ...], lead: int) -> Var:
    inner = len(axes) > lead
    result: Var = op.ReduceSum(partial, list(axes), keepdims=int(inner))
    if inner and lead:
        result = op.Squeeze(result, list(range(lead)))
    return result


def _unbroadcast_at_run_time(partial: Var, operand: Var) -> Var:
    """Sum over the axes where the sizes differ, as seen at run time."""
    wanted = shape_of(operand)
    actual = shape_of(partial)
    padded = wanted
    if partial.rank is None or operand.rank is None:
        missing = op.Shape(actual) - op.Shape(wanted)
        padded = op.Concat(op.Expand(np.array([1], np.int64), missing), wanted, axis=0)
    elif partial.rank > operand.rank:
        padded = op.Concat(np.ones(partial.rank - operand.rank, np.int64), wanted, axis=0)
    axes = op.Reshape(op.NonZero(op.Not(op.Equal(actual, padded))), [-1])
    summed: Var = op.ReduceSum(partial, axes, keepdims=1, noop_with_empty_axes=1)
    if partial.rank is not None and partial.rank == operand.rank:
        return summed
    result: Var = op.Reshape(summed, wanted, allowzero=1)
    return result


def with_type_of(adjoint: Var, value: Var) -> Var:
    """Let the adjoint know what the forward value's type says beyond its own."""
    if isinstance(value.type, TensorType) and value.shape is not None and adjoint.initializer is None:
        own = adjoint.shape
        if own is None or len(own) != len(value.shape):
            merged = value.shape
        else:
            merged = tuple(map(_better, own, value.shape))
        if merged != own or not adjoint.dtype:
            adjoint.type = TensorType(adjoint.dtype or value.dtype, merged)
    return adjoint


def _better(own: Dim, value: Dim) -> Dim:
    if isinstance(own, int) or value is None:
        return own
    return value


def add_up(contributions: Sequence[Var]) -> Var:
    """The sum of the partials of one value."""
    if len(contributions) == 1:
        return contributions[0]
    if len(contributions) == 2:
        return contributions[0] + contributions[1]
    result: Var = op.Sum(*contributions)
    return result


# ---- shapes as operands ---------------------------------------------------------------------------------------


def shape_of(v: Var) -> Any:
    """The sizes of `v` as an operand: an int64 constant when they are known, else Shape(v)."""
    return np.array(v.shape, np.int64) if is_static(v.shape) else op.Shape(v)


def reshape_target(v: Var) -> Any:
    """The second operand of a Reshape to the shape of `v`: constant, with one -1, where at most one size is open."""
    shape = v.shape
    if shape is None or 0 in shape:
        return shape_of(v)
    open_ = [d for d in shape if not isinstance(d, int)]
    if len(open_) > 1:
        return op.Shape(v)
    return np.array([d if isinstance(d, int) else -1 for d in shape], np.int64)


def reshape_like(v: Var, like: Var) -> Var:
    """`v` in the shape of `like`, which has as many elements."""
    target = reshape_target(like)
    zero_sized = isinstance(target, np.ndarray) and 0 in target
    return with_type_of(op.Reshape(v, target, allowzero=1 if zero_sized or isinstance(target, Var) else None), like)


def expand_like(v: Var, like: Var) -> Var:
    """`v` broadcast to the shape of `like`."""
    return with_type_of(op.Expand(v, shape_of(like)), like)


# the first opset whose ConstantOfShape makes bfloat16
_FILLS_BFLOAT16 = 20


def fill(shape: Any, value: float, dtype: int) -> Var:
    """A tensor of that shape, all elements `value`."""
    late = dtype == TensorProto.BFLOAT16 and emitter().block.opsets.get("", 0) < _FILLS_BFLOAT16
    made = TensorProto.FLOAT if late else dtype
    tensor = numpy_helper.from_array(np.array([value]).astype(numpy_dtype(made)))
    result: Var = op.ConstantOfShape(shape, value=tensor)
    return op.Cast(result, to=dtype) if late else result


def filled_like(v: Var, value: float) -> Var:
    """A tensor of the type of `v`, all elements `value`."""
    return with_type_of(fill(shape_of(v), value, v.dtype or TensorProto.FLOAT), v)


def zeros_like(v: Var) -> Var:
    """Zeros of the type of `v`."""
    return filled_like(v, 0.0)
