"""Vision operators: GridSample, DeformConv, AffineGrid, regions of interest, NonMaxSuppression."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from onnxgrad.ir.attributes import GRID_MODES
from onnxgrad.verify.reference.kernels.registry import Array, Call, kernel

_FAR = 2.0**40  # positions are clipped to this distance, infinities too


@kernel("GridSample", why="speed")
@kernel("GridSample", domain="com.microsoft", why="missing")
def grid_sample(call: Call, x: Array, grid: Array) -> Array:
    """x (N, C, *S), grid (N, *O, rank) with the last spatial axis first -> (N, C, *O)."""
    mode = call["mode"] or "linear"
    mode = GRID_MODES.get(mode, mode)
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
    offset_group |K|, *O) -> (N, M, *O). Convolves columns that are read at the regular positions
    plus the offsets, each multiplied by its mask.
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
    """Interpolates image (*B, *S, C) at positions (*P), one array per spatial axis -> (*P, C). `at`
    indexes B and is broadcastable to P.
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
    """Returns (the index of the pixel at `place`, whether it counts)."""
    # about the centres of the edge pixels if aligned, else about their outer edges
    if padding == "reflection":
        period = 2 * (size - 1) if aligned else 2 * size
        folded = np.mod(place, max(period, 1))
        place = np.minimum(folded, (period if aligned else period - 1) - folded)
    clamped = np.clip(place, 0, size - 1)
    return clamped, clamped == place if padding == "zeros" else True


def _taps(position: Array, mode: str) -> tuple[Array, Array]:
    """Returns (neighbours, their weights), each (taps, *position.shape)."""
    position = np.clip(position, -_FAR, _FAR)
    if mode == "nearest":
        return _whole(np.rint(position))[None], np.ones((1, *position.shape))
    low = np.floor(position)
    t = position - low
    base = _whole(low)
    if mode == "linear":
        return np.stack([base, base + 1]), np.stack([1 - t, t])
    a = -0.75  # as in onnxruntime
    far, near = t + 1, 1 - t
    weights = [
        ((a * far - 5 * a) * far + 8 * a) * far - 4 * a,
        ((a + 2) * t - (a + 3)) * t * t + 1,
        ((a + 2) * near - (a + 3)) * near * near + 1,
        ((a * (near + 1) - 5 * a) * (near + 1) + 8 * a) * (near + 1) - 4 * a,
    ]
    return np.stack([base - 1, base, base + 1, base + 2]), np.stack(weights)


def _whole(v: Array) -> Array:
    """Returns whole numbers as int64. NaN becomes 0, because its weight is NaN."""
    return np.where(np.isnan(v), 0, v).astype(np.int64)


def _centres(n: int, align_corners: int) -> Array:
    """Returns n points over [-1, 1]: the corners, or the centres of n equal cells. A single aligned
    point lies at 1, as in onnxruntime.
    """
    if align_corners:
        return np.linspace(-1, 1, n) if n > 1 else np.ones(n)
    return (2 * np.arange(n) + 1) / n - 1


@kernel("AffineGrid", why="wrong")
def affine_grid(call: Call, theta: Array, size: Array) -> Array:
    """grid[n, p] = theta[n] (p, 1). The coordinates of p are in the order x, y, z; the axes of the
    grid are in reverse order.
    """
    spatial = [int(d) for d in size[2:]]
    axes = np.meshgrid(*(_centres(n, call["align_corners"]) for n in spatial), indexing="ij")
    points = np.stack([*reversed(axes), np.ones(spatial)], axis=-1).astype(theta.dtype)
    grid: Array = np.einsum("nij,...j->n...i", theta, points)
    return grid


@kernel("RoiAlign", why="speed")
def roi_align(call: Call, x: Array, rois: Array, batch: Array) -> Array:
    """x (N, C, H, W), rois (R, 4) = (x1, y1, x2, y2), batch (R,) -> (R, C, output_height,
    output_width).
    """
    half = call["coordinate_transformation_mode"] in (None, "half_pixel") and call.version >= 16
    out, ratio = (call["output_height"], call["output_width"]), call["sampling_ratio"]
    y = np.zeros((len(rois), x.shape[1], *out), x.dtype)
    for r, roi in enumerate(rois * call["spatial_scale"] - (0.5 if half else 0.0)):
        taps = [
            _corner_taps(
                roi[1 - axis], roi[3 - axis], x.shape[2 + axis], out[axis], ratio, as_given=half
            )
            for axis in range(2)
        ]
        (rows, vertical), (columns, horizontal) = taps
        if not (rows.size and columns.size):
            continue
        # (C, PH, GH, 2, PW, GW, 2)
        read = x[int(batch[r])][:, rows[..., None, None, None], columns]
        read = read * vertical[..., None, None, None] * horizontal
        if call["mode"] == "max":
            y[r] = read.max(axis=(2, 3, 5, 6))
        else:
            y[r] = read.sum(axis=(2, 3, 5, 6)) / (rows.shape[1] * columns.shape[1])
    return y


def _corner_taps(
    start: float, end: float, size: int, bins: int, ratio: int, *, as_given: bool
) -> tuple[Array, Array]:
    """Returns, for one axis of one region, the pixels below and above each sample, and their
    weights: (bins, samples, 2).
    """
    length = end - start if as_given else max(end - start, 1.0)
    samples = ratio if ratio > 0 else max(math.ceil(length / bins), 0)
    place = start + (np.arange(bins)[:, None] + (np.arange(samples) + 0.5) / max(samples, 1)) * (
        length / bins
    )
    inside = (place >= -1.0) & (place <= size)
    place = np.clip(np.where(inside, place, 0.0), 0.0, size - 1)
    low = np.floor(place).astype(np.int64)
    above = place - low
    pixels = np.stack([low, np.minimum(low + 1, size - 1)], axis=-1)
    return pixels, np.stack([1.0 - above, above], axis=-1) * inside[..., None]


@kernel("MaxRoiPool", why="missing")
def max_roi_pool(call: Call, x: Array, rois: Array) -> Array:
    """x (N, C, H, W), rois (R, 5) = (batch, x1, y1, x2, y2) -> (R, C, *pooled_shape); an empty
    bin is 0.
    """
    rows, columns = call["pooled_shape"]
    y = np.zeros((rois.shape[0], x.shape[1], rows, columns), x.dtype)
    for r, roi in enumerate(rois):
        plane = x[int(roi[0])]
        scaled = [float(v * call["spatial_scale"]) for v in roi[1:]]
        # C's round()
        x1, y1, x2, y2 = (int(math.copysign(math.floor(abs(v) + 0.5), v)) for v in scaled)
        height, width = max(y2 - y1 + 1, 1), max(x2 - x1 + 1, 1)
        for i, j in np.ndindex(rows, columns):
            top, bottom = _bin(i, height, rows, y1, x.shape[2])
            left, right = _bin(j, width, columns, x1, x.shape[3])
            if bottom > top and right > left:
                y[r, :, i, j] = plane[:, top:bottom, left:right].max(axis=(1, 2))
    return y


def _bin(place: int, length: int, bins: int, start: int, size: int) -> tuple[int, int]:
    """Returns [first, last) of one bin. Divides in float32 as onnxruntime does, because the
    rounding affects ceil and floor.
    """
    width = np.float32(length) / np.float32(bins)
    first = math.floor(np.float32(place) * width) + start
    last = math.ceil(np.float32(place + 1) * width) + start
    return min(max(first, 0), size), min(max(last, 0), size)


@kernel("NonMaxSuppression", why="wrong")
def non_max_suppression(
    call: Call,
    boxes: Array,
    scores: Array,
    most: Array | None = None,
    overlap: Array | None = None,
    least: Array | None = None,
) -> Array:
    """boxes (N, B, 4), scores (N, C, B), numbers () or (1,) -> (selected, 3): batch, class, box.
    The first box wins among equal scores.
    """
    limit, threshold = int(_number(most)), _number(overlap)
    one, other = boxes[..., :2], boxes[..., 2:]
    if call["center_point_box"]:
        one, other = one - other / 2, one + other / 2
    corners = np.concatenate([np.minimum(one, other), np.maximum(one, other)], axis=-1)
    found: list[tuple[int, int, int]] = []
    for n, c in np.ndindex(*scores.shape[:2]):
        left = np.argsort(-scores[n, c], kind="stable")
        if least is not None:
            left = left[scores[n, c, left] > _number(least)]
        for _ in range(limit):
            if not left.size:
                break
            first, rest = left[0], left[1:]
            found.append((n, c, int(first)))
            left = rest[~(_overlaps(corners[n, first], corners[n, rest]) > threshold)]
    return np.array(found, np.int64).reshape(-1, 3)


def _number(value: Array | None) -> float:
    return 0.0 if value is None else float(np.asarray(value).reshape(-1)[0])


def _overlaps(box: Array, others: Array) -> Array:
    """Returns the intersection over union with each of `others` (B, 4); 0 for boxes
    without area.
    """
    sides = np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2])
    shared = np.where((sides > 0).all(axis=1), sides.prod(axis=1), 0.0)
    area, areas = (box[2:] - box[:2]).prod(), (others[:, 2:] - others[:, :2]).prod(axis=1)
    solid = (area > 0) & (areas > 0)
    return np.where(solid, shared / np.where(solid, area + areas - shared, 1.0), 0.0)
