"""The gradient of a convolution by its input, in the form that is fastest for its sizes.

`scripts/bench_conv_gradient.py` measures all forms over a grid: scripts/results/conv_gradient.md.
The table has some of these times, in onnxruntime 1.31 on one thread, relative to ConvTranspose. The
chosen form is in brackets (N images, C -> M channels, the image, 3x3 unless noted). The weight is
constant or fed. If it is fed, onnxruntime can't pack, fold or block it before the run.
| | flipped Conv | products | fed: flipped | fed: products |
|---|---|---|---|---|
| N4 64 -> 64, 56x56 | [0.60] | 2.49 | [0.86] | 2.20 |
| N8 64 -> 64, 16x16 | [0.80] | 2.20 | 1.31 | 2.25 |
| N8 256 -> 256, 4x4 | [0.84] | 0.97 | 1.45 | [0.79] |
| N8 512 -> 512, 2x2 | 0.56 | [0.31] | 1.39 | [0.30] |
| N8 64 -> 3, 32x32 | [0.31] | 5.14 | [0.21] | 4.25 |
| N8 3 -> 32, 32x32 | 2.49 | 1.41 | 4.71 | 1.90 |
| N8 256 -> 512, 4x4, stride 2 | | [0.34] | | [0.26] |
| N8 64 -> 128, 16x16, stride 2 | | 1.08 | | 1.24 |
| N8 960 -> 320, 2x2, 1x1 | | [0.34] | | [0.36] |
| N8 144, 16x16, depthwise | [0.40] | | [0.91] | |
| N8 384, 4x4, 7x7, depthwise | [0.11] | | 1.39 | |

Zeros between the positions, and phases with DepthToSpace, turn a strided convolution into a flipped
Conv. They took 1.1 to 3 times as long as ConvTranspose; gathered rows and one product 0.7 to 7.
"""

from __future__ import annotations

from math import prod

from onnxgrad.frozen import frozen
from onnxgrad.grad.registry import FORM
from onnxgrad.grad.rules._geometry import Geometry, onto_long, spatial
from onnxgrad.grad.rules.convolution._correlation import channels_last
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import is_static
from onnxgrad.ir.var import Var

# with fewer channels per group a Conv is slow
_FEW = 16
# onnxruntime 1.31's Col2Im is wrong for dilations unless the image has two axes
_PLANE = 2
# the size of a 3x3 kernel
_SMALL = 9
# with this many positions, the time to flip a fed weight does not matter
_LARGE = 512


@frozen
class _Sizes:
    """The known sizes of g (N, group maps, *O), of w (group maps, channels, *kernel) and of x (N,
    group channels, *D).
    """

    group: int
    maps: int
    channels: int
    kernel: tuple[int, ...]
    long: tuple[int, ...] | None
    short: tuple[int, ...] | None
    images: int | None
    weight_is_fed: bool

    @property
    def taps(self) -> int:
        """The number of kernel elements."""
        return prod(self.kernel)

    @property
    def is_depthwise(self) -> bool:
        """Whether each group has one channel and one map."""
        return self.maps == self.channels == 1


def input_gradient(
    g: Var, w: Var, x: Var, geo: Geometry, group: int, factors: Var | None = None
) -> Var:
    """sum over m and kernel of g[n, m, o] w[m, c, k] where o s + k d - begin is x's position.

    factors: (M, 1, ...), by which the weight is multiplied: constants if it is one.
    """
    sizes = None if FORM.get() == "small" else _sizes(g, w, x, geo, group)
    w = w if factors is None else w * factors
    if sizes is not None:
        flipped = _can_be_flipped(geo) and _is_flipped_quickly(sizes)
        if _are_few(sizes, geo, flipped):
            return _by_products(g, w, sizes, geo)
        if flipped:
            return _by_flipped_conv(g, w, sizes, geo)
    return onto_long(g, w, x, geo, group)


def _sizes(g: Var, w: Var, x: Var, geo: Geometry, group: int) -> _Sizes | None:
    """Returns the sizes, or None if the channels or the kernel are not known."""
    lead = None if w.shape is None else w.shape[:2]
    if not is_static(lead) or geo.kernel is None or not all(lead) or g.shape is None:
        return None
    images = g.shape[0]
    return _Sizes(
        group,
        lead[0] // group,
        lead[1],
        geo.kernel,
        spatial(x),
        spatial(g),
        images if isinstance(images, int) else None,
        not w.is_constant,
    )


def _are_few(sizes: _Sizes, geo: Geometry, flipped: bool) -> bool:
    """Whether the images are so small that ConvTranspose spends most of its time on the weights.

    ConvTranspose processes images one by one. For a flipped Conv the limit is lower.
    """
    if sizes.short is None or sizes.long is None or not geo.is_fixed:
        return False
    if len(sizes.long) != _PLANE or sizes.images == 1 or sizes.group > 1 or not prod(sizes.short):
        return False
    return (64 if flipped else 8) * prod(sizes.short) <= sizes.maps


def _can_be_flipped(geo: Geometry) -> bool:
    """Whether the stride is 1 and no window lies entirely in zeros."""
    begin, end = geo.begin, geo.end
    if isinstance(begin, Var) or isinstance(end, Var) or any(s > 1 for s in geo.strides):
        return False
    return all(b < e and a < e for b, a, e in zip(begin, end, geo.extent))


def _is_flipped_quickly(sizes: _Sizes) -> bool:
    """Whether the flipped Conv is fast: onnxruntime folds constant flips and blocks channels."""
    if sizes.taps == 1 or (sizes.channels < _FEW and not sizes.is_depthwise):
        return False
    if not sizes.weight_is_fed:
        return True
    if sizes.is_depthwise:
        return sizes.taps <= _SMALL
    positions = 0 if sizes.short is None else prod(sizes.short)
    return positions >= (_LARGE if 2 * sizes.maps <= sizes.channels else 4 * _LARGE)


def _by_flipped_conv(g: Var, w: Var, sizes: _Sizes, geo: Geometry) -> Var:
    """Stride 1: a Conv of g by the flipped weight with channels and maps swapped."""
    n, kernel = len(sizes.kernel), sizes.kernel
    if sizes.group == 1:
        w = op.Transpose(w, perm=[1, 0, *range(2, n + 2)])
    elif not sizes.is_depthwise:
        split = op.Reshape(w, [sizes.group, sizes.maps, sizes.channels, *kernel])
        turned = op.Transpose(split, perm=[0, 2, 1, *range(3, n + 3)])
        w = op.Reshape(turned, [sizes.group * sizes.channels, sizes.maps, *kernel])
    axes = [i + 2 for i, k in enumerate(kernel) if k > 1]
    before = [-k - 1 for k in kernel if k > 1]
    flipped = op.Slice(w, [-1] * len(axes), before, axes, [-1] * len(axes))
    begin, end = geo.fixed_begin, geo.end
    pads = [*begin, *(begin if isinstance(end, Var) else end)]
    return op.Conv(
        g,
        flipped,
        pads=[e - 1 - p for e, p in zip(geo.extent * 2, pads)],
        dilations=geo.dilations,
        group=sizes.group,
    )


def _by_products(g: Var, w: Var, sizes: _Sizes, geo: Geometry) -> Var:
    """One product over batch and positions with the unchanged weight, then Col2Im."""
    long, short = sizes.long or (), sizes.short or ()
    columns = sizes.channels * sizes.taps
    rows = op.Reshape(channels_last(g), [-1, sizes.maps])
    product = op.MatMul(rows, op.Reshape(w, [sizes.maps, columns]))
    patches = op.Transpose(op.Reshape(product, [-1, prod(short), columns]), perm=[0, 2, 1])
    ends = [max(m, 0) for m in geo.missing(long, short)]
    if sizes.taps == 1 and long == short and not any(geo.fixed_begin) and not any(ends):
        return op.Reshape(patches, [-1, columns, *long])
    return op.Col2Im(
        patches,
        list(long),
        list(sizes.kernel),
        pads=[*geo.fixed_begin, *ends],
        strides=list(geo.strides),
        dilations=list(geo.dilations),
    )
