"""Two ways to say what a quantized operator does: by QuantizeLinear/DequantizeLinear, or by
plain arithmetic only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from onnx import TensorProto

from onnxgrad.ir.emission.constant import constant
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import numpy_dtype
from onnxgrad.ir.var import Var
from onnxgrad.rewrite.trace import decline

# the dtypes of quantized tensors that these forms know
LIMITS: dict[int, tuple[int, int]] = {
    TensorProto.UINT8: (0, 255),
    TensorProto.INT8: (-128, 127),
    TensorProto.UINT16: (0, 65535),
    TensorProto.INT16: (-32768, 32767),
}


class Form(ABC):
    """How a quantized tensor is read and written. `axis` is the one that a vector of scales lies
    along.
    """

    @abstractmethod
    def dequantize(self, x: Var, scale: Var, zero: Var | None, axis: int | None = None) -> Var:
        """(x - zero) * scale, in float32."""

    @abstractmethod
    def quantize(
        self, y: Any, scale: Var, zero: Var | None, dtype: int, axis: int | None = None
    ) -> Var:
        """saturate(round(y / scale) + zero) as `dtype`, ties to even."""


class QdqForm(Form):
    """By QuantizeLinear and DequantizeLinear, which onnxruntime fuses back to its quantized
    kernels.
    """

    def dequantize(self, x: Var, scale: Var, zero: Var | None, axis: int | None = None) -> Var:
        return op.DequantizeLinear(x, scale, zero, **_axis(scale, axis, x.block.opsets[""]))

    def quantize(
        self, y: Any, scale: Var, zero: Var | None, dtype: int, axis: int | None = None
    ) -> Var:
        if zero is None:
            zero = constant(np.zeros(_shape(scale), numpy_dtype(dtype)))
        return op.QuantizeLinear(y, scale, zero, **_axis(scale, axis, y.block.opsets[""]))


class PlainForm(Form):
    """By Cast, Sub, Mul, Div, Round, Clip and the like: for runtimes that know nothing of
    quantization.
    """

    def dequantize(self, x: Var, scale: Var, zero: Var | None, axis: int | None = None) -> Var:
        return centred(x, zero, axis) * along(scale, axis, x)

    def quantize(
        self, y: Any, scale: Var, zero: Var | None, dtype: int, axis: int | None = None
    ) -> Var:
        return saturated(rounded(y / along(scale, axis, y)), zero, dtype, axis)


def centred(x: Var, zero: Var | None, axis: int | None = None) -> Var:
    """x - zero as float32, exactly: both have 16 bits at most (int32, for biases, comes without
    a zero point).
    """
    wide = op.Cast(x, to=TensorProto.FLOAT)
    if zero is None or (zero.const is not None and not zero.const.any()):
        return wide
    return wide - along(op.Cast(zero, to=TensorProto.FLOAT), axis, x)


def saturated(whole: Any, zero: Var | None, dtype: int, axis: int | None = None) -> Var:
    """whole + zero, held within `dtype`."""
    low, high = LIMITS[dtype]
    if zero is not None:
        whole = whole + along(op.Cast(zero, to=TensorProto.FLOAT), axis, whole)
    # Cast from float to small integers is only defined for what fits, which Clip sees to
    return op.Cast(op.Clip(whole, float(low), float(high)), to=dtype)


def rounded(v: Any) -> Var:
    """Ties to even, as QuantizeLinear rounds."""
    if v.block.opsets[""] < 11:
        raise decline("rounding by plain operators needs opset 11")
    return op.Round(v)


def along(v: Var, axis: int | None, data: Var) -> Var:
    """A scale or zero point shaped to broadcast with `data`: a vector lies along `axis`, one
    element is a scalar.
    """
    shape = _shape(v)
    if shape == ():
        return v
    if len(shape) > 1:
        return v  # one value for each row or column of each matrix: written to broadcast
    if shape == (1,):
        return op.Squeeze(v, [0])
    if axis is None or data.rank is None:
        raise decline("a vector of scales needs an axis and a known rank")
    behind = data.rank - 1 - axis % data.rank
    return op.Unsqueeze(v, list(range(1, behind + 1))) if behind else v


def _shape(v: Var) -> tuple[Any, ...]:
    if v.shape is None:
        raise decline(f"the rank of '{v.name}' is unknown")
    return v.shape


def _axis(scale: Var, axis: int | None, opset: int) -> dict[str, int]:
    shape = _shape(scale)
    if shape in ((), (1,)):
        return {}
    if len(shape) > 1 or axis is None:
        raise decline("scales for each row of each matrix have no QDQ form")
    if opset < 13:
        raise decline("one scale per channel needs opset 13 in QDQ form")
    return {"axis": axis}
