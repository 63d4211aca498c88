"""Operators that lay elements out anew: Pad, Tile, Trilu, SpaceToDepth, ReverseSequence, CumSum, CumProd, Range."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto

from onnxgrad.grad.registry import vjp
from onnxgrad.grad.rules._common import pad, where
from onnxgrad.grad.rules._scatter import scatter_elements
from onnxgrad.ir.block import Binding, Var
from onnxgrad.ir.like import filled_like, reshape_like, zeros_like
from onnxgrad.ir.ops import op


def _pad(g: Var, y: Var, x: Var, pads: Any, value: Var | None, axes: Any, mode: str, binding: Binding) -> Any:
    """constant: Pad(g, -pads), negative pads being crops; the others copy elements, so their adjoints are summed."""
    if mode == "constant":
        opposite = op.Neg(pads) if isinstance(pads, Var) else [-p for p in pads]
        return pad(g, opposite, _axes(binding))
    # pad the elements' numbers like the elements: each part of g then knows where it came from
    numbers = op.Reshape(op.Range(np.int64(0), op.Size(x), np.int64(1)), op.Shape(x))
    source = op.Pad(numbers, binding.inputs[1], None, _axes(binding), mode=mode)
    flat = op.Reshape(zeros_like(x), [-1])
    added = scatter_elements(flat, op.Reshape(source, [-1]), op.Reshape(g, [-1]), axis=0, reduction="add")
    return reshape_like(added, x)


def _pad_value(g: Var, y: Var, x: Var, pads: Any, value: Var, axes: Any, mode: str, binding: Binding) -> Any:
    """The sum of g over what was padded."""
    if mode != "constant":
        return None
    inside = pad(filled_like(x, 1.0), binding.inputs[1], _axes(binding))
    total = op.ReduceSum(where(op.Equal(inside, 0.0), g, 0.0), keepdims=0)
    return total if value.rank == 0 else reshape_like(total, value)


def _axes(binding: Binding) -> Var | None:
    return binding.operand(3)


vjp("Pad", _pad, None, _pad_value)


def _tile(g: Var, y: Var, x: Var, repeats: Any) -> Var:
    """The sum over the copies: g as (r0, d0, r1, d1, ...), summed over the r's."""
    counts = repeats if isinstance(repeats, Var) else np.array(repeats, np.int64)
    shape = op.Shape(x)
    pairs = op.Reshape(op.Concat(op.Unsqueeze(counts, [1]), op.Unsqueeze(shape, [1]), axis=1), [-1])
    spread = op.Reshape(g, pairs, allowzero=1)
    if x.rank is not None:
        return g if x.rank == 0 else op.ReduceSum(spread, list(range(0, 2 * x.rank, 2)), keepdims=0)
    over = op.Range(np.int64(0), op.Size(pairs), np.int64(2))
    summed: Var = op.ReduceSum(spread, over, keepdims=0, noop_with_empty_axes=1)
    return summed


vjp("Tile", _tile)
vjp("Trilu", lambda g, y, x, k, upper: op.Trilu(g, _as_operand(k), upper=upper))


def _as_operand(k: Any) -> Any:
    """A scalar operand that may have arrived as a tuple of one constant."""
    return np.array(k, np.int64).reshape(()) if isinstance(k, tuple) else k


vjp("SpaceToDepth", lambda g, y, x, blocksize, mode="DCR": op.DepthToSpace(g, blocksize=blocksize, mode=mode))


def _depth_to_space(g: Var, y: Var, x: Var, blocksize: int, mode: str) -> Var:
    """DCR: SpaceToDepth; CRD: the blocks' axes come after the channels."""
    packed: Var = op.SpaceToDepth(g, blocksize=blocksize)
    if mode == "DCR":
        return packed
    # packed channels are (block row, block column, channel), CRD wants (channel, block row, block column)
    n, h, w = (op.Shape(packed, start=i, end=i + 1) for i in (0, 2, 3))
    split = op.Reshape(packed, op.Concat(n, np.array([blocksize * blocksize, -1], np.int64), h, w, axis=0))
    return reshape_like(op.Transpose(split, perm=[0, 2, 1, 3, 4]), x)


vjp("DepthToSpace", _depth_to_space)
vjp(
    "ReverseSequence",
    lambda g, y, x, lengths, batch_axis, time_axis: op.ReverseSequence(
        g, lengths, batch_axis=batch_axis, time_axis=time_axis
    ),
)
vjp(
    "CumSum",
    lambda g, y, x, axis, exclusive, reverse, binding: op.CumSum(
        g, binding.inputs[1], exclusive=exclusive, reverse=1 - reverse
    ),
)


def _cum_prod(g: Var, y: Var, x: Var, axis: Any, exclusive: int, reverse: int, binding: Binding) -> Var:
    """dx_j = sum over the products that hold x_j of g_i times the product of the others, zeros counted apart.

    With P_i the product of the nonzero factors of y_i and z_i the number of its zeros: a nonzero x_j takes part where
    z_i = 0 (the others' product is P_i / x_j), a zero x_j where it is the only zero, z_i = 1 (it is P_i).
    """
    along = binding.inputs[1]
    is_zero = op.Equal(x, 0.0)
    nonzero = where(is_zero, 1.0, x)
    products = op.CumProd(nonzero, along, exclusive=exclusive, reverse=reverse)
    zeros = op.CumSum(op.Cast(is_zero, to=TensorProto.INT32), along, exclusive=exclusive, reverse=reverse)

    def gathered(count: int) -> Var:
        taking_part = where(op.Equal(zeros, count), g * products, 0.0)
        total: Var = op.CumSum(taking_part, along, exclusive=exclusive, reverse=1 - reverse)
        return total

    return where(is_zero, gathered(1), gathered(0) / nonzero)


vjp("CumProd", _cum_prod, notes="zeros: the exact product of the others")


def _range_step(g: Var, y: Var, start: Var, limit: Var, delta: Var) -> Var:
    """y_i = start + i delta"""
    numbers = op.Cast(op.Range(np.int64(0), op.Size(y), np.int64(1)), to=y.dtype)
    result: Var = op.ReduceSum(g * numbers, keepdims=0)
    return result


vjp("Range", lambda g, y, start, limit, delta: op.ReduceSum(g, keepdims=0), None, _range_step)
