"""Straight-through: the gradient passes a quantisation as if nothing were rounded between its
bounds.

Rounding has a zero derivative almost everywhere, so this is an estimate, never more (Bengio,
Leonard & Courville, 2013); the scale's part is that of learned step sizes (Esser et al., 2020).
While the gradient is formed, a StraightThrough stands behind each QuantizeLinear - DequantizeLinear
pair; the model's own values stay as they are.
"""

from __future__ import annotations

from onnx import TensorProto

from onnxgrad.grad.integer_paths import close_paths, open_paths, same_value
from onnxgrad.grad.registry import INTERNAL, vjp
from onnxgrad.ir.anchor import anchor
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.like import reshape_like
from onnxgrad.ir.ops import op
from onnxgrad.ir.program import Program
from onnxgrad.ir.var import Var

_BOUNDS: dict[int, tuple[int, int]] = {
    TensorProto.INT4: (-8, 7),
    TensorProto.UINT4: (0, 15),
    TensorProto.INT8: (-128, 127),
    TensorProto.UINT8: (0, 255),
    TensorProto.INT16: (-(1 << 15), (1 << 15) - 1),
    TensorProto.UINT16: (0, (1 << 16) - 1),
}


def open_rounding(program: Program) -> tuple[list[Binding], int]:
    """Put a StraightThrough behind each pair that rounds and comes back by the same scale, with
    integers moved about in between or not; returns the Identities that now define what the pairs
    did, and how many quantisations pass now.

    A pair with blocked scales, with a scale per channel of an operand of unknown rank, or of no
    integer type stays as it is, and so does a QuantizeLinear whose integers go elsewhere.
    """
    anchors = open_paths(program)
    pairs = [(b, q) for b in program.main.walk() if (q := _quantized(b)) is not None]
    for back, q in pairs:
        identity = anchor(back.out)
        x, scale = q.inputs[0], back.inputs[1]
        zero = back.operand(2)
        low, high = _BOUNDS[back.inputs[0].dtype] if back.inputs[0] is not None else (0, 0)
        with emitting(back.block, sources=(back,), made_by="straight_through"):
            passed = op.domain(INTERNAL).StraightThrough(
                x,
                scale,
                zero,
                back.out,
                axis=back.attr("axis") or 0,
                low=float(low),
                high=float(high),
            )
        passed.type = back.out.type
        back.block.set_operand(identity, 0, passed)
        anchors.append(identity)
    return anchors, len(pairs)


def close_rounding(program: Program) -> None:
    """Take the StraightThroughs out again, in recomputed copies and nested blocks too."""
    close_paths(program)
    for b in [b for b in program.main.walk() if (b.domain, b.op) == (INTERNAL, "StraightThrough")]:
        value = b.inputs[3]
        if value is not None:
            b.block.replace(b.out, value)
        b.block.remove_unused([b])


def _quantized(back: Binding) -> Binding | None:
    """The binding that rounded what `back` dequantises, when the two belong together."""
    if (
        not back.is_op("DequantizeLinear")
        or back.inputs[0] is None
        or back.inputs[0].dtype not in _BOUNDS
    ):
        return None
    q = back.inputs[0].definition
    scale, zero = back.inputs[1], back.operand(2)
    if (
        q is None
        or q.block is not back.block
        or q.inputs[0] is None
        or scale is None
        or back.attr("block_size")
    ):
        return None
    if q.is_op("DynamicQuantizeLinear"):
        return q if (scale, zero) == (q.result(1), q.result(2)) else None
    if not q.is_op("QuantizeLinear") or q.attr("axis") != back.attr("axis"):
        return None
    per_tensor = scale.rank == 0 or scale.shape == (1,)
    if not per_tensor and (scale.rank != 1 or q.inputs[0].rank is None):
        return None
    return q if same_value(q.inputs[1], scale) and same_value(q.operand(2), zero) else None


# ---- y = scale * (clip(round(x / scale) + zero, low, high) - zero), the rounding passed by -------


def _along(v: Var, x: Var, axis: int) -> Var:
    """One number, or one per channel, so that it broadcasts against `x`."""
    if v.rank == 0 or v.shape == (1,):
        return v
    rank = x.rank or 1
    others = [i for i in range(rank) if i != axis % rank]
    return op.Unsqueeze(v, others) if others else v


def _inside(x: Var, scale: Var, zero: Var | None, axis: int, low: float, high: float) -> Var:
    """Where nothing is clipped: x / scale rounds into [low, high] - zero."""
    steps = op.Div(x, _along(scale, x, axis))
    if zero is not None:
        steps = steps + _along(op.Cast(zero, to=x.dtype), x, axis)
    return op.And(op.GreaterOrEqual(steps, low - 0.5), op.LessOrEqual(steps, high + 0.5))


def _to_x(
    g: Var,
    y: Var,
    x: Var,
    scale: Var,
    zero: Var | None,
    value: Var,
    axis: int,
    low: float,
    high: float,
) -> Var:
    return op.Where(_inside(x, scale, zero, axis, low, high), g, 0.0)


def _to_scale(
    g: Var,
    y: Var,
    x: Var,
    scale: Var,
    zero: Var | None,
    value: Var,
    axis: int,
    low: float,
    high: float,
) -> Var:
    """-x / scale where nothing is clipped; the integers' own part arrives through
    DequantizeLinear.
    """
    each = op.Where(
        _inside(x, scale, zero, axis, low, high), g * op.Neg(op.Div(x, _along(scale, x, axis))), 0.0
    )
    if scale.rank == 0 or scale.shape == (1,):
        return reshape_like(op.ReduceSum(each, keepdims=0), scale)
    rank = x.rank or 1
    others = [i for i in range(rank) if i != axis % rank]
    return op.ReduceSum(each, others, keepdims=0) if others else each


vjp(f"{INTERNAL}::StraightThrough", _to_x, _to_scale, None, lambda g, y, x, scale, zero, value: g)
