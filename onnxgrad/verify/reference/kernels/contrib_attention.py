"""onnxruntime's Attention and MultiHeadAttention (com.microsoft) without a cache, as its CPU
kernels compute them.
"""

from __future__ import annotations

import math

import numpy as np

from onnxgrad.verify.reference.kernels.registry import Array, Call, Unsupported, kernel

_MS = "com.microsoft"


@kernel("Attention", domain=_MS, why="missing")
def attention(
    call: Call, x: Array, weights: Array, bias: Array | None = None, mask: Array | None = None,
    past: Array | None = None, attention_bias: Array | None = None,
    past_length: Array | None = None,
) -> tuple[Array, Array | None]:  # fmt: skip
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
    call: Call, query: Array, key: Array | None = None, value: Array | None = None,
    bias: Array | None = None, mask: Array | None = None, attention_bias: Array | None = None,
    *cache: Array | None,
) -> tuple[Array, ...]:  # fmt: skip
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
