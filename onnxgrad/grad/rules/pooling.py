"""MaxPool and MaxUnpool, AveragePool, LpPool, and the global ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from onnx import TensorProto

from onnxgrad.grad.registry import vjp
from onnxgrad.grad.rules._common import counting, divided, mean_share, reduced_count
from onnxgrad.grad.rules._geometry import Geometry, geometry, onto_long, onto_short, spatial
from onnxgrad.grad.rules.scatter import add_at_numbers
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission.emit import constant
from onnxgrad.ir.emission.fill_and_reshape import expand_like, reshape_like, zeros_like
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import numpy_dtype
from onnxgrad.ir.var import Var


def _max_pool(g: Sequence[Var | None], y: Sequence[Var], x: Var, storage_order: int) -> Var | None:
    if g[0] is None:
        return None
    return add_at_numbers(g[0], x, _row_major(y[1], x) if storage_order else y[1])


def _row_major(indices: Var, x: Var) -> Var:
    """Converts column-major places within each channel of (N, C, H, W) to row-major ones."""
    height, width = op.Shape(x, start=2, end=3), op.Shape(x, start=3, end=4)
    within = op.Mod(indices, height * width)
    return indices - within + op.Mod(within, height) * width + op.Div(within, height)


vjp("MaxPool", _max_pool, notes="equal maxima: the first")


def _global_max(g: Var, y: Var, x: Var) -> Var:
    rows = op.Reshape(x, [0, 0, -1])
    first = op.ArgMax(rows, axis=2, keepdims=1)
    return reshape_like(
        op.ScatterElements(zeros_like(rows), first, op.Reshape(g, [0, 0, -1]), axis=2), x
    )


vjp("GlobalMaxPool", _global_max, notes="equal maxima: the first")


vjp(
    "MaxUnpool",
    # read each value's adjoint at the place where the value was put
    lambda g, y, x, places: op.Gather(op.Reshape(g, [-1]), places, axis=0),
    notes="indices refer to the output, as in onnxruntime, even if output_shape enlarges it",
)


vjp(
    "GlobalAveragePool",
    lambda g, y, x: expand_like(
        mean_share(g, reduced_count(x, y, op.Shape(x) if x.rank is None else range(2, x.rank))), x
    ),
)


def _average_pool(
    g: Var, y: Var, x: Var, kernel_shape: Sequence[int], count_include_pad: int, binding: Binding
) -> Var:
    geo = geometry(binding, kernel_shape, x, y)
    ceil = bool(binding.attr("ceil_mode", 0))
    share = divided(g, _window_sizes(x, y, geo, tuple(kernel_shape), bool(count_include_pad), ceil))
    ones = np.ones((1, 1, *kernel_shape), numpy_dtype(x.dtype))
    images = op.Reshape(share, _one_channel_each(y))
    return reshape_like(onto_long(images, constant(ones), x, geo, 1), x)


def _one_channel_each(y: Var) -> Any:
    """Returns the shape of `y` with each channel as a separate image."""
    sizes = spatial(y)
    if sizes is not None:
        return [-1, 1, *sizes]
    return op.Concat(np.array([-1, 1], np.int64), op.Shape(y, start=2), axis=0)


def _window_sizes(
    x: Var, y: Var, geo: Geometry, kernel: Sequence[int], include_pad: bool, ceil: bool
) -> Any:
    """Returns the divisor of each window's sum.

    The divisor is a number if all windows have the same, else a tensor of (1, 1, short sizes).
    """
    padded = (
        isinstance(geo.begin, Var) or isinstance(geo.end, Var) or any(geo.begin) or any(geo.end)
    )
    if not ceil and (include_pad or not padded):
        return float(np.prod(kernel))
    long, short = spatial(x), spatial(y)
    if long is None or short is None or isinstance(geo.begin, Var) or isinstance(geo.end, Var):
        return _window_sizes_at_run_time(x, y, geo, kernel, include_pad, ceil)
    sizes = np.ones((1, 1))
    for d, o, k, s, dil, b, e in zip(
        long, short, kernel, geo.strides, geo.dilations, geo.begin, geo.end
    ):
        places = np.arange(o)[:, None] * s - b + np.arange(k) * dil
        low, high = (-b, d + e) if include_pad else (0, d)
        sizes = sizes[..., None] * ((places >= low) & (places < high)).sum(1)
    return sizes.astype(np.float64 if x.dtype == TensorProto.FLOAT16 else numpy_dtype(x.dtype))


def _window_sizes_at_run_time(
    x: Var, y: Var, geo: Geometry, kernel: Sequence[int], include_pad: bool, ceil: bool
) -> Var:
    """Returns the divisors by summing ones, for sizes that are known at run time only."""
    one = counting(constant(np.ones((1,) * (len(kernel) + 2), numpy_dtype(x.dtype))))
    sizes = op.Shape(x, start=2)
    if include_pad:
        added = _vector(geo.begin), _vector(geo.end)
        sizes = sizes + added[0] + added[1]
        geo = replace(geo, begin=(0,) * len(kernel), end=(0,) * len(kernel))
    if ceil:  # windows may extend past the end
        geo = replace(geo, end=_vector(geo.end) + np.array([s - 1 for s in geo.strides], np.int64))
    ones = op.Expand(one, op.Concat(np.array([1, 1], np.int64), sizes, axis=0))
    weights = counting(constant(np.ones((1, 1, *kernel), numpy_dtype(x.dtype))))
    return onto_short(ones, weights, y, geo, 1)


def _vector(pads: Sequence[int] | Var) -> Var:
    return pads if isinstance(pads, Var) else constant(np.array(pads, np.int64))


vjp("AveragePool", _average_pool)


def _lp_slope(share: Var, y: Var, x: Var, p: int) -> Var:
    """Returns share sign(x) |x|^(p-1), where share is g y^(1-p) in the shape of x."""
    if p == 1:
        return share * op.Sign(x)
    return share * x if p == 2 else share * op.Sign(x) * op.Pow(op.Abs(x), float(p - 1))


def _lp_share(g: Var, y: Var, p: int) -> Var:
    """Returns g y^(1-p), and 0 where the norm is 0."""
    if p == 1:
        return g
    empty = op.Equal(y, 0.0)
    return op.Where(empty, 0.0, g / op.Pow(op.Where(empty, 1.0, y), float(p - 1)))


vjp(
    "GlobalLpPool",
    lambda g, y, x, p: _lp_slope(_lp_share(g, y, p), y, x, p),
    notes="0 where the norm is 0",
)


def _lp_pool(g: Var, y: Var, x: Var, kernel_shape: Sequence[int], p: int, binding: Binding) -> Var:
    geo = geometry(binding, kernel_shape, x, y)
    share, images = _lp_share(g, y, p), _one_channel_each(y)
    ones = constant(np.ones((1, 1, *kernel_shape), numpy_dtype(x.dtype)))
    return _lp_slope(
        reshape_like(onto_long(op.Reshape(share, images), ones, x, geo, 1), x), y, x, p
    )


vjp("LpPool", _lp_pool, notes="0 where the norm is 0")
