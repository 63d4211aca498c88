"""Quantisation: rounding has zero derivative almost everywhere; a scale after it has a real one."""

from __future__ import annotations

import numpy as np

from onnxgrad.errors import InputError
from onnxgrad.grad.registry import vjp, zero
from onnxgrad.grad.rules._common import in_dtype_of, pad, rank_of
from onnxgrad.grad.unbroadcast import sum_by_scale
from onnxgrad.ir.binding import Binding
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
    rank_of(scale, binding)
    rank = rank_of(x, binding)
    ones = op.Expand(constant(1.0, scale.dtype), op.Shape(scale))
    plain = op.DequantizeLinear(x, ones, zero_point, axis=axis, block_size=block_size)
    each = g * in_dtype_of(plain, g)
    if block_size:
        return _sum_blocks(each, x, axis % max(rank, 1), block_size, binding)
    return sum_by_scale(each, scale, axis, rank)


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
