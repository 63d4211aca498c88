"""The gradient of a convolution by its filter: its forms, and the choice of the fastest."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, TypeAlias

import numpy as np
from onnx import TensorProto

from onnxgrad.grad.registry import FORM
from onnxgrad.grad.rules._common import pad
from onnxgrad.grad.rules._geometry import Geometry, padded_conv, spatial
from onnxgrad.grad.rules.convolution._correlation import Correlation, channels_last
from onnxgrad.ir.emission.fill_and_reshape import shape_of
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import Array, is_static
from onnxgrad.ir.var import Var

Form: TypeAlias = Callable[[Correlation], Var]

# with fewer channels per group the products are too narrow
_FEW = 8
# larger kernels would need too many bindings, one per element
_MANY = 64
# the size of a 3x3 kernel
_SMALL = 9
# the largest matrix that adds up pairs, in elements
_PAIRS = 1 << 18
# how many multiplications of a Gemm cost as much as one elementwise multiplication
_CHEAPER = 14
# the assumed size of an unknown batch
_SOME = 8
# the largest window, in elements, that stays in a cache between the bindings that read it
_CACHED = 1 << 17
# the longest lines whose pairs of columns are multiplied, relative to the kernel
_WIDE = 24
# the most elements of both images, each unfolded along one axis, that are kept at a time
_UNFOLDED = 1 << 22
# the number of spatial axes of an image
_PLANE = 2
# with fewer images a Conv reads the weight hardly more often than a product
_MANY_IMAGES = 4


def weight_gradient(long: Var, short: Var, w: Var, geo: Geometry, group: int) -> Var:
    """sum over batch and positions of long[n, c, o s + k d - begin] short[n, m, o], as (M, C /
    group, kernel).
    """
    c = _correlation(long, short, w, geo, group)
    form = None if c is None or FORM.get() == "small" else _form(c)
    return form(c) if c and form else by_swapped_conv(long, short, w, geo, group)


def as_product(x: Var, y: Var, w: Var, bias: Var | None, geo: Geometry, group: int) -> Var | None:
    """Returns the convolution y of x as one product with the unfolded image of `by_unfolding`, if
    that is the form of the weight gradient.

    A Conv reads the weight once per image, the product once. For 8 images of 2x2 and 512 channels
    it takes 0.2 to 0.5 of the time.
    """
    c = _correlation(x, y, w, geo, group)
    if c is None or FORM.get() == "small" or _form(c) is not by_unfolding or c.sizes is None:
        return None
    o = c.sizes[1]
    alike = x.dtype == w.dtype == TensorProto.FLOAT
    if not alike or (c.positions or 0) < _MANY_IMAGES * prod(o):
        return None
    maps = op.Gemm(_unfolded(c), op.Reshape(w, [c.maps, -1]), bias, transB=1)
    rows = op.Reshape(maps, [-1, *o, c.maps])
    return op.Transpose(rows, perm=[0, c.axes + 1, *range(1, c.axes + 1)])


def _correlation(long: Var, short: Var, w: Var, geo: Geometry, group: int) -> Correlation | None:
    """Returns None if channels or kernel are not known, or if there is nothing to sum."""
    lead = None if w.shape is None else w.shape[:2]
    if not is_static(lead) or geo.kernel is None:
        return None
    c = Correlation(long, short, geo, group, lead[0], lead[1], geo.kernel)
    return c if all(c.shape) and (c.sizes is None or all(map(prod, c.sizes))) else None


def _form(c: Correlation) -> Form | None:
    """Returns the fastest form, or None for the Conv with swapped axes."""
    if c.group == 1 and _is_pointwise(c):
        return _pointwise(c)
    if c.channels == 1 and c.maps == c.group:
        return _depthwise(c)
    if c.channels < _FEW or c.taps > _MANY or (c.group > 1 and c.sizes is None):
        return None
    if c.group > 1 or c.sizes is None or c.positions is None:
        return by_offsets
    if c.positions > c.maps:
        return _by_axes(c, c.positions)
    # unfold and transpose small images rather than the result
    return by_unfolding if 4 * c.positions <= c.maps else by_gathered_rows


def _by_axes(c: Correlation, positions: int) -> Form:
    """Unfolds along one axis, with a third of the bindings, if memory allows."""
    kept = positions * prod(c.geo.strides) * (c.channels * c.kernel[-1] + c.maps * c.kernel[0])
    if c.axes != _PLANE or c.taps == 1 or kept > _UNFOLDED:
        return by_offsets
    return by_lines if c.geo.strides[0] > 1 else by_crossing


def _is_pointwise(c: Correlation) -> bool:
    """Whether the kernel is one element without padding; if strided, sizes must be known."""
    begin, end = c.geo.begin, c.geo.end
    padded = isinstance(begin, Var) or isinstance(end, Var) or any(begin) or any(end)
    strided = any(s > 1 for s in c.geo.strides)
    return c.taps == 1 and not padded and (c.sizes is not None or not strided)


def _pointwise(c: Correlation) -> Form:
    """A sum of products pays if it moves less data than joining the images would."""
    o = prod(c.sizes[1]) if c.sizes is not None else 0
    return by_images if c.maps * c.channels < o * (c.maps + c.channels) else by_joined_images


def _depthwise(c: Correlation) -> Form | None:
    """Returns elementwise products, unless their windows leave the cache too often."""
    if _pairs_are_few(c):
        return by_pairs
    if c.taps > _MANY:
        return None
    strided = any(s > 1 for s in c.geo.strides)
    window = None if c.positions is None else c.positions * c.maps
    cached = window is not None and window <= _CACHED
    if window is not None and not (cached and c.taps <= _SMALL) and _lines_are_short(c, window):
        return by_line_pairs
    return by_elements if cached or (c.taps <= _SMALL and not strided) else None


def _lines_are_short(c: Correlation, window: int) -> bool:
    """Whether products of all pairs of columns pay, and the unfolded image fits."""
    if c.axes != _PLANE or c.sizes is None:
        return False
    (_, width), (_, out) = c.sizes
    return width <= _WIDE * c.kernel[1] and window // out * c.kernel[0] * width <= _UNFOLDED


def _pairs_are_few(c: Correlation) -> bool:
    """Whether products of all pairs of positions cost less than elementwise products.

    The test |D| (1 / N + 1 / taps) compares the |D| |O| (N + taps) products of pairs with the
    N |O| taps elementwise ones. Each elementwise one costs several times as much.
    """
    if c.sizes is None:
        return False
    d, o = (prod(sizes) for sizes in c.sizes)
    images = _SOME if c.positions is None else max(1, c.positions // o)
    return d * o * c.taps <= _PAIRS and d * (images + c.taps) <= _CHEAPER * images * c.taps


def by_offsets(c: Correlation) -> Var:
    """One product for each kernel element: short^T times a window of long, channels last.

    No temporary is larger than long; the Slice handles batch, stride, dilation and padding.
    """
    maps = c.maps_first()
    parts = [op.MatMul(maps, window) for window in c.windows()]
    if len(parts) == 1:
        return op.Reshape(parts[0], c.shape)
    return _channels_before_taps(op.Concat(*parts, axis=-1), c)


def by_lines(c: Correlation) -> Var:
    """One product for each line of the kernel; long is unfolded along its last axis."""
    maps, step = c.maps_first(), c.geo.strides[0]
    rows, last = _lines(c, padded=True), ((c.sizes or ((), (0,)))[1][0] - 1) * step + 1
    parts = []
    for place in range(c.kernel[0]):
        start = place * c.geo.dilations[0]
        line = op.Slice(rows, [start], [start + last], [1], [step])
        parts.append(op.MatMul(maps, op.Reshape(line, [-1, c.kernel[1] * c.channels])))
    return _channels_before_taps(op.Concat(*parts, axis=1), c)


def by_crossing(c: Correlation) -> Var:
    """Stride 1 along the first axis: one product of long, unfolded along its last axis, with short,
    unfolded along its first.

    short is padded with lines of zeros, long is not. Line h meets the kernel's line k at
    h + begin - k d of short.
    """
    (lines, _), (short_lines, width) = c.sizes or ((0, 0), (0, 0))
    taps, dilation, begin = c.kernel[0], c.geo.dilations[0], c.geo.fixed_begin[0]
    before = (taps - 1) * dilation - begin
    after = lines + begin - short_lines
    short = op.Transpose(c.short, perm=[1, 0, 2, 3])
    if before or after:
        short = pad(short, [0, 0, before, 0, 0, 0, after, 0])
    # concatenate the lines of all images
    each = before + short_lines + after
    images = np.arange((c.positions or 0) // (short_lines * width)).reshape(-1, 1) * each
    first = np.arange(taps - 1, -1, -1).reshape(-1, 1, 1) * dilation
    met = (first + images + np.arange(lines)).reshape(taps, -1)
    short = op.Gather(op.Reshape(short, [c.maps, -1, width]), met, axis=1)
    long = op.Reshape(_lines(c, padded=False), [-1, c.kernel[1] * c.channels])
    return _channels_before_taps(op.MatMul(op.Reshape(short, [c.maps * taps, -1]), long), c)


def _lines(c: Correlation, *, padded: bool) -> Var:
    """Returns long as (N, lines, |O| along the last axis, kernel along it times C).

    padded: include the zeros before and after the lines.
    """
    _, (_, width) = c.sizes or ((0, 0), (0, 0))
    pads = c.pads(1)
    if not padded:
        pads[1] = pads[5] = 0
    rows = channels_last(c.long)
    rows = pad(rows, pads) if any(pads) else rows
    taps = np.arange(c.kernel[1]) * c.geo.dilations[1]
    met = np.arange(width).reshape(-1, 1) * c.geo.strides[1] + taps
    return op.Gather(rows, met, axis=2)


def _channels_before_taps(product: Var, c: Correlation) -> Var:
    """Reshapes rows of M maps with C numbers per kernel element to the shape of the result."""
    rows = op.Reshape(product, [c.maps, *c.kernel, c.channels])
    return op.Transpose(rows, perm=[0, c.axes + 1, *range(1, c.axes + 1)])


def by_gathered_rows(c: Correlation) -> Var:
    """The products of `by_offsets` as one product of stacks. Gathers whole rows (N, C) by constant
    indices.
    """
    n, index = c.axes, c.index()
    rows = op.Transpose(c.long, perm=[*range(2, n + 2), 0, 1])
    flat = op.Reshape(rows, [c.area, -1, c.channels])
    met = op.Gather(_with_zeros(flat, 0, c, index), index.T, axis=0)
    maps = op.Reshape(op.Transpose(c.short, perm=[1, *range(2, n + 2), 0]), [c.maps, -1])
    return _kernel_last(op.MatMul(maps, op.Reshape(met, [c.taps, -1, c.channels])), c)


def _kernel_last(stack: Var, c: Correlation) -> Var:
    """Returns the weight gradient, given the product of each kernel element.

    No Reshape follows the Transpose: onnxruntime would swap the two. It schedules the resulting
    nodes before all others and keeps the operands of other weights' gradients until the end.
    """
    n = c.axes
    ahead = op.Reshape(stack, [*c.kernel, c.maps, c.channels])
    return op.Transpose(ahead, perm=[n, n + 1, *range(n)])


def by_unfolding(c: Correlation) -> Var:
    """One product with long unfolded to (N |O|, C taps), the columns of the result."""
    return op.Reshape(op.MatMul(c.maps_first(), _unfolded(c)), c.shape)


def _unfolded(c: Correlation) -> Var:
    index = c.index()
    flat = op.Reshape(channels_last(c.long), [-1, c.area, c.channels])
    met = op.Gather(_with_zeros(flat, 1, c, index), index, axis=1)
    return op.Reshape(op.Transpose(met, perm=[0, 1, 3, 2]), [-1, c.channels * c.taps])


def _with_zeros(rows: Var, axis: int, c: Correlation, index: Array) -> Var:
    """Adds a row of zeros after the |D| rows along `axis` if some window meets padding."""
    if not (index == c.area).any():
        return rows
    return pad(rows, [0, 0, 0, *(int(i == axis) for i in range(3))])


def by_images(c: Correlation) -> Var:
    """A kernel of one element: one product per image, which moves no data, and their sum."""
    o = prod((c.sizes or ((), ()))[1])
    short, read = op.Reshape(c.short, [-1, c.maps, o]), op.Reshape(_read(c), [-1, c.channels, o])
    return op.Reshape(op.ReduceSum(short @ read.mT, [0], keepdims=0), c.shape)


def by_joined_images(c: Correlation) -> Var:
    """A kernel of one element: one product over batch and positions."""
    rows = op.Transpose(_read(c), perm=[1, 0, *range(2, c.axes + 2)])
    joined = op.Reshape(rows, [c.channels, -1])
    return op.Reshape(op.Gemm(c.maps_first(), joined, transB=1), c.shape)


def _read(c: Correlation) -> Var:
    """Returns the part of long that a kernel of one element without padding meets."""
    n, known = c.axes, c.sizes
    if known is None or all(s == 1 for s in c.geo.strides):
        return c.long
    last = [(size - 1) * s + 1 for size, s in zip(known[1], c.geo.strides)]
    return op.Slice(c.long, [0] * n, last, list(range(2, n + 2)), list(c.geo.strides))


def by_elements(c: Correlation) -> Var:
    """One channel per group: elementwise products of windows and short, summed over positions."""
    short, positions = channels_last(c.short), list(range(c.axes + 1))
    sums = [
        op.ReduceSum(window * short, positions, keepdims=0)
        for window in c.slices(channels_last(c.long), 1)
    ]
    if len(sums) == 1:
        return op.Reshape(sums[0], c.shape)
    return _kernel_last(op.Concat(*sums, axis=0), c)


def by_pairs(c: Correlation) -> Var:
    """One channel per group: products of all pairs of positions. A matrix of zeros and ones adds up
    the pairs of each kernel element. onnxruntime folds the matrix; the file holds the places of
    the ones.
    """
    n, index = c.axes, c.index()
    d, o = c.area, index.shape[0]
    long = op.Reshape(op.Transpose(c.long, perm=[1, *range(2, n + 2), 0]), [c.maps, d, -1])
    short = op.Reshape(op.Transpose(c.short, perm=[1, 0, *range(2, n + 2)]), [c.maps, -1, o])
    pairs = op.Reshape(op.MatMul(long, short), [c.maps, d * o])
    return op.Reshape(op.MatMul(pairs, _chosen(index, d, c)), c.shape)


def by_line_pairs(c: Correlation) -> Var:
    """One channel per group: products of all pairs of columns, summed over the lines. long is
    unfolded along its first axis. A matrix adds up the pairs as in `by_pairs`.
    """
    (_, width), (_, out) = c.sizes or ((0, 0), (0, 0))
    pads = c.pads(1)
    long = op.Transpose(c.long, perm=[1, 0, 2, 3])
    if pads[1] or pads[5]:
        long = pad(long, [0, 0, pads[1], 0, 0, 0, pads[5], 0])
    lines, columns = (
        np.arange(count).reshape(-1, 1) * c.geo.strides[i]
        + np.arange(c.kernel[i]) * c.geo.dilations[i]
        for i, count in enumerate((c.sizes or ((), (0, 0)))[1])
    )
    unfolded = op.Reshape(op.Gather(long, lines, axis=2), [c.maps, -1, c.kernel[0] * width])
    short = op.Reshape(op.Transpose(c.short, perm=[1, 0, 2, 3]), [c.maps, -1, out])
    pairs = op.Reshape(op.MatMul(unfolded.mT, short), [c.maps, c.kernel[0], width * out])
    return op.Reshape(op.MatMul(pairs, _chosen(columns - c.geo.fixed_begin[1], width, c)), c.shape)


def _chosen(met: Array, size: int, c: Correlation) -> Var:
    """Returns (size O, K): 1 for the pairs of a place among `size` and a position that meets it.

    met: (O, K), the place that each kernel element meets at each position.
    """
    pairs = op.Equal(np.arange(size).reshape(-1, 1, 1), met[None])
    return op.Reshape(op.Cast(pairs, to=c.long.dtype), [size * met.shape[0], met.shape[1]])


def by_swapped_conv(long: Var, short: Var, w: Var, geo: Geometry, group: int) -> Var:
    """A Conv of `long` by `short` with batch and channel axes swapped, and stride and dilation
    swapped.

    This is the only form that needs no known size: sizes are read from `w` at run time.
    """
    n = len(geo.strides)
    kernels = _batch_second(short, n)
    data = _batch_second(long, n) if group == 1 else _batch_per_group(long, group, n)
    options: dict[str, Any] = {"group": group, "strides": geo.dilations, "dilations": geo.strides}
    d, o = spatial(long), spatial(short)
    if d is not None and o is not None and geo.is_fixed:
        missing = geo.missing(d, o)
        pads = [*geo.fixed_begin, *(max(m, 0) for m in missing)]
        result = op.Conv(data, kernels, pads=pads, **options)
        exact = all(-m < dil for m, dil in zip(missing, geo.dilations))
    else:
        result = padded_conv(data, kernels, geo, options)
        exact = False
    if not exact:
        kernel: Any = op.Shape(w, start=2) if geo.kernel is None else list(geo.kernel)
        result = op.Slice(result, [0] * n, kernel, list(range(2, n + 2)))
    return _batch_second(result, n)


def _batch_second(v: Var, n: int) -> Var:
    """Swaps batch and channel; `n` is the number of spatial axes."""
    return op.Transpose(v, perm=[1, 0, *range(2, n + 2)])


def _batch_per_group(v: Var, group: int, n: int) -> Var:
    """Rearranges (N, C, D) to (C / group, group N, D)."""
    shape: Any = shape_of(v)
    if isinstance(shape, np.ndarray):
        batch, channels, *sizes = (int(d) for d in shape)
        split: Any = np.array([batch, group, channels // group, *sizes], np.int64)
        joined: Any = np.array([channels // group, group * batch, *sizes], np.int64)
    else:
        sizes_now = op.Shape(v, start=2)
        channels_now = op.Div(op.Shape(v, start=1, end=2), np.array([group], np.int64))
        split = op.Concat(
            op.Shape(v, start=0, end=1),
            np.array([group], np.int64),
            channels_now,
            sizes_now,
            axis=0,
        )
        joined = op.Concat(channels_now, np.array([-1], np.int64), sizes_now, axis=0)
    swapped = op.Transpose(op.Reshape(v, split), perm=[2, 1, 0, *range(3, n + 3)])
    return op.Reshape(swapped, joined)
