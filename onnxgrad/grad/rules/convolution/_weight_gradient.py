"""The weight gradient of a convolution, in the form that is quickest for its sizes.

`scripts/bench_conv_gradient.py` measures all forms over a grid: scripts/results/conv_gradient.md.
Of that, in onnxruntime 1.31 on one thread, relative to a Conv with swapped axes, what is
chosen in brackets (N images, C -> M channels, the image, 3x3 where nothing is said):

| | offsets | rows | unfolded | |
|---|---|---|---|---|
| N4 64 -> 64, 56x56 | [0.55] | 0.76 | 1.20 | one product for each pixel of the kernel: |
| N8 64 -> 64, 16x16 | [0.51] | 0.70 | 0.97 | what is unfolded leaves the cache |
| N8 256 -> 256, 4x4 | 0.57 | [0.50] | 0.60 | N |O| <= M: one product of stacks |
| N8 512 -> 512, 2x2 | 0.57 | 0.38 | [0.31] | 4 N |O| <= M: the result needs no transposing |
| N8 3 -> 32, 32x32 | 1.49 | 1.56 | 1.46 | [Conv]: products would be too narrow |
| N8 64 -> 64, 16x16, 8 groups | [0.82] | | | 16 groups: 1.02, [Conv] |
| N8 96 -> 24, 32x32, 1x1 | 0.57 | 0.75 | 0.62 | [0.18] products of images, 0.28 one of all |
| N8 256 -> 512, 4x4, 1x1 stride 2 | 0.17 | 0.12 | 0.13 | 0.56 of images, [0.14] one of all |

| depthwise | elements | pairs | |
|---|---|---|---|
| N8 144, 16x16 | [0.88] | | |
| N8 960, 2x2 | 0.68 | [0.51] | |D| (1 / N + 1 / taps) <= 14: a Gemm's products are cheap |
| N8 192, 8x8, 7x7 | 0.79 | [0.46] | |
| N8 96, 16x16, 7x7 | 1.26 | | [Conv]: large windows, read often |
| N8 96, 32x32, stride 2 | 1.18 | | [Conv] |

Nothing that is unfolded is larger than the result: N |O| C taps <= M C taps.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TypeAlias

from onnxgrad.grad.rules._geometry import Geometry
from onnxgrad.grad.rules.convolution import _weight_forms as forms
from onnxgrad.grad.rules.convolution._correlation import Correlation
from onnxgrad.ir.types import is_static
from onnxgrad.ir.var import Var

Form: TypeAlias = Callable[[Correlation], Var]

# so few channels per group make the products too narrow
_FEW = 8
# so many pixels in a kernel would be as many bindings
_MANY = 64
# a kernel of three times three
_SMALL = 9
# elements of the matrix that adds up pairs
_PAIRS = 1 << 18
# how many products of a Gemm cost what one of the elementwise does
_CHEAPER = 14
# a batch of unknown size
_SOME = 8
# elements of a window that stay in a cache between the bindings that read them
_CACHED = 1 << 17


def weight_gradient(long: Var, short: Var, w: Var, geo: Geometry, group: int) -> Var:
    """sum over batch and positions of long[n, c, o s + k d - begin] short[n, m, o], as (M, C /
    group, kernel).
    """
    c = _correlation(long, short, w, geo, group)
    form = None if c is None else _form(c)
    if c is None or form is None:
        return forms.by_swapped_conv(long, short, w, geo, group)
    return form(c)


def _correlation(long: Var, short: Var, w: Var, geo: Geometry, group: int) -> Correlation | None:
    """None where channels or kernel are not known, or there is nothing to sum."""
    lead = None if w.shape is None else w.shape[:2]
    if not is_static(lead) or geo.kernel is None:
        return None
    c = Correlation(long, short, geo, group, lead[0], lead[1], geo.kernel)
    empty = c.sizes is not None and not all(map(prod, c.sizes))
    return None if empty or not all(c.shape) else c


def _form(c: Correlation) -> Form | None:
    """The quickest form; None is the Conv with swapped axes."""
    if c.group == 1 and _is_pointwise(c):
        return _pointwise(c)
    if c.channels == 1 and c.maps == c.group:
        return _depthwise(c)
    if c.channels < _FEW or c.taps > _MANY or (c.group > 1 and c.sizes is None):
        return None
    if c.group > 1 or c.sizes is None or c.positions is None or c.positions > c.maps:
        return forms.by_offsets
    # what is small, and not the result, is unfolded and transposed
    return forms.by_unfolding if 4 * c.positions <= c.maps else forms.by_gathered_rows


def _is_pointwise(c: Correlation) -> bool:
    """A kernel of one pixel without padding; with strides, of known sizes."""
    begin, end = c.geo.begin, c.geo.end
    padded = isinstance(begin, Var) or isinstance(end, Var) or any(begin) or any(end)
    strided = any(s > 1 for s in c.geo.strides)
    return c.taps == 1 and not padded and (c.sizes is not None or not strided)


def _pointwise(c: Correlation) -> Form:
    """A sum of products pays where those are smaller than what would be moved to join images."""
    o = prod(c.sizes[1]) if c.sizes is not None else 0
    smaller = c.maps * c.channels < o * (c.maps + c.channels)
    return forms.by_images if smaller else forms.by_joined_images


def _depthwise(c: Correlation) -> Form | None:
    """Elementwise products, unless their windows leave the cache too often."""
    if _pairs_are_few(c):
        return forms.by_pairs
    if c.taps > _MANY:
        return None
    strided = any(s > 1 for s in c.geo.strides)
    if c.taps <= _SMALL and not strided:
        return forms.by_elements
    window = None if c.positions is None else c.positions * c.maps
    return forms.by_elements if window is not None and window <= _CACHED else None


def _pairs_are_few(c: Correlation) -> bool:
    """|D| (1 / N + 1 / taps) says how the |D| |O| (N + taps) products of pairs compare with N |O|
    taps elements, each of which costs several times as much.
    """
    if c.sizes is None:
        return False
    d, o = (prod(sizes) for sizes in c.sizes)
    images = _SOME if c.positions is None else max(1, c.positions // o)
    return d * o * c.taps <= _PAIRS and d * (images + c.taps) <= _CHEAPER * images * c.taps
