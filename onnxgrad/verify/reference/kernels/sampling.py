"""GridSample and DeformConv. onnx.reference rounds GridSample's weights to float32, loops in
Python, and knows DeformConv in two dimensions only.

Both read an image between its pixels: a product over the axes of a few weighted neighbours. As in
onnxruntime it is the image that is continued beyond its edges, so a neighbour's index is clamped or
folded back, never the position.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from onnxgrad.verify.reference.kernels.registry import Array, Call, kernel

_CUBIC = -0.75
_FAR = 2.0**40  # positions beyond it, infinities included, are moved to it


@kernel("GridSample", why="speed")
def grid_sample(call: Call, x: Array, grid: Array) -> Array:
    """x (N, C, *S), grid (N, *O, rank) with the last spatial axis first -> (N, C, *O)."""
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(
        call["mode"] or "linear", call["mode"] or "linear"
    )
    aligned = bool(call["align_corners"])
    sizes = x.shape[2:]
    positions = []
    for axis, size in enumerate(sizes):
        g = grid[..., len(sizes) - 1 - axis]
        positions.append((g + 1) / 2 * (size - 1) if aligned else ((g + 1) * size - 1) / 2)
    batch = np.arange(x.shape[0]).reshape(-1, *[1] * len(sizes))
    y = _read(
        np.moveaxis(x, 1, -1), (batch,), positions, mode, call["padding_mode"] or "zeros", aligned
    )
    return np.moveaxis(y, -1, 1)


@kernel("DeformConv", why="rounds")
def deform_conv(
    call: Call,
    x: Array,
    w: Array,
    offset: Array,
    bias: Array | None = None,
    mask: Array | None = None,
) -> Array:
    """x (N, C, *S), w (M, C/group, *K), offset (N, offset_group |K| rank, *O), mask (N,
    offset_group |K|, *O) -> (N, M, *O): a convolution over columns read, each with its mask, at the
    regular positions plus the offsets.
    """
    rank = x.ndim - 2
    group, parts = call["group"] or 1, call["offset_group"] or 1
    strides, dilations = call["strides"] or [1] * rank, call["dilations"] or [1] * rank
    pads = call["pads"] or [0] * 2 * rank
    batch, channels, out = x.shape[0], x.shape[1], offset.shape[2:]
    spots = math.prod(w.shape[2:])
    moved = offset.reshape(batch, parts, spots, rank, *out)
    places = np.indices(w.shape[2:]).reshape(rank, spots)
    positions = []
    for axis in range(rank):
        along = np.ones(rank, np.int64)
        along[axis] = -1
        regular = np.arange(out[axis]).reshape(along) * strides[axis] - pads[axis]
        kernel_place = (places[axis] * dilations[axis]).reshape(spots, *[1] * rank)
        positions.append(moved[:, :, :, axis] + regular + kernel_place)
    image = np.moveaxis(x.reshape(batch, parts, channels // parts, *x.shape[2:]), 2, -1)
    ones = [1] * (rank + 1)
    at = (np.arange(batch).reshape(-1, 1, *ones), np.arange(parts).reshape(-1, *ones))
    columns = _read(image, at, positions, "linear", "zeros", False)  # (N, parts, |K|, *O, C/parts)
    if mask is not None:
        columns = columns * mask.reshape(batch, parts, spots, *out)[..., None]
    columns = np.moveaxis(columns, -1, 2).reshape(
        batch, group, channels // group * spots, math.prod(out)
    )
    y = (w.reshape(group, w.shape[0] // group, -1) @ columns).reshape(batch, w.shape[0], *out)
    return y if bias is None else y + bias.reshape(1, -1, *[1] * rank)


def _read(
    image: Array,
    at: tuple[Array, ...],
    positions: Sequence[Array],
    mode: str,
    padding: str,
    aligned: bool,
) -> Array:
    """image (*B, *S, C) between its pixels at positions (*P), one array per spatial axis; `at`
    indexes B, broadcastable to P -> (*P, C).
    """
    sizes = image.shape[len(at) : -1]
    spots = [_taps(p, mode) for p in positions]
    y = np.zeros((*positions[0].shape, image.shape[-1]), np.result_type(image, positions[0]))
    for choice in itertools.product(*(range(len(places)) for places, _ in spots)):
        weight = np.ones(positions[0].shape)
        index = []
        for (places, weights), size, tap in zip(spots, sizes, choice, strict=True):
            place, inside = _continued(places[tap], size, padding, aligned)
            weight = weight * weights[tap] * inside
            index.append(place)
        y += weight[..., None] * image[(*at, *index)]
    return y


def _continued(place: Array, size: int, padding: str, aligned: bool) -> tuple[Array, Array | bool]:
    """(the index of the pixel that stands at `place`, whether it counts)."""
    # about the centres of the edge pixels if aligned, else about their outer edges
    if padding == "reflection":
        period = 2 * (size - 1) if aligned else 2 * size
        folded = np.mod(place, max(period, 1))
        place = np.minimum(folded, (period if aligned else period - 1) - folded)
    clamped = np.clip(place, 0, size - 1)
    return clamped, clamped == place if padding == "zeros" else True


def _taps(position: Array, mode: str) -> tuple[Array, Array]:
    """(neighbours, their weights), each (taps, *position.shape)."""
    position = np.clip(position, -_FAR, _FAR)
    if mode == "nearest":
        return _whole(np.rint(position))[None], np.ones((1, *position.shape))
    low = np.floor(position)
    t = position - low
    base = _whole(low)
    if mode == "linear":
        return np.stack([base, base + 1]), np.stack([1 - t, t])
    a = _CUBIC
    far, near = t + 1, 1 - t
    weights = [
        ((a * far - 5 * a) * far + 8 * a) * far - 4 * a,
        ((a + 2) * t - (a + 3)) * t * t + 1,
        ((a + 2) * near - (a + 3)) * near * near + 1,
        ((a * (near + 1) - 5 * a) * (near + 1) + 8 * a) * (near + 1) - 4 * a,
    ]
    return np.stack([base - 1, base, base + 1, base + 2]), np.stack(weights)


def _whole(v: Array) -> Array:
    """Whole numbers as int64; NaN becomes 0 (its weight is NaN)."""
    return np.where(np.isnan(v), 0, v).astype(np.int64)
