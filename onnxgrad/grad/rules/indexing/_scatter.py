"""Scattering with a reduction, for every float type.

onnxruntime's CPU kernels of ScatterElements and ScatterND take float16 and bfloat16 only without
one, and say so at run time alone. So these reduce in float32, which is also what a sum of many
addends wants.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, numpy_helper

from onnxgrad.grad.rules._common import narrowed
from onnxgrad.ir.like import fill
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import TensorType
from onnxgrad.ir.var import Var

_HALF = frozenset({TensorProto.FLOAT16, TensorProto.BFLOAT16})


def zeros(shape: Var, like: Var) -> Var:
    """Zeros of that shape and the dtype of `like`, to scatter into."""
    return fill(shape, 0.0, like.dtype)


def scatter_elements(data: Var, indices: Var, updates: Var, *, axis: int, reduction: str) -> Var:
    """ScatterElements; the result has the dtype of `data`."""
    if data.dtype not in _HALF or reduction == "none":
        return op.ScatterElements(data, indices, updates, axis=axis, reduction=reduction)
    wide = op.ScatterElements(_wide(data), indices, _wide(updates), axis=axis, reduction=reduction)
    return narrowed(wide, data)


def scatter_nd(data: Var, indices: Var, updates: Var, *, reduction: str) -> Var:
    """ScatterND; the result has the dtype of `data`."""
    if data.dtype not in _HALF or reduction == "none":
        return op.ScatterND(data, indices, updates, reduction=reduction)
    return narrowed(op.ScatterND(_wide(data), indices, _wide(updates), reduction=reduction), data)


def _wide(v: Var) -> Var:
    """`v` in float32; what is a fill, reshaped or not, is filled in float32 at once."""
    made = v.definition
    source = None if made is None or not made.inputs else made.inputs[0]
    result: Var
    if v.dtype == TensorProto.FLOAT:
        return v
    if made is not None and made.is_op("ConstantOfShape"):
        value = made.attrs.get("value")
        number = (
            0.0 if value is None else float(numpy_helper.to_array(value).astype(np.float32).item())
        )
        result = fill(source, number, TensorProto.FLOAT)
    elif made is not None and made.is_op("Reshape") and source is not None and _is_fill(source):
        result = op.Reshape(_wide(source), made.inputs[1], allowzero=made.attrs.get("allowzero"))
    elif made is not None and made.is_op("Cast") and source is not None and _is_fill(source):
        return _wide(source)
    else:
        result = op.Cast(v, to=TensorProto.FLOAT)
    if isinstance(v.type, TensorType):
        result.type = TensorType(TensorProto.FLOAT, v.shape)
    return result


def _is_fill(v: Var) -> bool:
    made = v.definition
    if made is not None and made.is_op("Cast") and made.inputs[0] is not None:
        made = made.inputs[0].definition
    return made is not None and made.is_op("ConstantOfShape")
