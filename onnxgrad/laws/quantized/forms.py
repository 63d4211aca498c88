"""Two forms of a quantized operator, by QuantizeLinear and DequantizeLinear or by plain arithmetic,
and the largest integers that it accumulates, which decide whether float32 holds the sums.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from onnx import TensorProto

from onnxgrad.ir.emission.emit import constant
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import Array, numpy_dtype
from onnxgrad.ir.var import Var
from onnxgrad.rewrite.trace import decline, decline_if

# the dtypes of quantized tensors that these forms support
LIMITS: dict[int, tuple[int, int]] = {
    TensorProto.UINT8: (0, 255),
    TensorProto.INT8: (-128, 127),
    TensorProto.UINT16: (0, 65535),
    TensorProto.INT16: (-32768, 32767),
}


class Form(ABC):
    """How quantized tensors are read and written. `axis` is the axis of a vector of scales."""

    @abstractmethod
    def dequantize(self, x: Var, scale: Var, zero: Var | None, axis: int | None = None) -> Var:
        """(x - zero) * scale, in float32."""

    @abstractmethod
    def quantize(
        self, y: Any, scale: Var, zero: Var | None, dtype: int, axis: int | None = None
    ) -> Var:
        """saturate(round(y / scale) + zero) as `dtype`, ties to even."""


class QdqForm(Form):
    """QuantizeLinear and DequantizeLinear, which onnxruntime fuses back to its quantized
    kernels.
    """

    def dequantize(self, x: Var, scale: Var, zero: Var | None, axis: int | None = None) -> Var:
        y = op.DequantizeLinear(x, scale, zero, **_axis(scale, axis, x.block.opsets[""]))
        # a weight, with a name that `wrt` can select
        if x.is_constant and y.name.startswith("dequantizelinear"):
            name = f"{x.name.removesuffix('_quantized')}_dequantized"
            y.rename(x.block.program.names.fresh(name))
        return y

    def quantize(
        self, y: Any, scale: Var, zero: Var | None, dtype: int, axis: int | None = None
    ) -> Var:
        if zero is None:
            zero = constant(np.zeros(_shape(scale), numpy_dtype(dtype)))
        return op.QuantizeLinear(y, scale, zero, **_axis(scale, axis, y.block.opsets[""]))


class PlainForm(Form):
    """Cast, Sub, Mul, Div, Round, Clip and others, for runtimes without quantization."""

    def dequantize(self, x: Var, scale: Var, zero: Var | None, axis: int | None = None) -> Var:
        return centred(x, zero, axis) * along(scale, axis, x)

    def quantize(
        self, y: Any, scale: Var, zero: Var | None, dtype: int, axis: int | None = None
    ) -> Var:
        return saturated(rounded(y / along(scale, axis, y)), zero, dtype, axis)


def centred(x: Var, zero: Var | None, axis: int | None = None) -> Var:
    """Returns x - zero as float32, exactly: both have at most 16 bits, or `x` is an int32 bias
    without a zero point.
    """
    wide = op.Cast(x, to=TensorProto.FLOAT)
    if zero is None or (zero.const is not None and not zero.const.any()):
        return wide
    return wide - along(op.Cast(zero, to=TensorProto.FLOAT), axis, x)


def saturated(whole: Any, zero: Var | None, dtype: int, axis: int | None = None) -> Var:
    """Returns whole + zero, limited to the range of `dtype`."""
    low, high = LIMITS[dtype]
    if zero is not None:
        whole = whole + along(op.Cast(zero, to=TensorProto.FLOAT), axis, whole)
    # Cast from float to small integers is only defined for values in range, which Clip ensures
    return op.Cast(op.Clip(whole, float(low), float(high)), to=dtype)


def rounded(v: Any) -> Var:
    """Rounds ties to even, as QuantizeLinear does."""
    decline_if(v.block.opsets[""] < 11, "rounding by plain operators needs opset 11")
    return op.Round(v)


def along(v: Var, axis: int | None, data: Var) -> Var:
    """Returns a scale or zero point in a shape that broadcasts with `data`: a vector along `axis`,
    or a scalar for one element.
    """
    shape = _shape(v)
    if shape == ():
        return v
    if len(shape) > 1:
        return (
            v  # one value for each row or column of each matrix, already in a broadcastable shape
        )
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
    decline_if(opset < 13, "one scale per channel needs opset 13 in QDQ form")
    return {"axis": axis}


# float32 holds every integer up to this
EXACT = 1 << 24
_UNIT = 2.0**-24


def reach(x: Var, zero: Var | None) -> int:
    """Returns the largest |x - zero|: of the values if both are constant, else by the dtype."""
    low, high = LIMITS[x.dtype]
    if zero is None:
        at = np.zeros(1, np.int64)
    elif zero.const is not None:
        at = np.asarray(zero.const, np.int64).reshape(-1)
    else:
        return high - low
    return int(max(high - at.min(), at.max() - low))


def accumulated(
    x: Var,
    x_zero: Var | None,
    w: Var,
    w_zero: Var | None,
    summed: tuple[int, ...],
    bias: Var | None,
) -> tuple[int, int] | None:
    """Returns (number of terms, largest |sum|) of the products of `x` with `w` over the axes
    `summed` of `w`, or None if unknown.
    """
    if w.shape is None:
        return None
    sizes = [w.shape[a] for a in summed]
    known = [d for d in sizes if isinstance(d, int)]
    if len(known) < len(sizes):
        return None
    terms = prod(known)
    weights = _centred(w, w_zero, summed)
    total = (
        terms * reach(w, w_zero)
        if weights is None
        else int(weights.sum(axis=summed).max(initial=0))
    )
    largest = total * reach(x, x_zero)
    if bias is not None:
        largest += (
            (1 << 31)
            if bias.const is None
            else int(np.abs(np.asarray(bias.const, np.int64)).max(initial=0))
        )
    return terms, largest


def _centred(w: Var, zero: Var | None, summed: tuple[int, ...]) -> Array | None:
    """Returns |w - zero| if both are constant and the zero point is a scalar or has one value per
    slice of the sums.
    """
    array = w.const
    if array is None or (zero is not None and zero.const is None):
        return None
    wide = np.asarray(array, np.int64)
    if zero is None or zero.const is None:
        return np.abs(wide)
    at = np.asarray(zero.const, np.int64)
    if at.size != 1:
        kept = [a for a in range(wide.ndim) if a not in [s % wide.ndim for s in summed]]
        if at.ndim != 1 or not kept or wide.shape[kept[-1]] != at.size:
            return None
        shape = [1] * wide.ndim
        shape[kept[-1]] = at.size
        at = at.reshape(shape)
    else:
        at = at.reshape(())
    apart: Array = np.abs(wide - at)
    return apart


@dataclass(frozen=True, slots=True)
class Shortfall:
    """Sums that float32 may not hold exactly: the largest error (None if no bound is known) and a
    description.
    """

    error: float | None
    words: str


def shortfall(found: tuple[int, int] | None) -> Shortfall | None:
    """Returns the Shortfall if float32 cannot hold the sums exactly, else None."""
    if found is None:
        return Shortfall(
            None, "the length of the sum is unknown: exact only while the sums stay below 2^24"
        )
    terms, largest = found
    if largest <= EXACT:
        return None
    # the error of a sum of n terms is at most n u / (1 - n u) times the sum of their magnitudes
    # (Higham, section 3.1)
    error = terms * _UNIT / (1 - terms * _UNIT) * largest if terms * _UNIT < 1 else float(largest)
    return Shortfall(
        error,
        f"sums may reach {largest}, above 2^24: an accumulator may be off by up to {error:.3g}",
    )
