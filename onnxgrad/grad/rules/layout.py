"""Operators that move elements: reshapes, Concat and Split, Slice, Pad, Tile, SpaceToDepth and
others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import TensorProto

from onnxgrad.grad.registry import vjp, vjp_all, zero
from onnxgrad.grad.rules._common import axes_operand, pad, widened
from onnxgrad.grad.rules.scatter import add_at_numbers
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission.arithmetic import from_front, in_dtype_of, size_along
from onnxgrad.ir.emission.fill_and_reshape import fill, reshape_like, shape_of, zeros_like
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import Dim, same_shape
from onnxgrad.ir.var import Var

zero("Shape", "Size", "ConstantOfShape", "Constant", "NonZero", "EyeLike")

vjp("Reshape", lambda g, y, x: reshape_like(g, x))
vjp("Flatten", lambda g, y, x: reshape_like(g, x))


vjp(
    "Squeeze",
    lambda g, y, x, axes: (
        reshape_like(g, x) if axes is None else op.Unsqueeze(g, axes_operand(axes))
    ),
)
vjp("Unsqueeze", lambda g, y, x, axes: op.Squeeze(g, axes_operand(axes)))
vjp(
    "Transpose",
    lambda g, y, x, perm: op.Transpose(
        g, perm=None if perm is None else [int(i) for i in np.argsort(perm)]
    ),
)
# the engine sums over broadcast axes
vjp("Expand", lambda g, y, x: g, broadcasts=True)


def _concat(g: Var, y: Var, xs: Sequence[Var], axis: int, wanted: Sequence[bool]) -> list[Any]:
    """Returns the parts by one Split, or by one Slice if a single partial is wanted."""
    if len(xs) == 1:
        return [g]
    lengths: Any = [v.shape[axis] for v in xs if v.shape and isinstance(v.shape[axis], int)]
    if len(lengths) < len(xs):
        lengths = op.Concat(*(size_along(v, axis) for v in xs), axis=0)
    elif sum(wanted) == 1:
        i = list(wanted).index(True)
        start = sum(lengths[:i])
        part = op.Slice(g, [start], [start + lengths[i]], [axis])
        return [part if needed else None for needed in wanted]
    return list(op.Split(g, lengths, axis=axis, outputs=len(xs)))


vjp_all("Concat", _concat)


vjp("Split", lambda g, y, x, axis: g[0] if len(g) == 1 else op.Concat(*g, axis=axis), fill=True)


def _slice(
    g: Var, y: Var, data: Var, starts: Any, ends: Any, axes: Any, steps: Any, binding: Binding
) -> Var:
    """y = data[starts : ends : steps] along axes. If all steps are 1, zeros are padded around g;
    otherwise g is scattered to the places that y came from.

    d data = Pad(g, before, after), where before = starts and after = size of data - size of y -
    before, axis by axis
    """
    turned = isinstance(steps, Sequence) and all(abs(s) == 1 for s in steps)
    if turned and same_shape(data.shape, y.shape):  # the same Slice reverses the axes back
        return op.Slice(g, *binding.inputs[1:])
    plain = steps is None or (not isinstance(steps, Var) and all(s == 1 for s in steps))
    known = not isinstance(starts, Var) and not isinstance(axes, Var)
    if not (plain and known and data.rank is not None):
        return _scatter_slice(g, data, binding)
    sliced = range(len(starts)) if axes is None else [from_front(a, data.rank) for a in axes]
    start = dict(zip(sliced, starts))
    sizes = zip(data.shape or (), y.shape or (None,) * data.rank)
    pads = [
        _before_and_after(start.get(axis), size, taken) for axis, (size, taken) in enumerate(sizes)
    ]
    around = [p for p in pads if p is not None]
    if len(around) < len(pads):
        return _pad_at_run_time(g, data, y, [start.get(axis, 0) for axis in range(data.rank)])
    before, after = [p[0] for p in around], [p[1] for p in around]
    return pad(g, [*before, *after]) if any(before) or any(after) else g


def _before_and_after(start: int | None, size: Dim, taken: Dim) -> tuple[int, int] | None:
    """Returns how many elements of an axis come before and after the slice.

    Returns None if this is known at run time only. start: None if the axis is not sliced.
    """
    if start and not isinstance(size, int):
        return None
    before = (
        min(max(start + size if start < 0 else start, 0), size)
        if start and isinstance(size, int)
        else 0
    )
    if isinstance(size, int) and isinstance(taken, int):
        return before, size - taken - before
    return (0, 0) if start is None else None


def _pad_at_run_time(g: Var, x: Var, y: Var, starts: Sequence[int]) -> Var:
    """Pads g as `_slice` does, for sizes that are known at run time only."""
    size = op.Shape(x)
    start: Any = np.array(starts, np.int64)
    if (start < 0).any():
        from_end = op.Max(op.Add(size, np.minimum(start, 0)), np.zeros(1, np.int64))
        start = op.Where(start < 0, from_end, start)
    before = op.Min(start, size)
    return pad(g, op.Concat(before, op.Sub(op.Sub(size, op.Shape(y)), before), axis=0))


def _scatter_slice(g: Var, x: Var, binding: Binding) -> Var:
    """Slices the numbers of the elements like the elements, and puts each part of g there."""
    numbers = op.Reshape(op.Range(np.int64(0), op.Size(x), np.int64(1)), op.Shape(x), allowzero=1)
    taken = op.Slice(numbers, *binding.inputs[1:])
    flat_zeros = op.Reshape(zeros_like(x), [-1])
    flat = op.ScatterElements(flat_zeros, op.Reshape(taken, [-1]), op.Reshape(g, [-1]), axis=0)
    return reshape_like(flat, x)


vjp("Slice", _slice)


def _pad(
    g: Var, y: Var, x: Var, pads: Any, value: Var | None, axes: Any, mode: str, binding: Binding
) -> Var:
    """In mode constant returns Pad(g, -pads), where negative pads crop.

    The other modes copy elements, so their adjoints are summed.
    """
    if mode == "constant":
        opposite = op.Neg(pads) if isinstance(pads, Var) else [-p for p in pads]
        return pad(g, opposite, binding.operand(3))
    # pad the elements' numbers like the elements, to find where each part of g came from
    numbers = op.Reshape(op.Range(np.int64(0), op.Size(x), np.int64(1)), op.Shape(x), allowzero=1)
    source = op.Pad(numbers, binding.inputs[1], None, binding.operand(3), mode=mode)
    return add_at_numbers(g, x, source)


def _pad_value(
    g: Var, y: Var, x: Var, pads: Any, value: Var, axes: Any, mode: str, binding: Binding
) -> Any:
    """Returns the sum of g over the padding."""
    if mode != "constant":
        return None
    inside = pad(fill(shape_of(x), 1.0, TensorProto.FLOAT), binding.inputs[1], binding.operand(3))
    outside = op.Where(op.Equal(inside, 0.0), widened(g), 0.0)
    total = in_dtype_of(op.ReduceSum(outside, keepdims=0), value)
    return total if value.rank == 0 else reshape_like(total, value)


vjp("Pad", _pad, None, _pad_value)


def _tile(g: Var, y: Var, x: Var, repeats: Any) -> Var:
    """Returns the sum over the copies: g as (r0, d0, r1, d1, ...), summed over the r's."""
    counts = repeats if isinstance(repeats, Var) else np.array(repeats, np.int64)
    shape = op.Shape(x)
    pairs = op.Reshape(op.Concat(op.Unsqueeze(counts, [1]), op.Unsqueeze(shape, [1]), axis=1), [-1])
    spread = op.Reshape(g, pairs, allowzero=1)
    if x.rank is not None:
        return g if x.rank == 0 else op.ReduceSum(spread, list(range(0, 2 * x.rank, 2)), keepdims=0)
    over = op.Range(np.int64(0), op.Size(pairs), np.int64(2))
    return op.ReduceSum(spread, over, keepdims=0, noop_with_empty_axes=1)


vjp("Tile", _tile)


vjp(
    "Trilu",
    # k is a tuple of one int if constant, else a value
    lambda g, y, x, k, upper: op.Trilu(
        g, np.array(k, np.int64).reshape(()) if isinstance(k, tuple) else k, upper=upper
    ),
)
vjp(
    "ReverseSequence",
    lambda g, y, x, lengths, batch_axis, time_axis: op.ReverseSequence(
        g, lengths, batch_axis=batch_axis, time_axis=time_axis
    ),
)


vjp(
    "SpaceToDepth",
    lambda g, y, x, blocksize, mode="DCR": op.DepthToSpace(g, blocksize=blocksize, mode=mode),
)


def _depth_to_space(g: Var, y: Var, x: Var, blocksize: int, mode: str) -> Var:
    """DCR: SpaceToDepth; CRD: the blocks' axes come after the channels."""
    packed = op.SpaceToDepth(g, blocksize=blocksize)
    if mode == "DCR":
        return packed
    # packed channels are (block row, block column, channel), but CRD needs (channel, block row,
    # block column)
    n, h, w = (op.Shape(packed, start=i, end=i + 1) for i in (0, 2, 3))
    split = op.Reshape(
        packed, op.Concat(n, np.array([blocksize * blocksize, -1], np.int64), h, w, axis=0)
    )
    return reshape_like(op.Transpose(split, perm=[0, 2, 1, 3, 4]), x)


vjp("DepthToSpace", _depth_to_space)
