"""Convolutions: onnx.reference loops over output positions in Python (seconds per layer); here one
matrix product per layer or kernel offset.
"""

from __future__ import annotations

import math

import numpy as np

from onnxgrad.verify.reference.kernels.registry import Array, Call, kernel
from onnxgrad.verify.reference.kernels.windows import windows

# an im2col buffer beyond this (256 MB) is replaced by one product per kernel offset
_COLUMN_ELEMENTS = 2**25


@kernel("Conv", why="speed")
def conv(call: Call, x: Array, w: Array, bias: Array | None = None) -> Array:
    """x (N, C, *S), w (M, C/group, *K) -> (N, M, *O)."""
    group = call["group"] or 1
    place = windows(call, x.shape[2:], w.shape[2:])
    padded = place.pad(x, 0.0)
    batch, maps, depth = x.shape[0], w.shape[0], w.shape[1]
    spots = math.prod(place.out)
    offsets = list(place.offsets())
    if depth == 1:  # depthwise: products of planes, nothing to add over channels
        total = np.zeros((batch, group, maps // group, *place.out), np.result_type(x, w))
        columns = w.reshape(maps, len(offsets))
        for number, offset in enumerate(offsets):
            column = columns[:, number].reshape(1, group, maps // group, *[1] * len(offset))
            total += place.at(padded, offset)[:, :, None] * column
    else:
        # (G, M/G, K, C/G)
        weight = np.moveaxis(w.reshape(group, maps // group, depth, len(offsets)), 3, 2)
        total = np.zeros((batch, group, maps // group, spots), np.result_type(x, w))
        step = max(1, _COLUMN_ELEMENTS // max(1, x.shape[0] * x.shape[1] * spots))
        for start in range(0, len(offsets), step):
            chosen = offsets[start : start + step]
            columns = np.stack(
                [place.at(padded, o).reshape(batch, group, depth, spots) for o in chosen], axis=2
            )
            part = np.ascontiguousarray(weight[:, :, start : start + step]).reshape(
                group, maps // group, -1
            )
            total += part @ columns.reshape(batch, group, len(chosen) * depth, spots)
    y = total.reshape(batch, maps, *place.out)
    return y if bias is None else y + bias.reshape(1, -1, *[1] * len(place.out))


@kernel("ConvTranspose", why="speed")
def conv_transpose(call: Call, x: Array, w: Array, bias: Array | None = None) -> Array:
    """x (N, C, *S), w (C, M/group, *K) -> (N, M, *O); grouped convolutions included, which
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
    """(how much to crop at the beginning, output size) per axis of the full result, as the
    operator's text defines them.
    """
    rank = len(full)
    mode = call["auto_pad"] or "NOTSET"
    shape = call["output_shape"]
    if shape is None and mode in ("SAME_UPPER", "SAME_LOWER"):
        # onnxruntime and onnx's inference crop, and add nothing where a kernel is below its stride
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
    """Exact in float64 while the sum stays below 2**53."""
    centred = w.astype(np.float64) - (0 if w_zero is None else _per_map(w_zero, w.ndim))
    shifted = x.astype(np.float64) - (0 if x_zero is None else x_zero.astype(np.float64))
    return np.asarray(conv(call, shifted, centred), np.int32)


def _per_map(value: Array, rank: int) -> Array:
    """A scalar, or one value per output channel."""
    return (
        value.astype(np.float64).reshape(-1, *[1] * (rank - 1))
        if value.size > 1
        else value.astype(np.float64).reshape(())
    )


@kernel("QLinearConv", why="speed")
def qlinear_conv(
    call: Call,
    x: Array,
    x_scale: Array,
    x_zero: Array,
    w: Array,
    w_scale: Array,
    w_zero: Array,
    y_scale: Array,
    y_zero: Array,
    bias: Array | None = None,
) -> Array:
    total = conv(
        call,
        x.astype(np.float64) - x_zero.astype(np.float64),
        w.astype(np.float64) - _per_map(w_zero, w.ndim),
    )
    shape = (1, -1, *[1] * (x.ndim - 2))
    if bias is not None:
        total = total + bias.astype(np.float64).reshape(shape)
    scaled = np.rint(
        total
        * (x_scale * w_scale.reshape(shape) if w_scale.size > 1 else x_scale * w_scale.reshape(()))
        / y_scale
    )
    info = np.iinfo(y_zero.dtype)
    return np.asarray(np.clip(scaled + y_zero, info.min, info.max), y_zero.dtype)
