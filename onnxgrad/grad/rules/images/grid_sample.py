"""GridSample: pixels receive their weights' share, the grid the slope of the weights (see
`_sampling`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxgrad.errors import InputError
from onnxgrad.grad.registry import vjp
from onnxgrad.grad.rules._common import size_along
from onnxgrad.grad.rules.images._sampling import (
    Sampling,
    as_type,
    number_type,
    product,
    reshaped,
    sampling,
)
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.like import reshape_like
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var

_MODES = {"bilinear": "linear", "bicubic": "cubic"}  # the names of opset 16


def _rank(x: Var, grid: Var, binding: Binding) -> int:
    """The number of spatial axes."""
    for v in (x, grid):
        if v.rank is not None:
            return v.rank - 2
    raise InputError(
        f"the gradient of '{binding}' needs the rank of its input, which shape "
        "inference does not know"
    )


def _sampling(g: Var, x: Var, grid: Var, binding: Binding) -> tuple[Sampling, Var]:
    """What the grid, (N, *O, rank) with the last axis first, reads of x; and g as (N, C, P)."""
    rank, dtype = _rank(x, grid, binding), number_type(x, grid)
    aligned, mode = bool(binding.attr("align_corners")), binding.attr("mode")
    batch, channels, *spatial = (size_along(x, i) for i in range(rank + 2))
    count = product([size_along(grid, i) for i in range(1, rank + 1)])
    places = reshaped(as_type(grid, dtype), [batch, count, np.array([rank], np.int64)])
    positions = []
    for axis, size in enumerate(spatial):
        p, length = op.Gather(places, np.int64(rank - 1 - axis), axis=-1), _length(size, dtype)
        # the order of onnxruntime's own arithmetic: it decides which pixels are neighbours
        positions.append(
            (p + 1.0) / 2.0 * (length - 1.0) if aligned else ((p + 1.0) * length - 1.0) / 2.0
        )
    at = sampling(
        positions,
        [batch],
        spatial,
        count,
        _MODES.get(mode, mode),
        binding.attr("padding_mode"),
        aligned,
    )
    return at, reshaped(as_type(g, dtype), [batch, channels, count])


def _length(size: Any, dtype: int) -> Any:
    """A size as a number."""
    return op.Cast(size, to=dtype) if isinstance(size, Var) else float(size[0])


def _x(g: Var, y: Var, x: Var, grid: Var, binding: Binding) -> Var:
    at, cotangents = _sampling(g, x, grid, binding)
    return at.spread(cotangents, size_along(x, 1))


def _grid(
    g: Var, y: Var, x: Var, grid: Var, mode: str, align_corners: int, binding: Binding
) -> Var | None:
    if mode == "nearest":
        return None
    at, cotangents = _sampling(g, x, grid, binding)
    s = at.overlaps(cotangents, as_type(x, cotangents.dtype), size_along(x, 1))
    parts = []
    for axis, size in reversed(list(enumerate(at.spatial))):
        length = _length(size, cotangents.dtype)
        pixels = (length - 1.0 if align_corners else length) / 2.0
        parts.append(op.Unsqueeze(at.along(s, at.slope(axis)) * pixels, [-1]))
    return reshape_like(op.Concat(*parts, axis=-1), grid)


vjp(
    "GridSample",
    _x,
    _grid,
    notes="nearest: the grid receives zero; linear, at a pixel's centre: the slope towards larger "
    "positions, and 0 at edge pixels with border and reflection (PyTorch's; in mirrored copies of "
    "the image it takes the other side)",
)
