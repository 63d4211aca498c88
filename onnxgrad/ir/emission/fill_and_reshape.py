"""Values in the shape of others: reshapes, expansions, fills, and sizes as operands."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, numpy_helper

from onnxgrad.ir.emission.emitter import emitter
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import TensorType, is_static, numpy_dtype
from onnxgrad.ir.var import Var


def with_type_of(adjoint: Var, value: Var) -> Var:
    """Adds to the adjoint's type what only the forward value's type knows."""
    if (
        isinstance(value.type, TensorType)
        and value.shape is not None
        and adjoint.initializer is None
    ):
        own, merged = adjoint.shape, value.shape
        if own is not None and len(own) == len(merged):
            merged = tuple(
                a if isinstance(a, int) or b is None else b for a, b in zip(own, value.shape)
            )
        if merged != own or not adjoint.dtype:
            adjoint.type = TensorType(adjoint.dtype or value.dtype, merged)
    return adjoint


def shape_of(v: Var) -> Any:
    """Returns the sizes of `v` as an operand: int64 constants if they are known, else Shape(v)."""
    return np.array(v.shape, np.int64) if is_static(v.shape) else op.Shape(v)


def reshape_target(v: Var) -> Any:
    """Returns the second operand of a Reshape to the shape of `v`. It is a constant, with one -1,
    if at most one size is unknown.
    """
    shape = v.shape
    if shape is None or 0 in shape:
        return shape_of(v)
    open_ = [d for d in shape if not isinstance(d, int)]
    if len(open_) > 1:
        return op.Shape(v)
    return np.array([d if isinstance(d, int) else -1 for d in shape], np.int64)


def reshape_like(v: Var, like: Var) -> Var:
    """Returns `v` in the shape of `like`, which has as many elements."""
    target = reshape_target(like)
    zero_sized = isinstance(target, np.ndarray) and 0 in target
    return with_type_of(
        op.Reshape(v, target, allowzero=1 if zero_sized or isinstance(target, Var) else None), like
    )


def expand_like(v: Var, like: Var) -> Var:
    """Returns `v` broadcast to the shape of `like`."""
    return with_type_of(op.Expand(v, shape_of(like)), like)


# the first opset whose ConstantOfShape supports bfloat16
_FILLS_BFLOAT16 = 20


def fill(shape: Any, value: float, dtype: int) -> Var:
    """Returns a tensor of this shape whose elements are all `value`."""
    late = dtype == TensorProto.BFLOAT16 and emitter().block.opsets.get("", 0) < _FILLS_BFLOAT16
    filled = TensorProto.FLOAT if late else dtype
    tensor = numpy_helper.from_array(np.array([value]).astype(numpy_dtype(filled)))
    result = op.ConstantOfShape(shape, value=tensor)
    return op.Cast(result, to=dtype) if late else result


def filled_like(v: Var, value: float) -> Var:
    """Returns a tensor of the type of `v` whose elements are all `value`."""
    return with_type_of(fill(shape_of(v), value, v.dtype or TensorProto.FLOAT), v)


def zeros_like(v: Var) -> Var:
    """Zeros of the type of `v`."""
    return filled_like(v, 0.0)
