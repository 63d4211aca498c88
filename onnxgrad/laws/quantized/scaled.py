"""Reads QuantizeLinear and DequantizeLinear of 8-bit values with constant scales and zero
points.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from onnxgrad.frozen import frozen
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission.emit import constant
from onnxgrad.ir.types import Array, numpy_dtype
from onnxgrad.ir.var import Var
from onnxgrad.laws.quantized.forms import LIMITS

EIGHT_BITS = (TensorProto.UINT8, TensorProto.INT8)
# anything else that is written and not zero (blocks, another output type) is not read
_PLAIN = ("axis", "saturate")


@frozen
class Scaled:
    """The dequantized value (value - zero) * scale. `value` has integers of `dtype`; `scale` is a
    scalar or has one element per slice along `axis`. For a QuantizeLinear, `value` is its float
    operand.
    """

    value: Var
    scale: Var
    zero: Var | None
    dtype: int
    axis: int
    scales: Array
    zeros: Array

    @property
    def single(self) -> bool:
        """Whether one scale and zero point apply to all elements."""
        return self.scales.size == self.zeros.size == 1

    @property
    def at(self) -> int:
        """The zero point, if it is a single one."""
        return int(self.zeros.reshape(-1)[0])

    def like(self, other: Scaled) -> bool:
        """Whether equal integers represent equal numbers in both."""
        same = self.dtype == other.dtype and self.single and other.single
        return same and self.at == other.at and bool(self.scales.item() == other.scales.item())

    def zero_var(self) -> Var:
        """Returns the zero point as an operand."""
        if self.zero is not None:
            return self.zero
        return constant(np.zeros(self.scales.shape, numpy_dtype(self.dtype)), name="zero_point")


def dequantized(v: Var | None) -> Scaled | None:
    """Returns the parts of a DequantizeLinear of 8-bit integers; None for anything else."""
    b = None if v is None else v.definition
    if b is None or not b.is_op("DequantizeLinear") or b.inputs[0] is None:
        return None
    return _read(b, b.inputs[0].dtype)


def quantized(b: Binding) -> Scaled | None:
    """Returns the parts of a QuantizeLinear to 8-bit integers; None for anything else."""
    zero = b.operand(2)
    if not b.is_op("QuantizeLinear") or b.inputs[0] is None:
        return None
    return _read(b, TensorProto.UINT8 if zero is None else zero.dtype)


def _read(b: Binding, dtype: int) -> Scaled | None:
    value, scale, zero = b.inputs[0], b.operand(1), b.operand(2)
    if value is None or scale is None or b.has_refs or dtype not in EIGHT_BITS:
        return None
    if any(written and name not in _PLAIN for name, written in b.attrs.items()):
        return None
    scales, zeros = scale.const, np.zeros(1, np.int64) if zero is None else zero.const
    if scale.dtype != TensorProto.FLOAT or scales is None or zeros is None:
        return None
    if scales.ndim > 1 or not _ordinary(np.asarray(scales, np.float32)):
        return None
    axis = int(b.attr("axis", 1))
    return Scaled(value, scale, zero, dtype, axis, scales, np.asarray(zeros, np.int64))


def _ordinary(scales: Array) -> bool:
    """Whether every 8-bit integer, less a zero point and times each scale, is a normal float32."""
    wide = np.asarray(scales, np.float64)
    info = np.finfo(np.float32)
    return bool(scales.size and np.all((wide >= info.tiny) & (wide * 512 < info.max)))


def to_integer(value: float, scale: Scaled) -> int:
    """saturate(round(value / scale) + zero), as QuantizeLinear computes it in float32."""
    low, high = LIMITS[scale.dtype]
    ratio = np.float32(value) / np.float32(scale.scales.item())
    return int(np.clip(np.rint(ratio).astype(np.float64) + scale.at, low, high))
