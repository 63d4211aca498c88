"""Resizes images in a graph, with the arithmetic of the library that a mode names.

The pixels that an output pixel reads along an axis, its taps, and their weights are computed in the
graph from the sizes at run time. One axis is resized after the other, as the libraries do. Weights
of uint8 images are multiples of a power of two, so the sums are exact and their order has no
influence. Only the pixels that are read become floats.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from onnx import TensorProto

from onnxgrad.ir.emission.emit import constant, emit_with_blocks, nested
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import TensorType
from onnxgrad.ir.var import Var
from onnxgrad.transform.preprocessing.modes import Kernel, Mode, Nearest
from onnxgrad.transform.preprocessing.steps import vector

Size = Any  # of an axis: an int, or a scalar int64 Var
_HEIGHT, _WIDTH = 2, 3
_SEGMENT = 16  # the fewest pixels of a product
_DOUBLE, _FLOAT, _INT = TensorProto.DOUBLE, TensorProto.FLOAT, TensorProto.INT64


class Taps(NamedTuple):
    """The pixels that each output pixel reads along an axis, and their weights: [taps, size]."""

    indices: Var
    weights: Var


class Windows(NamedTuple):
    """The first pixel [size] that each output pixel reads along an axis, and the weights
    [taps, size] of this pixel and the next.
    """

    low: Var
    weights: Var


def resized(x: Var, height: Size, width: Size, mode: Mode | Nearest) -> Var:
    """Returns the image x, uint8 or float32 [N, C, H, W], in another size and the same dtype."""
    if isinstance(mode, Nearest):
        for axis, size in ((_HEIGHT, height), (_WIDTH, width)):
            x = _gathered(x, _nearest(size_of(x, axis), size, mode), axis)
        return x
    mean = _averaged if mode.border == "drop" else _interpolated
    y = mean(x, height, width, mode)
    if x.dtype == TensorProto.UINT8 and mode.levels == "rounded":
        return _level(op.Round(y))
    return y


def size_of(x: Var, axis: int) -> Size:
    """Returns the size of an axis: an int if it is known, else a scalar, of the operand if x is a
    Transpose.
    """
    size = None if x.shape is None else x.shape[axis]
    if isinstance(size, int):
        return size
    x, perm = _before_transpose(x)
    return op.Gather(op.Shape(x), np.int64(perm[axis] if perm else axis))


def _gathered(x: Var, indices: Var, axis: int) -> Var:
    """Returns pixels along an axis. If x is a Transpose, they are gathered before it, so that it
    moves these pixels alone.
    """
    x, perm = _before_transpose(x)
    if not perm:
        return op.Gather(x, indices, axis=axis)
    return op.Transpose(op.Gather(x, indices, axis=perm[axis]), perm=perm)


def _before_transpose(x: Var) -> tuple[Var, tuple[int, ...]]:
    """Returns the operand of the Transpose that computes x and its axes, else x and ()."""
    made = x.definition
    if made is None or not made.is_op("Transpose"):
        return x, ()
    (source,) = made.inputs
    assert source is not None and source.shape is not None
    return source, made.attr("perm") or tuple(reversed(range(len(source.shape))))


# ---- windows, whose number of pixels depends on the scale ----------------------------------------


def _averaged(x: Var, height: Size, width: Size, mode: Mode) -> Var:
    """Returns weighted means of windows along the width, then along the height. Each becomes the
    last axis: [N C H, W] to [w, N C H], and [w N C, H] to [h, w N C]. An image whose height is
    first is transposed before and after.
    """
    tall = _is_tall(x, height, width) if mode.tall_first else False
    y = _transposed_if(tall, x)
    y = _means(y, _either(tall, width, height), _either(tall, height, width), mode)
    return _transposed_if(tall, y, height, width)


def _means(x: Var, height: Size, width: Size, mode: Mode) -> Var:
    """Returns means along the last axis, then along the one before it."""
    batch, channels, h, w = (size_of(x, axis) for axis in range(4))
    y = _mean(op.Flatten(x, axis=_WIDTH), w, width, mode)
    y = _mean(op.Reshape(y, vector(-1, h)), h, height, mode)
    y = op.Reshape(y, vector(height, width, batch, channels))
    return op.Transpose(y, perm=[2, 3, 0, 1])


def _is_tall(x: Var, height: Size, width: Size) -> Size:
    """Returns whether the height loses more than twice as many pixels as the width: a bool, or a
    scalar Var.
    """
    h, w = size_of(x, _HEIGHT), size_of(x, _WIDTH)
    if all(isinstance(size, int) for size in (h, w, height, width)):
        return h - height > max(2 * (w - width), 0)
    lost, other = (_number(n, _INT) - m for n, m in ((h, height), (w, width)))
    return op.Greater(lost, op.Max(other * 2, np.int64(0)))


def _either(condition: Any, yes: Size, no: Size) -> Size:
    """Returns one of two sizes."""
    if isinstance(condition, bool):
        return yes if condition else no
    if isinstance(yes, int) and yes == no:
        return yes
    return op.Where(condition, _number(yes, _INT), _number(no, _INT))


def _transposed_if(condition: Any, x: Var, *sizes: Size) -> Var:
    """Returns images with width and height swapped, if a condition says so. `sizes`: of the
    result.
    """
    turn = [0, 1, _WIDTH, _HEIGHT]
    if isinstance(condition, bool):
        return op.Transpose(x, perm=turn) if condition else x
    with nested("turned") as turned:
        turned.add_output(op.Transpose(x, perm=turn))
    with nested("unchanged") as unchanged:
        unchanged.add_output(op.Identity(x))
    kept = (None, None) if x.shape is None else x.shape[:2]
    known = (size if isinstance(size, int) else None for size in sizes or (None, None))
    blocks = {"then_branch": turned, "else_branch": unchanged}
    (made,) = emit_with_blocks("If", [condition], blocks, [TensorType(x.dtype, (*kept, *known))])
    return made


def _mean(x: Var, n: Size, m: Size, mode: Mode) -> Var:
    """Returns the means of windows [m, R] of x [R, n]."""
    levels = x.dtype != _FLOAT
    y = _product(op.Transpose(x, perm=[1, 0]), n, _windows_of(n, m, mode, levels))
    return _level(y + 0.5) if levels and mode.levels != "rounded" else y


def _windows_of(n: Size, m: Size, mode: Mode, levels: bool) -> Windows:
    """Returns windows with weights as the library rounds them: in float64 for levels, so that sums
    of products with levels are exact, and else in float32.
    """
    low, weights = _windows(n, m, mode, 0 if levels else 1)
    if not levels:
        return Windows(low, op.Cast(weights, to=_FLOAT))
    weights = op.Cast(weights, to=_DOUBLE)
    if mode.levels == "rounded":
        return Windows(low, weights)
    one = constant(np.float64(2**22)) if mode.levels == "22 bits" else _largest_power(weights)
    return Windows(low, _rounded_weights(weights, one))


def _product(x: Var, n: Size, windows: Windows) -> Var:
    """Returns the means of windows [m, R] of x [n, R].

    The pixels are cut into segments of at least the length of a window, so that a window lies in
    two neighbours: its owner, in which it begins, and the next. One product for each segment
    computes the parts of the windows that it owns, and of those that its predecessor owns.
    """
    low, weights = windows
    taps, size = (size_of(weights, axis) for axis in (0, 1))
    length = op.Max(_number(taps, _INT), np.int64(_SEGMENT))
    owner = low / length
    segments = op.ReduceMax(owner, keepdims=0) + 2
    s = op.Range(np.int64(0), segments, np.int64(1))
    starts = op.Unsqueeze(op.Range(np.int64(-1), segments, np.int64(1)) * length, [1])
    begins = op.ReduceSum(op.Cast(op.Less(low, starts), to=_INT), [1], keepdims=0)
    place = op.Range(np.int64(0), size, np.int64(1)) - op.Gather(begins, owner + 1)
    most = op.ReduceMax(place, keepdims=0) + 1  # windows of one owner

    before = np.array([[[0]], [[1]]])  # the owners: the segment, and its predecessor
    s = op.Unsqueeze(s, [1, 2, 3])
    window = op.Unsqueeze(op.Range(np.int64(0), most, np.int64(1)), [1])
    window = op.Min(op.Gather(begins, s + 1 - before) + window, _number(size, _INT) - 1)
    tap = s * length + op.Range(np.int64(0), length, np.int64(1)) - op.Gather(low, window)
    inside = op.And(op.GreaterOrEqual(tap, 0), op.Less(tap, taps))
    flat = op.Where(inside, tap, 0) * size + window
    matrix = op.Where(inside, op.Gather(op.Reshape(weights, np.array([-1])), flat), 0.0)
    matrix = op.Reshape(matrix, vector(0, -1, length))

    x = op.Pad(x, vector(0, 0, segments * length - n, 0), constant(0, x.dtype))
    x = op.Reshape(x, vector(segments, length, -1))
    x = x if x.dtype == weights.dtype else op.Cast(x, to=weights.dtype)
    parts = op.Flatten(matrix @ x, axis=2)
    row = owner * most * 2 + place
    return op.Gather(parts, row, axis=0) + op.Gather(parts, row + most * 3, axis=0)


# ---- taps, whose number is that of the kernel ----------------------------------------------------


def _interpolated(x: Var, height: Size, width: Size, mode: Mode) -> Var:
    """Returns weighted means of taps along the width, of the rows that are read, then along the
    height.
    """
    levels = x.dtype == TensorProto.UINT8
    down, across = (
        _taps(size_of(x, axis), size, mode, levels)
        for axis, size in ((_HEIGHT, height), (_WIDTH, width))
    )
    number = int(mode.radius) * 2
    rows, _, places = op.Unique(down.indices, outputs=3)
    x = _gathered(x, rows, _HEIGHT)
    x = _gathered(x, op.Reshape(across.indices, np.array([-1])), _WIDTH)
    read = op.Reshape(x, np.array([0, 0, 0, number, -1]))
    if levels and mode.levels == "11 bits":
        y = op.Floor(_weighted(read, across.weights / 16.0, _WIDTH))
    else:
        y = _weighted(read, across.weights, _WIDTH)
    if levels and mode.levels == "16 bits":
        y = _level(y + 0.5)
    read = op.Gather(y, op.Reshape(places, np.array([number, -1])), axis=_HEIGHT)
    weights = op.Unsqueeze(down.weights, [2])
    if not levels or mode.levels == "rounded":
        return _weighted(read, weights, _HEIGHT)
    if mode.levels == "16 bits":
        return _level(_weighted(read, weights, _HEIGHT) + 0.5)
    # b0 s0 / 65536 + b1 s1 / 65536, each rounded down, then (... + 2) / 4
    parts = op.Floor(op.Cast(read, to=_DOUBLE) * op.Cast(weights / 65536.0, to=_DOUBLE))
    return _level(op.ReduceSum(parts, [_HEIGHT], keepdims=0) * 0.25 + 0.5)


def _weighted(read: Var, weights: Var, axis: int) -> Var:
    """Returns the sum of taps along an axis, in the dtype of their weights."""
    read = read if read.dtype == weights.dtype else op.Cast(read, to=weights.dtype)
    return op.ReduceSum(read * weights, [axis], keepdims=0)


# ---- levels --------------------------------------------------------------------------------------


def _level(y: Var) -> Var:
    """Returns numbers as uint8: rounded down, from 0 to 255."""
    return op.Cast(op.Clip(y, constant(0, y.dtype), constant(255, y.dtype)), to=TensorProto.UINT8)


def _rounded_weights(w: Var, one: Var) -> Var:
    """Returns weights rounded to multiples of 1 / one, halves away from 0."""
    scaled = w * one
    return op.Sign(scaled) * op.Floor(op.Abs(scaled) + 0.5) / one


def _largest_power(w: Var) -> Var:
    """Returns the largest power of two, up to 2^22, by which no weight becomes 2^15 or more."""
    powers = constant(2.0 ** np.arange(1, 23))
    fits = op.Less(op.Floor(op.ReduceMax(w, keepdims=0) * powers + 0.5), 2.0**15)
    bits = op.ReduceSum(op.Cast(fits, to=_DOUBLE), keepdims=0)
    return op.Pow(constant(np.float64(2)), bits)


# ---- places --------------------------------------------------------------------------------------


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
    return op.Cast(op.Min(op.Floor(place), old - 1.0), to=_INT)


def _taps(n: Size, m: Size, mode: Mode, levels: bool) -> Taps:
    """Returns the taps of m pixels among n, with weights in the dtype of their sums."""
    places = mode.places[0 if levels else 1]
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
    if levels and mode.levels == "16 bits":
        weights = _rounded_weights(weights, _largest_power(weights))
    if levels and mode.levels == "11 bits":
        weights = op.Round(weights * 2.0**11)
    # sums of levels with weights of 11 bits, or of 15 and a sum of absolute values below 2, are
    # exact in float32
    dtype = _DOUBLE if levels and mode.levels == "rounded" else _FLOAT
    return Taps(op.Cast(inside, to=_INT), op.Cast(weights, to=dtype))


def _centers(n: Size, m: Size, scale: int) -> Var:
    """Returns scale * (i + 1/2) for each of m pixels in float64; `scale`: the dtype of n / m."""
    ratio = _number(n, scale) / _number(m, scale)
    return op.Cast(ratio, to=_DOUBLE) * (_places(m, _DOUBLE) + 0.5)


def _windows(n: Size, m: Size, mode: Mode, floats: int) -> Windows:
    """Returns windows as wide as the scale, without pixels behind the border, with weights in
    float64 or float32; `floats`: 1 for those of a float image.
    """
    dtype = _FLOAT if mode.places[floats] == "float32" else _DOUBLE
    old = _number(n, dtype)
    scale = old / _number(m, dtype)
    center = scale * (_places(m, dtype) + 0.5)
    widened = op.Max(scale, 1.0)
    reach = widened * mode.radius
    low = op.Floor(op.Max(center - reach + 0.5, 0.0))
    high = op.Min(op.Floor(center + reach + 0.5), old)
    most = op.Cast(op.ReduceMax(high - low, keepdims=0), to=_INT)
    j = low + op.Unsqueeze(_places(most, dtype), [1])
    inside = op.Cast(op.Less(j, high), to=dtype)
    weights = _KERNELS[mode.kernel]((j - center + 0.5) * (1.0 / widened)) * inside
    total = op.ReduceSum(weights, [0])
    return Windows(op.Cast(low, to=_INT), weights / total)


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
