"""onnxruntime's own operators (com.microsoft), as its saved optimised models contain them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from onnxgrad.verify.reference.kernels.conv_and_pool import conv
from onnxgrad.verify.reference.kernels.elementwise import ACTIVATIONS, gelu, sigmoid_of
from onnxgrad.verify.reference.kernels.linear_and_quantization import gemm, matmul
from onnxgrad.verify.reference.kernels.normalization import epsilon_of
from onnxgrad.verify.reference.kernels.registry import Array, Call, Unsupported, kernel

_MS = "com.microsoft"


@kernel("FusedMatMul", "TransposeMatMul", domain=_MS, why="missing")
def fused_matmul(call: Call, a: Array, b: Array) -> Array:
    left = _arranged(a, call["transA"], call["transBatchA"])
    right = _arranged(b, call["transB"], call["transBatchB"])
    return np.asarray((1.0 if call["alpha"] is None else call["alpha"]) * matmul(call, left, right))


def _arranged(v: Array, last_two: int | None, batch: int | None) -> Array:
    """Returns (M, *batch, K) as (*batch, M, K), with the last two axes swapped; a vector stays
    unchanged.
    """
    if batch and v.ndim > 2:
        v = np.moveaxis(v, 0, -2)
    return v.swapaxes(-1, -2) if last_two and v.ndim > 1 else v


@kernel("MatMulNBits", domain=_MS, why="missing")
def matmul_nbits(
    call: Call,
    x: Array,
    q: Array,
    scales: Array,
    zero_points: Array | None = None,
    g_idx: Array | None = None,
    bias: Array | None = None,
) -> Array:
    """Returns x W^T + bias. W is (N, K), in blocks along K that share a scale and a zero point."""
    if g_idx is not None or call["weight_prepacked"]:
        raise Unsupported(f"{call.op_type} with integers in another order than rows and blocks")
    bits, k, n, block = call["bits"] or 4, call["K"], call["N"], call["block_size"]
    blocks = -(-k // block)
    zero = np.full((n, blocks), 1 << bits - 1, np.float64)
    if zero_points is not None:
        packed = zero_points.dtype == np.uint8
        zero = (_integers(zero_points, bits) if packed else zero_points).reshape(n, -1)[:, :blocks]
    w = _integers(q, bits).reshape(n, blocks, block) - zero[..., None]
    w = (w * scales.reshape(n, blocks, 1)).reshape(n, -1)[:, :k]
    return np.asarray(matmul(call, x, w.T) + (0.0 if bias is None else bias))


def _integers(packed: Array, bits: int) -> Array:
    """Returns the integers packed into bytes, lowest bits first."""
    single = np.unpackbits(packed.astype(np.uint8).reshape(-1, 1), axis=1, bitorder="little")
    return np.asarray(single.reshape(-1, bits) @ (2.0 ** np.arange(bits)))


@kernel("FusedGemm", domain=_MS, why="missing")
def fused_gemm(call: Call, a: Array, b: Array, c: Array | None = None) -> Array:
    return _activated(call, gemm(call, a, b, c), call["activation_alpha"], call["activation_beta"])


@kernel("FusedConv", domain=_MS, why="missing")
def fused_conv(
    call: Call, x: Array, w: Array, bias: Array | None = None, z: Array | None = None
) -> Array:
    y = conv(call, x, w, bias)
    parameters = call["activation_params"] or [None]
    return _activated(call, y if z is None else y + z, *parameters)


def _activated(
    call: Call, y: Array, alpha: float | None = None, beta: float | None = None
) -> Array:
    name = call["activation"] or "Identity"
    if name == "Clip":  # a missing parameter of Clip means no bound
        return np.clip(y, alpha, beta)
    if name.lower() not in _ACTIVATIONS:
        raise Unsupported(f"{call.op_type} with the activation {name!r}")
    function, first, second = _ACTIVATIONS[name.lower()]
    return np.asarray(
        function(y, first if alpha is None else alpha, second if beta is None else beta)
    )


# here x must exceed alpha; in recurrent operators it may also equal alpha
_ACTIVATIONS: dict[str, tuple[Callable[[Array, float, float], Any], float, float]] = {
    **ACTIVATIONS,
    "identity": (lambda y, a, b: y, 0.0, 0.0),
    "hardswish": (lambda y, a, b: y * np.clip(y / 6 + 0.5, 0.0, 1.0), 0.0, 0.0),
    "thresholdedrelu": (lambda y, a, b: np.where(y > a, y, 0.0), 1.0, 0.0),
}


@kernel("QuickGelu", domain=_MS, why="missing")
def quick_gelu(call: Call, x: Array) -> Array:
    return x * sigmoid_of((1.702 if call["alpha"] is None else call["alpha"]) * x)


@kernel("SkipSimplifiedLayerNormalization", domain=_MS, why="missing")
def skip_simplified(
    call: Call, x: Array, skip: Array, gamma: Array, bias: Array | None = None
) -> tuple[Array | None, ...]:
    total = x + skip if bias is None else x + skip + bias
    inverse = 1 / np.sqrt((total * total).mean(axis=-1, keepdims=True) + epsilon_of(call, 1e-12))
    return total * inverse * gamma, None, inverse, total


@kernel("EmbedLayerNormalization", domain=_MS, why="missing")
def embed_layer_normalization(call: Call, *operands: Any) -> tuple[Array, Array, Array]:
    """Returns the normalised sum, the number of ones in each row of the mask, and the sum of the
    embeddings. Some operands and the last two results are optional.
    """
    ids, segment_ids, word, position, segment, gamma, beta, mask, position_ids = operands + (
        None,
    ) * (9 - len(operands))
    total = word[ids] + (
        position[: ids.shape[1]] if position_ids is None else position[position_ids]
    )
    if segment_ids is not None and segment is not None:
        total = total + segment[segment_ids]
    centred = total - total.mean(axis=-1, keepdims=True)
    variance = (centred * centred).mean(axis=-1, keepdims=True)
    y = centred / np.sqrt(variance + epsilon_of(call, 1e-12)) * gamma + beta
    count = (
        np.zeros(len(ids), np.int32) if mask is None else (mask == 1).sum(axis=1).astype(np.int32)
    )
    return y, count, total


# the 4-bit numbers of bitsandbytes: FP4 as a sign and a magnitude, and the quantiles of NF4
_FP4 = np.array([0, 1 / 192, 2 / 3, 1, 1 / 3, 1 / 2, 1 / 6, 1 / 4])
_NF4 = [
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1.0,
]  # fmt: skip


@kernel("MatMulBnb4", domain=_MS, why="missing")
def matmul_bnb4(call: Call, x: Array, q: Array, absmax: Array) -> Array:
    """Returns x W^T. W (N, K) is flattened, with two codes in a byte, and blocks of it share a
    scale.
    """
    codes = np.stack([q >> 4, q & 15], axis=-1).reshape(-1)[: call["N"] * call["K"]]
    table = np.concatenate([_FP4, -_FP4]) if call["quant_type"] == 0 else np.asarray(_NF4)
    w = table[codes] * np.repeat(absmax, call["block_size"])[: len(codes)]
    if call["transB"] == 0:
        raise Unsupported("MatMulBnb4 with transB = 0")
    return np.asarray(matmul(call, x, w.reshape(call["N"], call["K"]).T))


@kernel("GatherBlockQuantized", domain=_MS, why="missing")
def gather_block_quantized(
    call: Call, data: Array, indices: Array, scales: Array, zero: Array | None = None
) -> Array:
    """Returns rows of (data - zero) * scale. Indices outside of the table give zeros."""
    if data.dtype == np.uint8:
        bits = 4 if call["bits"] is None else call["bits"]
        shift: Any = float(1 << bits - 1)
        if zero is not None:
            shift = _integers(zero, bits).reshape(*zero.shape[:-1], -1)
        table = _integers(data, bits).reshape(*data.shape[:-1], -1)
    else:
        table, shift = data.astype(np.float64), 0.0 if zero is None else zero.astype(np.float64)
    axis = (1 if call["quantize_axis"] is None else call["quantize_axis"]) % data.ndim
    place = np.arange(table.shape[axis]) // (call["block_size"] or 128)
    if np.ndim(shift):
        shift = np.take(shift, place, axis=axis)
    table = (table - shift) * np.take(scales, place, axis=axis)
    rows = (call["gather_axis"] or 0) % data.ndim
    y, size = np.take(table, indices, axis=rows, mode="wrap"), table.shape[rows]
    outside = (indices < -size) | (indices >= size)
    around = [1] * y.ndim
    around[rows : rows + indices.ndim] = indices.shape
    return np.where(outside.reshape(around), 0.0, y)


@kernel("GroupNorm", "SkipGroupNorm", domain=_MS, why="missing")
def group_norm(
    call: Call,
    x: Array,
    gamma: Array,
    beta: Array,
    skip: Array | None = None,
    bias: Array | None = None,
) -> tuple[Array, ...]:
    """Normalises groups of channels of the sum of the operands. Channels are the last axis, or axis
    1.
    """
    last = call["channels_last"] != 0
    total = x if last else np.moveaxis(x, 1, -1)
    if skip is not None:
        if skip.ndim == 2:
            skip = skip.reshape(len(skip), *[1] * (x.ndim - 2), -1)
        elif not last:
            skip = np.moveaxis(skip, 1, -1)
        total = total + skip + (0.0 if bias is None else bias)
    parts = np.split(total, call["groups"], axis=-1)
    over = tuple(range(1, x.ndim))
    normal = np.concatenate(
        [
            (p - p.mean(axis=over, keepdims=True))
            / np.sqrt(p.var(axis=over, keepdims=True) + epsilon_of(call))
            for p in parts
        ],
        axis=-1,
    )
    y = normal * gamma + beta
    y = y * sigmoid_of(y) if call["activation"] == 1 else y
    return tuple(v if last else np.moveaxis(v, -1, 1) for v in (y, total))[: len(call.outputs)]


@kernel("NhwcConv", domain=_MS, why="missing")
def nhwc_conv(call: Call, x: Array, w: Array, bias: Array | None = None) -> Array:
    return np.moveaxis(conv(call, *(np.moveaxis(v, -1, 1) for v in (x, w)), bias), 1, -1)


@kernel("BiasSplitGelu", domain=_MS, why="missing")
def bias_split_gelu(call: Call, x: Array, bias: Array) -> Array:
    left, right = np.split(x + bias, 2, axis=-1)
    return np.asarray(left * gelu(call, right))


@kernel("BiasSoftmax", domain=_MS, why="missing")
def bias_softmax(call: Call, x: Array, bias: Array) -> Array:
    total = x + bias
    axis = (1 if call["axis"] is None else call["axis"]) % x.ndim
    e = np.exp(total - total.max(axis=tuple(range(axis, x.ndim)), keepdims=True))
    return np.asarray(e / e.sum(axis=tuple(range(axis, x.ndim)), keepdims=True))


@kernel("BiasAdd", domain=_MS, why="missing")
def bias_add(call: Call, x: Array, bias: Array, skip: Array) -> Array:
    return np.asarray(x + bias + skip)


@kernel("GemmFastGelu", domain=_MS, why="missing")
def gemm_fast_gelu(call: Call, x: Array, w: Array, bias: Array | None = None) -> Array:
    z = x @ w if bias is None else x @ w + bias
    return np.asarray(0.5 * z * (1 + np.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3))))


@kernel("Trilu", domain=_MS, why="missing")
def trilu(call: Call, x: Array, k: Array | None = None) -> Array:
    part = np.tril if call["upper"] == 0 else np.triu
    return part(x, 0 if k is None else int(k.reshape(())))


@kernel("GatherND", domain=_MS, why="missing")
def gather_nd(call: Call, x: Array, indices: Array) -> Array:
    return np.asarray(x[tuple(np.moveaxis(indices, -1, 0))])


@kernel("ExpandDims", domain=_MS, why="missing")
def expand_dims(call: Call, x: Array, axis: Array) -> Array:
    return np.expand_dims(x, int(axis.reshape(())))


@kernel("Inverse", domain=_MS, why="missing")
def inverse(call: Call, x: Array) -> Array:
    return np.linalg.inv(x)


@kernel("CDist", domain=_MS, why="missing")
def cdist(call: Call, a: Array, b: Array) -> Array:
    if call["metric"] not in (None, "euclidean", "sqeuclidean"):
        raise Unsupported(f"CDist with the metric {call['metric']!r}")
    squares = ((a[:, None] - b) ** 2).sum(axis=-1)
    return np.asarray(np.sqrt(squares) if call["metric"] == "euclidean" else squares)
