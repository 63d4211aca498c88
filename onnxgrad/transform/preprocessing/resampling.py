"""Resizes images in a graph, with the arithmetic of the library that a mode names.

The pixels that an output pixel reads along an axis, its taps, and their weights are computed in the
graph from the sizes at run time. One axis is resized after the other, as the libraries do. Weights
of uint8 images are integers, so the sums are exact and their order has no influence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from onnx import TensorProto

from onnxgrad.ir.emission.emit import constant
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var
from onnxgrad.transform.preprocessing.modes import Kernel, Mode, Nearest

Size = Any  # of an axis: an int, or a scalar int64 Var
_HEIGHT, _WIDTH = 2, 3
_DOUBLE, _FLOAT = TensorProto.DOUBLE, TensorProto.FLOAT


class Taps(NamedTuple):
    """The pixels that each output pixel reads along an axis, and their weights: [taps, size]."""

    indices: Var
    weights: Var


def resized(x: Var, height: Size, width: Size, mode: Mode | Nearest) -> Var:
    """Returns the image x, uint8 or float32 [N, C, H, W], in another size and the same dtype."""
    levels = x.dtype == TensorProto.UINT8
    for axis, size in ((_WIDTH, width), (_HEIGHT, height)):
        old = size_of(x, axis)
        if isinstance(mode, Nearest):
            x = op.Gather(x, _nearest(old, size, mode), axis=axis)
        elif levels:
            x = _levels(x, axis, _taps(old, size, mode, 0), mode)
        else:
            indices, weights = _taps(old, size, mode, 1)
            x = _weighted(x, axis, Taps(indices, op.Cast(weights, to=x.dtype)))
    if not levels or isinstance(mode, Nearest):
        return x
    whole = op.Clip(op.Round(x), *_ends(x)) if mode.levels == "rounded" else x
    return op.Cast(whole, to=TensorProto.UINT8)


def size_of(x: Var, axis: int) -> Size:
    """Returns the size of an axis: an int if it is known, else a scalar."""
    size = None if x.shape is None else x.shape[axis]
    return size if isinstance(size, int) else op.Gather(op.Shape(x), np.int64(axis))


# ---- arithmetic ----------------------------------------------------------------------------------


def _weighted(x: Var, axis: int, taps: Taps) -> Var:
    """Returns the sum over k of weights[k, i] * x[..., indices[k, i], ...]."""
    read = op.Gather(x, taps.indices, axis=axis)
    if read.dtype != taps.weights.dtype:
        read = op.Cast(read, to=taps.weights.dtype)
    weights = op.Unsqueeze(taps.weights, [2]) if axis == _HEIGHT else taps.weights
    return op.ReduceSum(read * weights, [axis], keepdims=0)


def _levels(x: Var, axis: int, taps: Taps, mode: Mode) -> Var:
    """Returns the weighted sum of levels along an axis: integers from 0 to 255, except between the
    two axes of OpenCV.
    """
    indices, w = taps
    if mode.levels == "rounded":
        return _weighted(x, axis, Taps(indices, op.Cast(w, to=_DOUBLE)))
    if mode.levels == "11 bits":
        taps = Taps(indices, op.Cast(op.Round(w * 2.0**11), to=TensorProto.INT32))
        if axis == _WIDTH:
            return _weighted(x, axis, taps)
        # b0 (s0 / 16) / 65536 + b1 (s1 / 16) / 65536, each rounded down, then (... + 2) / 4
        read = op.Gather(x / 16, indices, axis=axis) * op.Unsqueeze(taps.weights, [2])
        return (op.ReduceSum(read / 65536, [axis], keepdims=0) + 2) / 4
    one = constant(np.float64(2**22)) if mode.levels == "22 bits" else _largest_power(w)
    scaled = w * one
    away = op.Cast(scaled + op.Sign(scaled) * 0.5, to=TensorProto.INT32)  # the Cast cuts
    unit = op.Cast(one, to=TensorProto.INT32)
    total = (_weighted(x, axis, Taps(indices, away)) + unit / 2) / unit
    return op.Clip(total, *_ends(total))


def _largest_power(w: Var) -> Var:
    """Returns the largest power of two, up to 2^22, by which no weight becomes 2^15 or more."""
    powers = constant(2.0 ** np.arange(1, 23))
    fits = op.Less(op.Floor(op.ReduceMax(w, keepdims=0) * powers + 0.5), 2.0**15)
    bits = op.ReduceSum(op.Cast(fits, to=_DOUBLE), keepdims=0)
    return op.Pow(constant(np.float64(2)), bits)


def _ends(x: Var) -> tuple[Var, Var]:
    return constant(0, x.dtype), constant(255, x.dtype)


# ---- taps ----------------------------------------------------------------------------------------


def _places(size: Size, dtype: int) -> Var:
    """Returns 0, 1, ... below a size."""
    if isinstance(size, int):
        return constant(np.arange(size), dtype)
    return op.Cast(op.Range(0, size, 1), to=dtype)


def _number(size: Size, dtype: int) -> Var:
    return constant(size, dtype) if isinstance(size, int) else op.Cast(size, to=dtype)


def _nearest(n: Size, m: Size, mode: Nearest) -> Var:
    """Returns the index of the pixel of n that each of m pixels reads."""
    dtype = _DOUBLE if mode.places == "float64" else _FLOAT
    old, new = _number(n, dtype), _number(m, dtype)
    scale = 1.0 / (new / old) if mode.inverse else old / new
    i = _places(m, dtype)
    if mode.summed:
        steps = op.Where(op.Equal(i, 0.0), scale * mode.offset, scale)
        place = op.CumSum(steps, np.int64(0))
    else:
        place = (i + mode.offset) * scale
    return op.Cast(op.Min(op.Floor(place), old - 1.0), to=TensorProto.INT64)


def _taps(n: Size, m: Size, mode: Mode, floats: int) -> Taps:
    """Returns the taps of m pixels among n, with weights in float64 or float32; `floats`: 1 for
    those of a float image.
    """
    places = mode.places[floats]
    if mode.border == "drop":
        return _windows(n, m, mode, _FLOAT if places == "float32" else _DOUBLE)
    r = _centers(n, m, _FLOAT if places == "fused" else _DOUBLE) - 0.5
    if places != "float64":
        r = op.Cast(op.Cast(r, to=_FLOAT), to=_DOUBLE)
    reach = int(mode.radius)
    j = op.Floor(r) + constant(np.arange(1.0 - reach, 1.0 + reach)[:, None])
    weights = _KERNELS[mode.kernel](j - r)
    inside = op.Min(op.Max(j, 0.0), _number(n, _DOUBLE) - 1.0)
    if mode.levels == "16 bits":  # the weights of one pixel are added before they are rounded
        same = op.Cast(op.Equal(op.Unsqueeze(j, [1]), op.Unsqueeze(inside, [0])), to=_DOUBLE)
        weights = op.ReduceSum(same * op.Unsqueeze(weights, [0]), [1], keepdims=0)
    return Taps(op.Cast(inside, to=TensorProto.INT64), weights)


def _centers(n: Size, m: Size, scale: int) -> Var:
    """Returns scale * (i + 1/2) for each of m pixels in float64; `scale`: the dtype of n / m."""
    ratio = _number(n, scale) / _number(m, scale)
    return op.Cast(ratio, to=_DOUBLE) * (_places(m, _DOUBLE) + 0.5)


def _windows(n: Size, m: Size, mode: Mode, dtype: int) -> Taps:
    """Returns taps whose kernel is as wide as the scale, without pixels behind the border."""
    old = _number(n, dtype)
    scale = old / _number(m, dtype)
    center = scale * (_places(m, dtype) + 0.5)
    widened = op.Max(scale, 1.0)
    reach = widened * mode.radius
    low = op.Floor(op.Max(center - reach + 0.5, 0.0))
    high = op.Min(op.Floor(center + reach + 0.5), old)
    most = op.Cast(op.ReduceMax(high - low, keepdims=0), to=TensorProto.INT64)
    j = low + op.Unsqueeze(_places(most, dtype), [1])
    inside = op.Cast(op.Less(j, high), to=dtype)
    weights = _KERNELS[mode.kernel]((j - center + 0.5) * (1.0 / widened)) * inside
    total = op.ReduceSum(weights, [0])
    return Taps(op.Cast(op.Min(j, old - 1.0), to=TensorProto.INT64), weights / total)


# ---- kernels -------------------------------------------------------------------------------------


def _within(x: Var, radius: float, value: Var) -> Var:
    return value * op.Cast(op.Less(x, radius), to=x.dtype)


def _triangle(x: Var) -> Var:
    """1 - |x|"""
    return op.Max(1.0 - op.Abs(x), 0.0)


def _convolution(a: float) -> Callable[[Var], Var]:
    """Keys' cubic convolution with the parameter a."""

    def kernel(x: Var) -> Var:
        x = op.Abs(x)
        near = ((x * (a + 2.0)) - (a + 3.0)) * x * x + 1.0
        far = (((x - 5.0) * x + 8.0) * x - 4.0) * a
        return _within(x, 2.0, op.Where(op.Less(x, 1.0), near, far))

    return kernel


def _box(x: Var) -> Var:
    """1 for -1/2 < x <= 1/2"""
    inside = op.And(op.Less(-0.5, x), op.Not(op.Less(0.5, x)))
    return op.Cast(inside, to=x.dtype)


def _sinc(x: Var) -> Var:
    """sin(pi x) / (pi x), and 1 at 0"""
    t = x * np.pi
    zero = op.Equal(x, 0.0)
    return op.Where(zero, 1.0, op.Sin(t) / op.Where(zero, 1.0, t))


def _hamming(x: Var) -> Var:
    """sinc(x) (0.54 + 0.46 cos(pi x)) for |x| < 1"""
    x = op.Abs(x)
    return _within(x, 1.0, _sinc(x) * (op.Cos(x * np.pi) * 0.46 + 0.54))


def _lanczos(x: Var) -> Var:
    """sinc(x) sinc(x / 3) for |x| < 3"""
    return _within(op.Abs(x), 3.0, _sinc(x) * _sinc(x / 3.0))


_KERNELS: dict[Kernel, Callable[[Var], Var]] = {
    "triangle": _triangle,
    "keys": _convolution(-0.5),
    "cubic": _convolution(-0.75),
    "box": _box,
    "hamming": _hamming,
    "lanczos": _lanczos,
}
