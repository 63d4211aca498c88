"""onnxruntime's own operators (com.microsoft) that its saved optimised models hold."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from onnxgrad.verify.reference.kernels.conv_and_pool import conv
from onnxgrad.verify.reference.kernels.elementwise import ACTIVATIONS, sigmoid_of
from onnxgrad.verify.reference.kernels.linear_and_quantization import gemm, matmul, saturated
from onnxgrad.verify.reference.kernels.normalization import epsilon_of
from onnxgrad.verify.reference.kernels.registry import Array, Call, Unsupported, kernel

_MS = "com.microsoft"


@kernel("FusedMatMul", "TransposeMatMul", domain=_MS, why="missing")
def fused_matmul(call: Call, a: Array, b: Array) -> Array:
    left = _arranged(a, call["transA"], call["transBatchA"])
    right = _arranged(b, call["transB"], call["transBatchB"])
    return np.asarray((1.0 if call["alpha"] is None else call["alpha"]) * matmul(call, left, right))


def _arranged(v: Array, last_two: int | None, batch: int | None) -> Array:
    """(M, *batch, K) as (*batch, M, K), and the last two axes swapped; a vector stays as it is."""
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
    """x W^T + bias; W is (N, K), in blocks along K that share a scale and a zero point."""
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
    """The integers that share bytes, lowest bits first."""
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
    if name == "Clip":  # the only one whose missing numbers mean none
        return np.clip(y, alpha, beta)
    if name.lower() not in _ACTIVATIONS:
        raise Unsupported(f"{call.op_type} with the activation {name!r}")
    function, first, second = _ACTIVATIONS[name.lower()]
    return np.asarray(
        function(y, first if alpha is None else alpha, second if beta is None else beta)
    )


# these take what is above alpha, where recurrent operators also take what equals it
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
    embeddings. Some operands may be left out, and so may the last two.
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


@kernel("QLinearAdd", "QLinearMul", domain=_MS, why="missing")
def qlinear_binary(call: Call, *operands: Any) -> Array:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = (
        0.0 if v is None else v.astype(np.float64) for v in (*operands, None)[:8]
    )
    left, right = (a - a_zero) * a_scale, (b - b_zero) * b_scale
    value = left + right if call.op_type == "QLinearAdd" else left * right
    return saturated(np.rint(value / y_scale) + y_zero, operands[0].dtype)


@kernel("Attention", domain=_MS, why="missing")
def attention(
    call: Call,
    x: Array,
    weights: Array,
    bias: Array | None = None,
    mask: Array | None = None,
    past: Array | None = None,
    attention_bias: Array | None = None,
    past_length: Array | None = None,
) -> tuple[Array, Array | None]:
    """x (B, S, E), weights (E, D + D + D_v)."""
    if past is not None or past_length is not None or call["do_rotary"]:
        raise Unsupported("com.microsoft::Attention with a cache or rotary embedding")
    third = weights.shape[1] // 3
    sizes = call["qkv_hidden_sizes"] or [third, third, third]
    projected = x @ weights if bias is None else x @ weights + bias
    q, k, v = (
        _heads(part, call["num_heads"])
        for part in np.split(projected, np.cumsum(sizes)[:2], axis=-1)
    )
    y, _ = _attend(call, q, k, v, mask, attention_bias)
    return y, np.stack([k, v]) if k.shape == v.shape else None


@kernel("MultiHeadAttention", domain=_MS, why="missing")
def multi_head_attention(
    call: Call,
    query: Array,
    key: Array | None = None,
    value: Array | None = None,
    bias: Array | None = None,
    mask: Array | None = None,
    attention_bias: Array | None = None,
    *cache: Array | None,
) -> tuple[Array, ...]:
    """query (B, S, D), key (B, L, D) and value (B, L, D_v), or both (B, N, L, H); the bias in
    one piece.
    """
    if (
        key is None
        or value is None
        or query.ndim != 3
        or key.ndim == 5
        or any(c is not None for c in cache)
    ):
        raise Unsupported("MultiHeadAttention with packed operands or a cache")
    if bias is not None and key.ndim == 4:
        raise Unsupported("MultiHeadAttention with a bias and keys split into heads")
    if bias is not None:
        size = query.shape[2]
        query, key, value = (
            query + bias[:size],
            key + bias[size : 2 * size],
            value + bias[2 * size :],
        )
    q, k, v = (_heads(t, call["num_heads"]) for t in (query, key, value))
    y, scores = _attend(call, q, k, v, mask, attention_bias)
    return y, k, v, scores


def _heads(x: Array, count: int) -> Array:
    return x if x.ndim == 4 else x.reshape(*x.shape[:2], count, -1).swapaxes(1, 2)


def _attend(
    call: Call, q: Array, k: Array, v: Array, mask: Array | None, bias: Array | None
) -> tuple[Array, Array]:
    batch, _, queries, size = q.shape
    scores = np.einsum("bnsh,bnlh->bnsl", q, k) * (call["scale"] or 1 / math.sqrt(size))
    if bias is not None:
        scores = scores + bias
    if mask is not None:
        hidden = -10000.0 if call["mask_filter_value"] is None else call["mask_filter_value"]
        scores = scores + np.where(_visible(mask, batch, k.shape[2]), 0.0, hidden)
    if call["unidirectional"]:
        # the kernel leaves the last row out, so it sees later keys too
        for row in range(queries - 1):
            scores[:, :, row, row + 1 :] = np.finfo(np.float32).min
    e = np.exp(scores - scores.max(axis=-1, keepdims=True))
    context = np.einsum("bnsl,bnlh->bsnh", e / e.sum(axis=-1, keepdims=True), v)
    return context.reshape(batch, queries, -1), scores


def _visible(mask: Array, batch: int, keys: int) -> Array:
    """A mask per key (B, L) or per query and key (B, S, L); or ends (B), or ends and starts (2
    B), of the rows.
    """
    if mask.ndim > 1:
        return mask[:, None, None] > 0 if mask.ndim == 2 else mask[:, None] > 0
    seen = np.zeros((batch, 1, 1, keys), bool)
    for row in range(batch):
        seen[row, ..., mask[batch + row] if len(mask) == 2 * batch else 0 : mask[row]] = True
    return seen
