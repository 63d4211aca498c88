"""Quantisation: rounding has zero derivative almost everywhere; a scale after it has a real one."""

from __future__ import annotations

import numpy as np

from onnxgrad.errors import InputError
from onnxgrad.grad.registry import vjp, zero
from onnxgrad.grad.rules._common import pad
from onnxgrad.grad.unbroadcast import sum_by_scale
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission.arithmetic import in_dtype_of, rank_of
from onnxgrad.ir.emission.emit import constant
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var


def _dequantize_scale(
    g: Var,
    y: Var,
    x: Var,
    scale: Var,
    zero_point: Var | None,
    axis: int,
    block_size: int | None,
    binding: Binding,
) -> Var:
    """y = (x - zero_point) * scale: sums g * (x - zero_point) over the elements of each scale."""
    ones = op.Expand(constant(1.0, scale.dtype), op.Shape(scale))
    plain = op.DequantizeLinear(x, ones, zero_point, axis=axis, block_size=block_size)
    each = g * in_dtype_of(plain, g)
    if block_size:
        rank_of(scale, binding)
        return _sum_blocks(each, x, axis % max(rank_of(x, binding), 1), block_size, binding)
    if x.rank is None or scale.rank is None:
        return _sum_around(each, scale, axis)
    return sum_by_scale(each, scale, axis, x.rank)


def _sum_around(each: Var, scale: Var, axis: int) -> Var:
    """Returns the sums of `each` along all axes but one, or along all for a scale of one element.

    The rank of `each` is not known.
    """
    before = op.ReduceProd(op.Shape(each, start=0, end=axis), [0], keepdims=1)
    target = op.Concat(before, op.Reshape(op.Size(scale), [1]), [-1], axis=0)
    total = op.ReduceSum(op.Reshape(each, target), [0, 2], keepdims=0)
    return op.Reshape(total, op.Shape(scale))


def _sum_blocks(each: Var, x: Var, axis: int, block: int, binding: Binding) -> Var:
    """Returns sums of `block` neighbours along `axis`; the last block may be shorter."""
    size = x.shape[axis] if x.shape is not None else None
    if not isinstance(size, int):
        raise InputError(
            f"the gradient of '{binding}' by a blocked scale needs the size of axis "
            f"{axis} beforehand"
        )
    blocks = -(-size // block)
    if blocks * block != size:
        each = pad(each, [0, blocks * block - size], [axis])
    split = op.Reshape(each, np.array([*[0] * axis, blocks, block, *_rest(x, axis)], np.int64))
    return op.ReduceSum(split, [axis + 1], keepdims=0)


def _rest(x: Var, axis: int) -> list[int]:
    """Returns the sizes after `axis` for a Reshape; at most one of them may be unknown."""
    after = list(x.shape or ())[axis + 1 :]
    if sum(not isinstance(d, int) for d in after) > 1:
        raise InputError(
            f"the gradient by a blocked scale needs the sizes of '{x.name}' beforehand"
        )
    return [d if isinstance(d, int) else -1 for d in after]


vjp(
    "DequantizeLinear",
    None,
    _dequantize_scale,
    notes="the scale; the integers receive nothing, so a QuantizeLinear before it passes nothing",
)
# DynamicQuantizeLinear uses its body: y_scale, and the range behind it, have a derivative
zero("QuantizeLinear", notes="rounding: zero almost everywhere; no straight-through estimate")
zero("QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger", notes="integers")
