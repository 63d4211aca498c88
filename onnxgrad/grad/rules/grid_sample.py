"""GridSample: pixels receive their weights' share, the grid the slope of the weights (see `_sampling`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxgrad.errors import InputError
from onnxgrad.grad.accumulate import reshape_like
from onnxgrad.grad.registry import vjp
from onnxgrad.grad.rules._sampling import (
    Neighbours,
    along,
    as_type,
    neighbours,
    number_type,
    overlaps,
    size_vectors,
    spread,
)
from onnxgrad.grad.rules.shape import size_along
from onnxgrad.ir.block import Binding, Var
from onnxgrad.ir.ops import op

_MODES = {"bilinear": "linear", "bicubic": "cubic"}  # the names of opset 16


def _rank(x: Var, grid: Var, binding: Binding) -> int:
    """The number of spatial axes."""
    for v in (x, grid):
        if v.rank is not None:
            return v.rank - 2
    raise InputError(
        f"the gradient of '{binding}' needs the rank of its input, which shape inference does not know"
    )


def _at(x: Var, grid: Var, rank: int, binding: Binding) -> Neighbours:
    """Where the grid, (N, *O, rank) with the last axis first, points to."""
    aligned = bool(binding.attr("align_corners"))
    mode = binding.attr("mode")
    dtype = number_type(x, grid)
    sizes = size_vectors(x, 2, rank)
    places = as_type(grid, dtype)
    positions = []
    for axis, size in enumerate(sizes):
        g = op.Gather(places, np.int64(rank - 1 - axis), axis=-1)
        length = _length(size, dtype)
        # the order of onnxruntime's own arithmetic: it decides which pixels are neighbours
        position = (g + 1.0) / 2.0 * (length - 1.0) if aligned else ((g + 1.0) * length - 1.0) / 2.0
        positions.append(position)
    batch = op.Range(np.int64(0), op.Squeeze(size_along(x, 0)), np.int64(1))
    image = op.Reshape(batch, [-1, *[1] * rank])
    return neighbours(positions, image, sizes, _MODES.get(mode, mode), binding.attr("padding_mode"), aligned)


def _length(size: Any, dtype: int) -> Any:
    """A size, known or a Var, as a number."""
    return op.Cast(size, to=dtype) if isinstance(size, Var) else float(size[0])


def _channels_last(rank: int) -> list[int]:
    return [0, *range(2, rank + 2), 1]


def _x(g: Var, y: Var, x: Var, grid: Var, binding: Binding) -> Var:
    rank = _rank(x, grid, binding)
    dtype, last = number_type(x, grid), _channels_last(rank)
    moved = [size_along(x, i) for i in last]
    images = spread(op.Transpose(as_type(g, dtype), perm=last), moved, _at(x, grid, rank, binding))
    result: Var = op.Transpose(images, perm=[0, rank + 1, *range(1, rank + 1)])
    return result


def _grid(g: Var, y: Var, x: Var, grid: Var, mode: str, align_corners: int, binding: Binding) -> Var | None:
    if mode == "nearest":
        return None
    rank = _rank(x, grid, binding)
    dtype, last = number_type(x, grid), _channels_last(rank)
    at = _at(x, grid, rank, binding)
    s = overlaps(op.Transpose(as_type(g, dtype), perm=last), op.Transpose(as_type(x, dtype), perm=last), at)
    parts = []
    for axis, size in reversed(list(enumerate(size_vectors(x, 2, rank)))):
        length = _length(size, dtype)
        pixels = (length - 1.0 if align_corners else length) / 2.0
        parts.append(op.Unsqueeze(along(s, at.slope(axis), rank) * pixels, [-1]))
    return reshape_like(op.Concat(*parts, axis=-1), grid)


vjp(
    "GridSample",
    _x,
    _grid,
    notes="nearest: the grid receives zero; at a pixel's centre or an edge: the slope on the side of larger positions",
)
