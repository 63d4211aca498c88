"""LRN, LpPool, GlobalLpPool, MaxUnpool and Col2Im."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from onnxgrad.errors import InputError
from onnxgrad.grad.registry import vjp
from onnxgrad.grad.rules._common import pad, where
from onnxgrad.grad.rules._windows import geometry, onto_long, spatial
from onnxgrad.ir.block import Binding, Var
from onnxgrad.ir.emission.constant import constant
from onnxgrad.ir.like import reshape_like
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import numpy_dtype


def _window_sum(v: Var, before: int, after: int) -> Var:
    """Along the channels: the sum from `before` channels ahead to `after` behind."""
    rank = v.rank or 0
    ends = [[0] * rank, [0] * rank]
    ends[0][1], ends[1][1] = before, after
    padded = pad(v, [*ends[0], *ends[1]])
    channels = op.Shape(v, start=1, end=2)
    size = before + after + 1
    parts = [op.Slice(padded, [i], op.Add(channels, np.array([i], np.int64)), [1]) for i in range(size)]
    total: Var = op.Sum(*parts)
    return total


def _lrn(g: Var, y: Var, x: Var, size: int, alpha: float, beta: float, bias: float, binding: Binding) -> Var:
    """y = x s^-b, s = bias + a/n sum x²: dx = g s^-b - 2ab/n x W'(g x s^(-b-1)), W' the mirrored window."""
    if x.rank is None:
        raise InputError(f"the gradient of '{binding}' needs an operand of known rank")
    before, after = (size - 1) // 2, size - 1 - (size - 1) // 2
    s = _window_sum(x * x, before, after) * (alpha / size) + bias
    inner = _window_sum(g * x * op.Pow(s, -beta - 1.0), after, before)
    return g * op.Pow(s, -beta) - x * inner * (2.0 * alpha * beta / size)


vjp("LRN", _lrn)


def _lp_slope(share: Var, y: Var, x: Var, p: int) -> Var:
    """share sign(x) |x|^(p-1), where share is g y^(1-p) brought to x."""
    if p == 1:
        return share * op.Sign(x)
    return share * x if p == 2 else share * op.Sign(x) * op.Pow(op.Abs(x), float(p - 1))


def _lp_share(g: Var, y: Var, p: int) -> Var:
    """g y^(1-p), and 0 where the norm is 0."""
    if p == 1:
        return g
    empty = op.Equal(y, 0.0)
    return where(empty, 0.0, g / op.Pow(where(empty, 1.0, y), float(p - 1)))


def _global_lp(g: Var, y: Var, x: Var, p: int) -> Var:
    return _lp_slope(_lp_share(g, y, p), y, x, p)


vjp("GlobalLpPool", _global_lp, notes="0 where the norm is 0")


def _lp_pool(g: Var, y: Var, x: Var, kernel_shape: Sequence[int], p: int, binding: Binding) -> Var:
    """Each window's share goes to all its elements, each channel an image of its own."""
    geo = geometry(binding, kernel_shape, x, y)
    share = _lp_share(g, y, p)
    sizes = spatial(y)
    one_channel = np.array([-1, 1], np.int64)
    images: Any = [-1, 1, *sizes] if sizes is not None else op.Concat(one_channel, op.Shape(y, start=2), axis=0)
    ones = constant(np.ones((1, 1, *kernel_shape), numpy_dtype(x.dtype)))
    spread = reshape_like(onto_long(op.Reshape(share, images), ones, x, geo, 1), x)
    return _lp_slope(spread, y, x, p)


vjp("LpPool", _lp_pool, notes="0 where the norm is 0")


vjp(
    "MaxUnpool",
    # each value's adjoint is read where the value was put
    lambda g, y, x, places: op.Gather(op.Reshape(g, [-1]), places, axis=0),
    notes="indices count in the output, as in onnxruntime, also where output_shape makes it larger",
)


def _col2im(g: Var, y: Var, x: Var, image: Any, block: tuple[int, ...] | Var, binding: Binding) -> Var:
    """The patches of g: for each place in the block, a strided slice, or elements by number where it is not known."""
    rank = g.rank if isinstance(block, Var) else len(block) + 2
    if rank is None:
        raise InputError(f"the gradient of '{binding}' needs to know how many axes the image has: declare its shape")
    n = rank - 2
    dilations = binding.attr("dilations") or (1,) * n
    strides = binding.attr("strides") or (1,) * n
    pads = binding.attr("pads") or (0,) * 2 * n
    padded = pad(g, [0, 0, *pads[:n], 0, 0, *pads[n:]])
    if isinstance(block, Var):
        return reshape_like(_patches(padded, block, n, strides, dilations), x)
    axes = list(range(2, n + 2))
    ends = op.Shape(padded, start=2)
    extent = np.array([(k - 1) * d for k, d in zip(block, dilations, strict=True)], np.int64)
    patches = []
    for place in product(*map(range, block)):
        start = np.array([p * d for p, d in zip(place, dilations, strict=True)], np.int64)
        patch = op.Slice(padded, start, op.Sub(ends, extent - start), axes, list(strides))
        patches.append(op.Unsqueeze(op.Reshape(patch, [0, 0, -1]), [2]))
    stacked = op.Concat(*patches, axis=2)
    return reshape_like(stacked, x)


def _patches(padded: Var, block: Var, n: int, strides: Sequence[int], dilations: Sequence[int]) -> Var:
    """padded (N, C, *image) as (N, C, places in the block, positions): Gather by the sum of two row-major numbers."""
    sizes = op.Shape(padded, start=2)
    place: Any = np.int64(0)
    position: Any = np.int64(0)
    for i in range(n):
        size, count = (op.Squeeze(op.Slice(v, [i], [i + 1], [0]), [0]) for v in (sizes, block))
        offsets = op.Range(np.int64(0), count, np.int64(1)) * np.int64(dilations[i])
        starts = op.Range(np.int64(0), size - (count - np.int64(1)) * np.int64(dilations[i]), np.int64(strides[i]))
        place = offsets if i == 0 else op.Reshape(op.Unsqueeze(place * size, [1]) + offsets, [-1])
        position = starts if i == 0 else op.Reshape(op.Unsqueeze(position * size, [1]) + starts, [-1])
    numbers = op.Unsqueeze(place, [1]) + position
    result: Var = op.Gather(op.Reshape(padded, [0, 0, -1]), numbers, axis=2)
    return result


vjp("Col2Im", _col2im)
