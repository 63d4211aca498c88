"""Laws that read the integer weights of an operator through DequantizeLinear, so that gradients
reach the weights and a chain of dynamic quantization becomes one float operator.

In the equations D is DequantizeLinear, z a zero point and s a scale.
"""

from __future__ import annotations

from typing import Any

from onnx import TensorProto

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import element_count
from onnxgrad.ir.var import Var
from onnxgrad.laws.fold_scale_axis.scale import again
from onnxgrad.laws.quantized.forms import LIMITS, Form

_CONV = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
_ROUNDS = frozenset({"QuantizeLinear", "DynamicQuantizeLinear"})


def scaled_product(b: Binding, form: Form) -> dict[Var, Var]:
    """Cast(MatMulInteger(a, w, z_a, z_w)) * (s_a s_w) = MatMul(D(a, s_a, z_a), D(w, s_w, z_w)); the
    same for ConvInteger.

    Returns an empty mapping if no such chain reads `b`, or if its scale is not a product of two.
    """
    cast = _sole_reader(b, "Cast")
    mul = None if cast is None or cast.out.dtype != TensorProto.FLOAT else _sole_reader(cast, "Mul")
    if cast is None or mul is None or b.domain != "" or cast.block is not mul.block:
        return {}
    (scale,) = [v for v in mul.inputs if v is not cast.out] or [None]
    a, w = b.operand(0), b.operand(1)
    if a is None or w is None or scale is None or not a.rank or not w.rank:
        return {}
    factors = _factors(a, scale)
    if factors is None:
        return {}
    a_zero, w_zero = b.operand(2), b.operand(3)
    if not (_fits(factors[0], a_zero) and _fits(factors[1], w_zero, b.op == "MatMulInteger")):
        return {}
    if b.op == "ConvInteger":
        attrs = {n: v for n, v in b.attrs.items() if n in _CONV}
        left, right = form.dequantize(a, factors[0], a_zero), form.dequantize(w, factors[1], w_zero)
        return {mul.out: op.Conv(left, right, **attrs)}
    right = form.dequantize(w, factors[1], w_zero, -1)
    return {mul.out: op.MatMul(form.dequantize(a, factors[0], a_zero), right)}


def _sole_reader(b: Binding, kind: str) -> Binding | None:
    user = b.out.sole_user()
    return user if user is not None and user.is_op(kind) and user.block is b.block else None


def _fits(scale: Var, zero: Var | None, channels: bool = False) -> bool:
    """Whether DequantizeLinear accepts this scale and zero point: scalars, or vectors along
    `channels`.
    """
    count = element_count(scale.shape)
    if zero is not None and element_count(zero.shape) != count:
        return False
    return scale.rank in (0, 1) and (count == 1 or (channels and count is not None))


def _factors(a: Var, scale: Var) -> tuple[Var, Var] | None:
    """Returns the two factors of `scale`: the scale by which `a` was rounded if it is one of them,
    else the first, and the other.
    """
    rounded = _scale_of(a)
    product = scale.definition
    if product is not None and product.is_op("Mul"):
        first, second = product.inputs
        if first is not None and second is not None:
            if rounded is None or rounded is first:
                return first, second
            if rounded is second:
                return second, first
    return None if rounded is None else (rounded, op.Div(scale, rounded))


def _scale_of(a: Var) -> Var | None:
    """Returns the scale by which `a` was rounded, if `a` is directly the result of a
    quantization.
    """
    b = a.definition
    if b is None or b.domain != "" or b.op not in _ROUNDS:
        return None
    return b.inputs[1] if b.op == "QuantizeLinear" else b.result(1)


def table_of_integers(root: Binding, form: Form) -> dict[Var, Var]:
    """D(Gather(t, i)) = Gather(D(t), i) for a constant table t, equal to the bit.

    Returns an empty mapping for anything else.
    """
    gathered, scale = root.inputs[0], root.operand(1)
    rows = None if gathered is None else gathered.definition
    if rows is None or scale is None or not rows.is_op("Gather") or rows.block is not root.block:
        return {}
    table: Any = rows.inputs[0]
    known = table is not None and table.is_constant and table.dtype in LIMITS
    if not known or element_count(scale.shape) != 1 or root.attr("block_size"):
        return {}
    return {root.out: again(rows, [form.dequantize(table, scale, root.operand(2)), rows.inputs[1]])}
