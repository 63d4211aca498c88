"""Convolutions and pools, with one array operation for each kernel offset. onnx.reference visits
every window in Python.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from onnxgrad.frozen import frozen
from onnxgrad.ir.storage.lazy_arrays import LazyArray
from onnxgrad.verify.reference.kernels.linear_and_quantization import product
from onnxgrad.verify.reference.kernels.registry import Array, Call, kernel


@frozen
class Windows:
    """The positions of the windows of one Conv or pool. All lists have one entry per
    spatial axis.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begin: tuple[int, ...]
    end: tuple[int, ...]
    out: tuple[int, ...]

    def extent(self, axis: int) -> int:
        return (self.kernel[axis] - 1) * self.dilations[axis] + 1

    def offsets(self) -> Iterator[tuple[int, ...]]:
        return itertools.product(*(range(k) for k in self.kernel))

    def pad(self, x: Array, value: float) -> Array:
        """Returns x (N, C, *spatial), padded so that every window lies inside, including the last
        one of ceil mode.
        """
        sizes = x.shape[2:]
        widths = [(0, 0), (0, 0)]
        for axis, size in enumerate(sizes):
            needed = (
                (self.out[axis] - 1) * self.strides[axis]
                + self.extent(axis)
                - self.begin[axis]
                - size
            )
            widths.append((max(self.begin[axis], 0), max(self.end[axis], needed, 0)))
        padded = x
        if any(map(any, widths)):  # np.pad takes ten times as long for small planes
            shape = [low + n + high for (low, high), n in zip(widths, x.shape)]
            padded = np.full(shape, value, x.dtype)
            padded[tuple(slice(low, low + n) for (low, _), n in zip(widths, x.shape))] = x
        crop = tuple(slice(max(-self.begin[axis], 0), None) for axis in range(len(sizes)))
        return padded[(slice(None), slice(None), *crop)]

    def at(self, padded: Array, offset: Sequence[int]) -> Array:
        """Returns the element of every window at one kernel offset: a view (N, C, *out)."""
        index: list[slice] = [slice(None), slice(None)]
        for axis, position in enumerate(offset):
            start = position * self.dilations[axis]
            index.append(
                slice(
                    start, start + (self.out[axis] - 1) * self.strides[axis] + 1, self.strides[axis]
                )
            )
        return padded[tuple(index)]


def windows(call: Call, spatial: Sequence[int], kernel: Sequence[int]) -> Windows:
    """Reads strides, dilations, pads, auto_pad and ceil_mode of a Conv or pool over `spatial`
    sizes.
    """
    rank = len(spatial)
    strides = tuple(call["strides"] or [1] * rank)
    dilations = tuple(call["dilations"] or [1] * rank)
    extents = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    mode = call["auto_pad"] or "NOTSET"
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        out = [-(-size // stride) for size, stride in zip(spatial, strides, strict=True)]
        total = [
            max((o - 1) * s + e - n, 0)
            for o, s, e, n in zip(out, strides, extents, spatial, strict=True)
        ]
        small, large = [t // 2 for t in total], [t - t // 2 for t in total]
        begin, end = (small, large) if mode == "SAME_UPPER" else (large, small)
    else:
        pads = [0] * (2 * rank) if mode == "VALID" or not call["pads"] else call["pads"]
        begin, end, out = pads[:rank], pads[rank:], []
        for axis in range(rank):
            room = spatial[axis] + begin[axis] + end[axis] - extents[axis]
            steps = -(-room // strides[axis]) if call["ceil_mode"] else room // strides[axis]
            if call["ceil_mode"] and steps * strides[axis] >= spatial[axis] + begin[axis]:
                steps -= 1  # a window that would start in the end padding is dropped
            out.append(max(steps + 1, 0))
    return Windows(tuple(kernel), strides, dilations, tuple(begin), tuple(end), tuple(out))


# an im2col buffer beyond this (256 MB) is replaced by one product per kernel offset
_COLUMN_ELEMENTS = 2**25
# with fewer maps for each channel, products of planes are faster than a product of matrices
_FEW = 8
_BLOCK = 2**15  # elements of a depthwise convolution that are computed at once


@kernel("Conv", why="speed")
def conv(call: Call, x: Array, w: Array | LazyArray, bias: Array | None = None) -> Array:
    """x (N, C, *S), w (M, C/group, *K) -> (N, M, *O)."""
    group = call["group"] or 1
    if isinstance(w, LazyArray) and group > 1:
        w = w.wide()
    place = windows(call, x.shape[2:], w.shape[2:])
    padded = place.pad(x, 0.0)
    batch, maps, depth = x.shape[0], w.shape[0], w.shape[1]
    spots = math.prod(place.out)
    offsets = list(place.offsets())
    dtype = np.result_type(x, np.float64 if isinstance(w, LazyArray) else w)
    if not isinstance(w, LazyArray) and depth == 1 and maps // group < _FEW:
        total = _depthwise(place, padded, w.astype(dtype, copy=False), group)
    else:
        total = np.empty((batch, group, maps // group, spots), dtype)
        step = max(1, _COLUMN_ELEMENTS // max(1, x.shape[0] * x.shape[1] * spots))
        for start in range(0, len(offsets), step):
            columns = _columns(place, padded, group, offsets[start : start + step])
            for first, last, block in w.blocks() if isinstance(w, LazyArray) else [(0, maps, w)]:
                size = (last - first) // group  # a lazy weight has one group
                # (G, M/G, K, C/G)
                weight = np.moveaxis(block.reshape(group, size, depth, len(offsets)), 3, 2)
                part = np.ascontiguousarray(weight[:, :, start : start + step])
                terms = product(part.reshape(group, size, -1), columns)
                if start:
                    total[:, :, first : first + size] += terms
                elif size * group == maps:
                    total = terms
                else:
                    total[:, :, first : first + size] = terms
    y = total.reshape(batch, maps, *place.out)
    if bias is not None:
        y += bias.reshape(1, -1, *[1] * len(place.out))
    return y


def _depthwise(place: Windows, padded: Array, w: Array, group: int) -> Array:
    """Returns a convolution with one channel in each group, (N, G, M/G, *O). Nothing is added over
    channels, so blocks of them pass through the processor's cache.
    """
    batch, each = len(padded), len(w) // group
    taps = w.reshape(1, group, each, -1, *[1] * len(place.out))
    total = np.empty((batch, group, each, *place.out), w.dtype)
    step = max(1, _BLOCK // max(1, batch * each * math.prod(place.out)))
    for start in range(0, group, step):
        block = slice(start, start + step)
        here, planes = total[:, block], padded[:, block]
        terms = np.empty_like(here)
        for number, offset in enumerate(place.offsets()):
            plane, tap = place.at(planes, offset)[:, :, None], taps[:, block, :, number]
            if number:
                here += np.multiply(plane, tap, out=terms)
            else:
                np.multiply(plane, tap, out=here)
    return total


def _columns(
    place: Windows, padded: Array, group: int, offsets: Sequence[tuple[int, ...]]
) -> Array:
    """Returns the elements of all windows at some kernel offsets, (N, G, K * C/G, spots)."""
    batch, depth, spots = len(padded), padded.shape[1] // group, math.prod(place.out)
    if len(offsets) == 1:  # mostly a view
        return place.at(padded, offsets[0]).reshape(batch, group, depth, spots)
    columns = np.empty((batch, group, len(offsets), depth, *place.out), padded.dtype)
    for number, offset in enumerate(offsets):
        columns[:, :, number] = place.at(padded, offset).reshape(columns[:, :, 0].shape)
    return columns.reshape(batch, group, len(offsets) * depth, spots)


@kernel("ConvTranspose", why="speed")
def conv_transpose(call: Call, x: Array, w: Array, bias: Array | None = None) -> Array:
    """x (N, C, *S), w (C, M/group, *K) -> (N, M, *O). Supports grouped convolutions, which
    onnx.reference gets wrong for M/group > 1.
    """
    group = call["group"] or 1
    rank = x.ndim - 2
    strides, dilations = call["strides"] or [1] * rank, call["dilations"] or [1] * rank
    extra = call["output_padding"] or [0] * rank
    kernel_shape, spatial = w.shape[2:], x.shape[2:]
    full = [
        s * (n - 1) + e + (k - 1) * d + 1
        for s, n, e, k, d in zip(strides, spatial, extra, kernel_shape, dilations, strict=True)
    ]
    begin, out = _placement(call, full, [n * s for n, s in zip(spatial, strides, strict=True)])
    batch, depth, maps = x.shape[0], x.shape[1] // group, w.shape[1]
    # (N, G, M/G*K, S)
    products = w.reshape(group, depth, -1).swapaxes(1, 2) @ x.reshape(batch, group, depth, -1)
    products = products.reshape(batch, group * maps, *kernel_shape, *spatial)
    room = [max(f, b + o) for f, b, o in zip(full, begin, out, strict=True)]
    total = np.zeros((batch, group * maps, *room), products.dtype)
    for offset in np.ndindex(*kernel_shape):
        target = [
            slice(o * d, o * d + (n - 1) * s + 1, s)
            for o, d, n, s in zip(offset, dilations, spatial, strides, strict=True)
        ]
        total[(slice(None), slice(None), *target)] += products[(slice(None), slice(None), *offset)]
    low = [max(b, 0) for b in begin]
    y = total[(slice(None), slice(None), *(slice(b, b + o) for b, o in zip(low, out, strict=True)))]
    return y if bias is None else y + bias.reshape(1, -1, *[1] * rank)


def _placement(call: Call, full: list[int], same: list[int]) -> tuple[list[int], list[int]]:
    """Returns (crop at the beginning, output size) per axis of the full result, as the operator's
    text defines them.
    """
    rank = len(full)
    mode = call["auto_pad"] or "NOTSET"
    shape = call["output_shape"]
    if shape is None and mode in ("SAME_UPPER", "SAME_LOWER"):
        # onnxruntime and onnx's inference only crop, even if a kernel is smaller than its stride
        shape = [min(wished, f) for wished, f in zip(same, full, strict=True)]
    if shape is None:
        pads = call["pads"] if call["pads"] and mode == "NOTSET" else [0] * (2 * rank)
        return list(pads[:rank]), [f - pads[a] - pads[a + rank] for a, f in enumerate(full)]
    shape = list(shape)[-rank:]
    total = [f - s for f, s in zip(full, shape, strict=True)]
    begin = [t // 2 if mode == "SAME_UPPER" else t - t // 2 for t in total]
    return begin, shape


@kernel("ConvInteger", why="speed")
def conv_integer(
    call: Call, x: Array, w: Array, x_zero: Array | None = None, w_zero: Array | None = None
) -> Array:
    """Convolves integers; exact in float64 while the sum stays below 2**53."""
    centred = w.astype(np.float64) - (0 if w_zero is None else _per_map(w_zero, w.ndim))
    shifted = x.astype(np.float64) - (0 if x_zero is None else x_zero.astype(np.float64))
    return np.asarray(conv(call, shifted, centred), np.int32 if call.steps else np.float64)


def _per_map(value: Array, rank: int) -> Array:
    """Returns a scalar, or one value per output channel, broadcastable to the result."""
    return (
        value.astype(np.float64).reshape(-1, *[1] * (rank - 1))
        if value.size > 1
        else value.astype(np.float64).reshape(())
    )


@kernel("MaxPool", why="speed")
def max_pool(call: Call, x: Array) -> tuple[Array, ...]:
    """Returns maxima and indices. Indices count in the unpadded tensor; the first of equal elements
    wins.
    """
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
    """Reverses a MaxPool. Indices count in the output, as in onnxruntime and PyTorch, like those of
    a MaxPool of it. onnx.reference counts in a smaller tensor if output_shape is larger than
    necessary.
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
    """Averages windows. With count_include_pad, the declared padding counts, but the extra space of
    ceil_mode does not.
    """
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
    p, place = call["p"], windows(call, x.shape[2:], call["kernel_shape"])
    return np.asarray(_sum(place, np.abs(x) ** p) ** (1.0 / p))


@kernel("GlobalAveragePool", "GlobalMaxPool", why="wrong")
def global_pool(call: Call, x: Array) -> Array:
    pool = x.max if call.op_type == "GlobalMaxPool" else x.mean
    return np.asarray(pool(axis=tuple(range(2, x.ndim)), keepdims=True))


@kernel("GlobalLpPool", why="missing")
def global_lp_pool(call: Call, x: Array) -> Array:
    total = (np.abs(x) ** call["p"]).sum(axis=tuple(range(2, x.ndim)), keepdims=True)
    return np.asarray(total ** (1.0 / call["p"]))
