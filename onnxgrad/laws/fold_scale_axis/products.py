"""Products that take a scale into a weight, along an axis of their result (backward) or of an
operand (forward).
"""

from __future__ import annotations

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.var import Var
from onnxgrad.laws.fold_scale_axis.scale import Scale, again, weight
from onnxgrad.rewrite.trace import decline, decline_if

PRODUCTS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})


def product_times(b: Binding, scale: Scale) -> Var:
    """Returns `b * scale` as the same product of scaled weights and bias. Declines."""
    return _TIMES[b.op](b, scale)


def product_of_scaled(b: Binding, index: int, new: Var, scale: Scale) -> Var:
    """Returns the product `b`, whose operand `index` is `new * scale`, as the product of `new` and
    scaled weights.
    """
    decline_if(
        b.op != "MatMul" and index != 0, f"the scaled value is not the data operand of {b.op}"
    )
    return _matmul_of(b, index, new, scale) if b.op == "MatMul" else _OF[b.op](b, new, scale)


# ---- backward: the output's axis -----------------------------------------------------------------


def _conv_times(b: Binding, scale: Scale) -> Var:
    """Conv(x, w, c) * s = Conv(x, w * s, c * s), s along the output channels"""
    _expect(b, scale, 1)
    w, bias = weight(b.operand(1), b.out), b.operand(2)
    return again(
        b, [b.inputs[0], scale.times(w, 0), None if bias is None else scale.times(bias, 0)]
    )


def _conv_transpose_times(b: Binding, scale: Scale) -> Var:
    """ConvTranspose(x, w, c) * s: w is (C_in, C_out/G, ...), so the inputs of each group take their
    part of s
    """
    _expect(b, scale, 1)
    w, bias = weight(b.operand(1), b.out), b.operand(2)
    scaled = _grouped(w, scale, b.attr("group"), across=1)
    return again(b, [b.inputs[0], scaled, None if bias is None else scale.times(bias, 0)])


def _gemm_times(b: Binding, scale: Scale) -> Var:
    """Gemm(x, w, c) * s = Gemm(x, w * s, c * s), s along the columns"""
    _expect(b, scale, 1)
    w, bias = weight(b.operand(1), b.out), b.operand(2)
    if bias is not None and bias.is_constant is False:
        weight(bias, b.out)
    scaled = scale.times(w, 0 if b.attr("transB") else 1)
    # a bias broadcasts to (M, N) along trailing axes, and so does its product with (N,)
    return again(
        b, [b.inputs[0], scaled, None if bias is None else scale.apply(bias, scale.lined_up(0))]
    )


def _matmul_times(b: Binding, scale: Scale) -> Var:
    """(x @ w) * s = x @ (w * s) along the columns, and (x * s) @ w along the rows if x is the
    weight
    """
    left, right = b.inputs[0], b.inputs[1]
    if left is None or right is None or not left.rank or not right.rank or b.out.rank is None:
        raise decline("an operand's rank is unknown")
    if right.rank > 1 and scale.axis in (None, b.out.rank - 1):
        return again(b, [left, scale.times(weight(right, b.out), right.rank - 1)])
    if left.rank > 1 and scale.axis == b.out.rank - (2 if right.rank > 1 else 1):
        return again(b, [scale.times(weight(left, b.out), left.rank - 2), right])
    raise decline("the scale lies along a batch axis of MatMul")


def _expect(b: Binding, scale: Scale, axis: int) -> None:
    decline_if(
        scale.axis not in (None, axis),
        f"the scale lies along axis {scale.axis} of {b.op}, which its weight does not have",
    )


def _grouped(w: Var, scale: Scale, groups: int, across: int) -> Var:
    """Returns a scaled weight whose axis 0 counts the channels of all groups and whose axis 1
    (`across`) those of one group.
    """
    if groups == 1 or scale.axis is None:
        return scale.times(w, across)
    shape = w.shape
    if shape is None or not isinstance(shape[0], int) or scale.factors.size % groups:
        raise decline("the grouped weight's sizes are unknown")
    decline_if(
        scale.factors.size // groups != shape[1] or shape[0] % groups,
        "the grouped weight does not have these channels",
    )
    return scale.apply(w, scale.grouped(groups, shape[0] // groups, len(shape) - 2))


# ---- forward: the data operand's axis ------------------------------------------------------------


def _conv_of(b: Binding, new: Var, scale: Scale) -> Var:
    """Conv(x * s, w, c) = Conv(x, w * s, c), s along the input channels; w is (C_out, C_in/G,
    ...)
    """
    _expect(b, scale, 1)
    return again(
        b,
        [new, _grouped(weight(b.operand(1), new), scale, b.attr("group"), across=1), *b.inputs[2:]],
    )


def _conv_transpose_of(b: Binding, new: Var, scale: Scale) -> Var:
    """ConvTranspose(x * s, w, c) = ConvTranspose(x, w * s, c), s along axis 0 of w for any number
    of groups
    """
    _expect(b, scale, 1)
    return again(b, [new, scale.times(weight(b.operand(1), new), 0), *b.inputs[2:]])


def _gemm_of(b: Binding, new: Var, scale: Scale) -> Var:
    """Gemm(x * s, w, c) = Gemm(x, w * s, c), s along the inner axis"""
    _expect(b, scale, 0 if b.attr("transA") else 1)
    w = weight(b.operand(1), new)
    return again(b, [new, scale.times(w, 1 if b.attr("transB") else 0), *b.inputs[2:]])


def _matmul_of(b: Binding, index: int, new: Var, scale: Scale) -> Var:
    """(x * s) @ w = x @ (w * s) and w @ (x * s) = (w * s) @ x, s along the inner axis"""
    other = b.inputs[1 - index]
    if other is None or not other.rank or not new.rank:
        raise decline("an operand's rank is unknown")
    inner = new.rank - 1 if index == 0 or new.rank == 1 else new.rank - 2
    _expect(b, scale, inner)
    across = other.rank - 2 if index == 0 and other.rank > 1 else other.rank - 1
    scaled = scale.times(weight(other, new), across)
    return again(b, [new, scaled] if index == 0 else [scaled, new])


_TIMES = {
    "Conv": _conv_times,
    "ConvTranspose": _conv_transpose_times,
    "Gemm": _gemm_times,
    "MatMul": _matmul_times,
}
_OF = {"Conv": _conv_of, "ConvTranspose": _conv_transpose_of, "Gemm": _gemm_of}
