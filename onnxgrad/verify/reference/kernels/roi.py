"""Regions of interest: onnx.reference visits every sample in Python, and has no MaxRoiPool.

Both agree with onnxruntime 1.31 where it deviates: RoiAlign's max mode takes the largest *weighted*
corner of all samples, not the largest interpolated value.
"""

from __future__ import annotations

import math

import numpy as np

from onnxgrad.verify.reference.kernels.registry import Array, Call, kernel


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
            _taps(roi[1 - axis], roi[3 - axis], x.shape[2 + axis], out[axis], ratio, as_given=half)
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


def _taps(
    start: float, end: float, size: int, bins: int, ratio: int, *, as_given: bool
) -> tuple[Array, Array]:
    """One axis of one region: the pixels below and above each sample and their weights, (bins,
    samples, 2).
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
        x1, y1, x2, y2 = (int(_half_away(v * call["spatial_scale"])) for v in roi[1:])
        height, width = max(y2 - y1 + 1, 1), max(x2 - x1 + 1, 1)
        for i, j in np.ndindex(rows, columns):
            top, bottom = _bin(i, height, rows, y1, x.shape[2])
            left, right = _bin(j, width, columns, x1, x.shape[3])
            if bottom > top and right > left:
                y[r, :, i, j] = plane[:, top:bottom, left:right].max(axis=(1, 2))
    return y


def _bin(place: int, length: int, bins: int, start: int, size: int) -> tuple[int, int]:
    """[first, last) of one bin. float32, as onnxruntime divides: the rounding decides what ceil
    and floor make.
    """
    width = np.float32(length) / np.float32(bins)
    first = math.floor(np.float32(place) * width) + start
    last = math.ceil(np.float32(place + 1) * width) + start
    return min(max(first, 0), size), min(max(last, 0), size)


def _half_away(value: float) -> float:
    """C's round()."""
    return math.copysign(math.floor(abs(value) + 0.5), value)
