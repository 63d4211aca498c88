"""Laws that compute products between DequantizeLinear and QuantizeLinear in integers, by
QLinearConv, QLinearMatMul and MatMulInteger.

Both forms round the same real number y / s_y to an integer: the float form after sums in float32,
the integer form after exact sums and a product with s_x s_w / s_y. If all scales are powers of two
and the sums stay within 2^24, float32 represents every intermediate number of both forms, and the
results are equal to the bit. Otherwise the integer form is off by at most one quantum, and only if
the exact y / s_y lies so close to a tie that three roundings of its largest value reach it. That
distance must be below one quantum.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto

from onnxgrad.frozen import frozen
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission.emit import constant
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import Array
from onnxgrad.ir.var import Var
from onnxgrad.laws.quantized.forms import EXACT, accumulated
from onnxgrad.laws.quantized.scaled import Scaled, dequantized
from onnxgrad.rewrite.trace import decline, decline_if

_CONV = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
_UNIT = 2.0**-24
_INT32 = 1 << 31


@frozen
class Island:
    """A product of two dequantized values: the integers, and the largest magnitude of its sums."""

    product: Binding
    x: Scaled
    w: Scaled
    bias: Var | None
    largest: int


@frozen
class Rounding:
    """The largest error of the float32 roundings in the integer form, in quanta of the result. 0
    means equal to the bit.
    """

    quanta: float
    words: str


def island(b: Binding) -> Island:
    """Returns the operands of a MatMul or Conv that can be computed in integers. Raises Decline
    otherwise.
    """
    x, w = dequantized(b.inputs[0]), dequantized(b.inputs[1])
    if x is None or w is None:
        raise decline("an operand is not dequantized from 8 bits with a constant scale")
    if not x.single or w.value.rank is None:
        raise decline("the left operand has several scales, or a rank is unknown")
    decline_if(
        x.dtype == TensorProto.INT8 and w.dtype != TensorProto.INT8,
        "signed by unsigned integers, which runtimes have no kernel for",
    )
    summed, kept = (range(1, w.value.rank), 0) if b.op == "Conv" else ((w.value.rank - 2,), -1)
    if b.op == "MatMul" and (w.value.rank < 2 or x.value.rank is None or x.value.rank < 2):
        raise decline("an operand has rank 1")
    decline_if(
        not w.single and (w.axis % w.value.rank != kept % w.value.rank or w.value.rank < 2),
        "the scales of the weight do not lie along its output channels",
    )
    decline_if(
        not w.single and b.op == "MatMul" and w.value.rank > 2,
        "a scale for each column of several matrices",
    )
    bias = _bias(b, x, w) if b.op == "Conv" else None
    found = accumulated(x.value, x.zero, w.value, w.zero, tuple(summed), bias)
    if found is None:
        raise decline("the length of the sums is unknown")
    if found[1] >= _INT32:
        raise decline(f"sums may reach {found[1]:,}, which 32 bits do not hold")
    return Island(b, x, w, bias, found[1])


def _bias(b: Binding, x: Scaled, w: Scaled) -> Var | None:
    """Returns the bias as integers of scale s_x s_w. Raises Decline if it has another
    scale or none.
    """
    bias = b.operand(2)
    if bias is None:
        return None
    made = bias.definition
    scales = np.asarray(x.scales, np.float32) * np.asarray(w.scales, np.float32)
    if made is None or not made.is_op("DequantizeLinear") or made.inputs[0] is None:
        return _rounded_bias(bias, np.asarray(scales))
    scale, zero = made.operand(1), made.operand(2)
    own = None if scale is None else scale.const
    at = None if zero is None else zero.const
    if made.inputs[0].dtype != TensorProto.INT32 or own is None:
        raise decline("the bias does not have 32-bit integers with a constant scale")
    if (zero is not None and (at is None or at.any())) or not np.array_equal(
        own.reshape(-1), np.reshape(scales, -1)
    ):
        raise decline("the bias has a zero point, or another scale than the products")
    return made.inputs[0]


def _rounded_bias(bias: Var, scales: Array) -> Var:
    """Returns a float bias as integers of these scales. Raises Decline if the bias is not an exact
    multiple.
    """
    array = bias.const
    decline_if(array is None or bias.rank != 1, "the bias is neither dequantized nor constant")
    ratio = np.asarray(array, np.float64) / np.asarray(scales, np.float64).reshape(-1)
    whole = np.rint(ratio)
    decline_if(
        not np.array_equal(ratio, whole) or np.abs(whole).max(initial=0) >= _INT32,
        "the bias is not a multiple of the products' scale",
    )
    return constant(whole.astype(np.int32), name=f"{bias.name}_quantized")


def rounding(found: Island, to: Scaled) -> Rounding:
    """Returns the error of the integer form. Raises Decline if it is one quantum or more."""
    scales = [np.asarray(s.scales, np.float64) for s in (found.x, found.w, to)]
    joint = scales[0] * scales[1]
    powers_of_two = all(np.all(np.frexp(s)[0] == 0.5) for s in scales)
    whole = powers_of_two and _normal(joint) and _normal(joint / scales[2])
    if whole and found.largest <= EXACT:
        return Rounding(0.0, "")
    ratio = float((joint / scales[2]).max())
    # the sum as float32, s_x s_w, its division by s_y, and the product
    quanta = 4 * _UNIT * found.largest * ratio
    decline_if(quanta >= 1, f"the result may be off by {quanta:.3g} quanta")
    return Rounding(
        quanta, f"off by one quantum where the exact result is within {quanta:.2g} of a tie"
    )


def _normal(scales: Array) -> bool:
    """Whether the scales, and their products with sums of up to EXACT, are normal float32
    numbers.
    """
    info = np.finfo(np.float32)
    wide = np.asarray(scales, np.float64)
    return bool(np.all((wide >= info.tiny) & (wide * EXACT < info.max)))


def in_integers(found: Island, to: Scaled) -> Var:
    """Q(D(x) @ D(w)) = QLinearMatMul(x, w); Q(Conv(D(x), D(w), D(b))) = QLinearConv(x, w, b)"""
    x, w = found.x, found.w
    decline_if(
        to.dtype != x.dtype or not to.single,
        "the result is of other integers than the left operand",
    )
    operands: list[Any] = [
        x.value, x.scale, x.zero_var(), w.value, w.scale, w.zero_var(), to.scale, to.zero_var()
    ]  # fmt: skip
    if found.product.op == "MatMul":
        return op.QLinearMatMul(*operands)
    written = {n: v for n, v in found.product.attrs.items() if n in _CONV}
    return op.QLinearConv(*operands, *([] if found.bias is None else [found.bias]), **written)


def in_float(found: Island) -> Any:
    """D(x) @ D(w) = float(MatMulInteger(x, w)) s_x s_w"""
    x, w = found.x, found.w
    sums = op.MatMulInteger(x.value, w.value, x.zero, w.zero)
    both = np.float32(x.scales.item()) * np.asarray(w.scales, np.float32)
    scales = constant(np.asarray(both, np.float32), name="scale")
    return op.Cast(sums, to=TensorProto.FLOAT) * scales
