"""Pools: onnx.reference visits every window in Python and disagrees with onnxruntime about
ceil_mode (GoogLeNet fails); here one array operation per kernel offset.
"""

from __future__ import annotations

import math

import numpy as np

from onnxgrad.verify.reference.kernels.registry import Array, Call, kernel
from onnxgrad.verify.reference.kernels.windows import Windows, windows


@kernel("MaxPool", why="speed")
def max_pool(call: Call, x: Array) -> tuple[Array, ...]:
    """Indices count in the unpadded tensor; the first of equal elements wins."""
    place = windows(call, x.shape[2:], call["kernel_shape"])
    lowest = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
    padded = place.pad(x, lowest)
    best = np.full((*x.shape[:2], *place.out), lowest, x.dtype)
    chosen = np.full(best.shape, -1, np.int64)
    for number, offset in enumerate(place.offsets()):
        here = place.at(padded, offset)
        better = (here > best) | (chosen < 0)
        best = np.where(better, here, best)
        chosen = np.where(better, number, chosen)
    if len(call.outputs) < 2:
        return (best,)
    return best, _indices(chosen, place, x, column_major=call["storage_order"] == 1)


def _indices(chosen: Array, place: Windows, x: Array, *, column_major: bool) -> Array:
    spatial = x.shape[2:]
    offsets = np.asarray(list(place.offsets()), np.int64)[chosen]  # (N, C, *O, rank)
    rank = len(spatial)
    flat = np.zeros(chosen.shape, np.int64)
    weight = 1
    for axis in range(rank) if column_major else reversed(range(rank)):
        starts = np.arange(place.out[axis]) * place.strides[axis] - place.begin[axis]
        shape = [1] * (2 + rank)
        shape[2 + axis] = -1
        flat += weight * (starts.reshape(shape) + offsets[..., axis] * place.dilations[axis])
        weight *= spatial[axis]
    plane = np.arange(x.shape[0] * x.shape[1]).reshape(*x.shape[:2], *[1] * rank)
    return np.asarray(flat + plane * math.prod(spatial))


@kernel("MaxUnpool", why="wrong")
def max_unpool(call: Call, x: Array, places: Array, shape: Array | None = None) -> Array:
    """Indices count in the output, as in onnxruntime and PyTorch: what a MaxPool of it would
    answer. onnx.reference counts in a smaller tensor where output_shape is larger than need be.
    """
    kernel, rank = call["kernel_shape"], x.ndim - 2
    strides, pads = call["strides"] or [1] * rank, call["pads"] or [0] * (2 * rank)
    sizes = [
        (d - 1) * s + k - a - b
        for d, s, k, a, b in zip(
            x.shape[2:], strides, kernel, pads[:rank], pads[rank:], strict=True
        )
    ]
    out = np.zeros([*x.shape[:2], *sizes] if shape is None else np.asarray(shape).tolist(), x.dtype)
    out.reshape(-1)[np.asarray(places).reshape(-1)] = x.reshape(-1)
    return out


@kernel("AveragePool", why="speed")
def average_pool(call: Call, x: Array) -> Array:
    """With count_include_pad the declared padding counts, the extra room of ceil_mode does not."""
    place = windows(call, x.shape[2:], call["kernel_shape"])
    inside = np.ones((1, 1, *x.shape[2:]))
    if call["count_include_pad"]:
        rank = x.ndim - 2
        widths = [
            (0, 0),
            (0, 0),
            *((max(place.begin[a], 0), max(place.end[a], 0)) for a in range(rank)),
        ]
        counted = np.pad(inside, widths, constant_values=1.0)
        bare = Windows(
            place.kernel, place.strides, place.dilations, (0,) * rank, (0,) * rank, place.out
        )
        counts = _sum(bare, counted)
    else:
        counts = _sum(place, inside)
    return _sum(place, x) / counts


def _sum(place: Windows, x: Array) -> Array:
    padded = place.pad(x, 0.0)
    total = np.zeros((*x.shape[:2], *place.out), x.dtype)
    for offset in place.offsets():
        total += place.at(padded, offset)
    return total


@kernel("LpPool", why="speed")
def lp_pool(call: Call, x: Array) -> Array:
    p = call["p"] if call["p"] is not None else 2
    place = windows(call, x.shape[2:], call["kernel_shape"])
    return np.asarray(_sum(place, np.abs(x) ** p) ** (1.0 / p))


@kernel("GlobalAveragePool", why="wrong")
def global_average_pool(call: Call, x: Array) -> Array:
    return np.asarray(x.mean(axis=tuple(range(2, x.ndim)), keepdims=True))


@kernel("GlobalMaxPool", why="wrong")
def global_max_pool(call: Call, x: Array) -> Array:
    return np.asarray(x.max(axis=tuple(range(2, x.ndim)), keepdims=True))


@kernel("GlobalLpPool", why="missing")
def global_lp_pool(call: Call, x: Array) -> Array:
    p = call["p"] if call["p"] is not None else 2
    return np.asarray(
        (np.abs(x) ** p).sum(axis=tuple(range(2, x.ndim)), keepdims=True) ** (1.0 / p)
    )
