"""Attention of onnxruntime (com.microsoft): Attention, MultiHeadAttention, GroupQueryAttention,
DecoderMaskedMultiHeadAttention, and RotaryEmbedding, as its CPU kernels compute them.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from onnxgrad.verify.reference.kernels.registry import Array, Call, Unsupported, kernel

_MS = "com.microsoft"


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
    if past_length is not None or call["do_rotary"]:
        raise Unsupported("com.microsoft::Attention with a shared cache or rotary embedding")
    third = weights.shape[1] // 3
    sizes = call["qkv_hidden_sizes"] or [third, third, third]
    projected = x @ weights if bias is None else x @ weights + bias
    q, k, v = (
        _heads(part, call["num_heads"])
        for part in np.split(projected, np.cumsum(sizes)[:2], axis=-1)
    )
    done = 0 if past is None else past.shape[3]
    if past is not None:
        k, v = (np.concatenate([old, new], axis=2) for old, new in zip(past, (k, v)))
    y, _ = _attend(call, q, k, v, mask, attention_bias, done)
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
    past_key: Array | None = None,
    past_value: Array | None = None,
    *shared: Array | None,
) -> tuple[Array, ...]:
    """query (B, S, D), key (B, L, D) and value (B, L, D_v), or both (B, N, L, H). The three biases
    are one tensor. Past keys and values (B, N, P, H) precede the new ones.
    """
    if (
        key is None
        or value is None
        or query.ndim != 3
        or key.ndim == 5
        or any(c is not None for c in shared)
    ):
        raise Unsupported("MultiHeadAttention with packed operands or a shared cache")
    q, k, v = _projected(call, query, key, value, bias)
    done = 0 if past_key is None else past_key.shape[2]
    if past_key is not None and past_value is not None:
        k, v = np.concatenate([past_key, k], axis=2), np.concatenate([past_value, v], axis=2)
    y, scores = _attend(call, q, k, v, mask, attention_bias, done)
    return y, k, v, scores


@kernel("DecoderMaskedMultiHeadAttention", domain=_MS, why="missing")
def decoder_attention(
    call: Call,
    query: Array,
    key: Array | None = None,
    value: Array | None = None,
    mask: Array | None = None,
    attention_bias: Array | None = None,
    past_key: Array | None = None,
    past_value: Array | None = None,
    past_length: Array | None = None,
    *beams_and_bias: Array | None,
) -> tuple[Array | None, ...]:
    """One step: query, key and value (B, 1, D) with caches (B, N, slots, H) that hold `past_length`
    positions, or keys and values (B, N, L, H) without caches.
    """
    beam_width, beams, bias, *_ = (*beams_and_bias, None, None, None)
    if key is None or value is None or beams is not None or beam_width is not None:
        raise Unsupported("DecoderMaskedMultiHeadAttention with packed operands or beams")
    q, k, v = _projected(call, query, key, value, bias)
    if past_key is None or past_value is None or past_length is None:
        y, scores = _attend(call, q, k, v, mask, attention_bias)
        return y, None, None, scores
    keys, values, end = past_key.copy(), past_value.copy(), int(past_length.reshape(())) + 1
    keys[:, :, end - 1 : end], values[:, :, end - 1 : end] = k, v
    y, scores = _attend(call, q, keys[:, :, :end], values[:, :, :end], mask, attention_bias)
    return y, keys, values, scores


def _projected(
    call: Call, query: Array, key: Array, value: Array, bias: Array | None
) -> list[Array]:
    """Returns heads. A bias is added to the queries, and to keys and values not yet in heads."""
    size = query.shape[2]
    if bias is not None:
        query = query + bias[:size]
        if key.ndim == 3:
            key, value = key + bias[size : 2 * size], value + bias[2 * size :]
    return [_heads(t, call["num_heads"]) for t in (query, key, value)]


def _heads(x: Array, count: int) -> Array:
    return x if x.ndim == 4 else x.reshape(*x.shape[:2], count, -1).swapaxes(1, 2)


def _attend(
    call: Call,
    q: Array,
    k: Array,
    v: Array,
    mask: Array | None,
    bias: Array | None,
    past: int = 0,
) -> tuple[Array, Array]:
    batch, _, queries, size = q.shape
    scores = np.einsum("bnsh,bnlh->bnsl", q, k) * (call["scale"] or 1 / math.sqrt(size))
    if bias is not None:
        scores = scores + bias
    if mask is not None:
        hidden = -10000.0 if call["mask_filter_value"] is None else call["mask_filter_value"]
        scores = scores + np.where(_visible(mask, batch, k.shape[2]), 0.0, hidden)
    if call["unidirectional"]:
        # the kernel does not mask the last row, which sees later keys too
        for row in range(queries - 1):
            scores[:, :, row, past + row + 1 :] = np.finfo(np.float32).min
    e = np.exp(scores - scores.max(axis=-1, keepdims=True))
    context = np.einsum("bnsl,bnlh->bsnh", e / e.sum(axis=-1, keepdims=True), v)
    return context.reshape(batch, queries, -1), scores


def _visible(mask: Array, batch: int, keys: int) -> Array:
    """Returns which keys each query sees. The mask has one element per key (B, L) or per query and
    key (B, S, L), or holds the ends (B), or the ends and starts (2 B), of the rows.
    """
    if mask.ndim > 1:
        return mask[:, None, None] > 0 if mask.ndim == 2 else mask[:, None] > 0
    seen = np.zeros((batch, 1, 1, keys), bool)
    for row in range(batch):
        seen[row, ..., mask[batch + row] if len(mask) == 2 * batch else 0 : mask[row]] = True
    return seen


@kernel("RotaryEmbedding", domain=_MS, why="missing")
def rotary_embedding(call: Call, x: Array, at: Array, cos: Array, sin: Array) -> Array:
    """x (B, S, N H) or (B, N, S, H); positions (B, S), or a single first position."""
    if call["is_packed_batching"]:
        raise Unsupported("RotaryEmbedding of packed batches")
    rotary = call["rotary_embedding_dim"] or 0
    size = x.shape[-1] // call["num_heads"] if rotary and x.ndim == 3 else 2 * cos.shape[1]
    heads = x if x.ndim == 4 else x.reshape(*x.shape[:2], -1, size).swapaxes(1, 2)
    at = at if at.ndim == 2 else np.broadcast_to(at + np.arange(heads.shape[2]), heads.shape[::2])
    y = _turned(heads, cos[at], sin[at], bool(call["interleaved"]))
    return y if x.ndim == 4 else y.swapaxes(1, 2).reshape(x.shape)


def _turned(x: Array, cos: Array, sin: Array, interleaved: bool) -> Array:
    """x (B, N, S, H): multiplies the first 2 R numbers of each head, as R complex numbers, by cos +
    i sin (B, S, R).
    """
    count, y = cos.shape[-1], x.copy()
    real = slice(0, 2 * count, 2) if interleaved else slice(0, count)
    imaginary = slice(1, 2 * count, 2) if interleaved else slice(count, 2 * count)
    z = (x[..., real] + 1j * x[..., imaginary]) * (cos + 1j * sin)[:, None]
    y[..., real], y[..., imaginary] = z.real, z.imag
    return y


# the operands of GroupQueryAttention
_GQA = (
    "query", "key", "value", "past_key", "past_value", "seqlens", "total", "cos", "sin",
    "positions", "bias", "sink", "k_scale", "v_scale", "q_norm", "k_norm", "query_lengths",
)  # fmt: skip


@kernel("GroupQueryAttention", domain=_MS, why="missing")
def group_query_attention(call: Call, *operands: Array | None) -> tuple[Array, ...]:
    """query (B, S, N H); key and value (B, S, M H), with N / M queries per key, or all packed into
    query; past keys and values (B, M, P, H). Runs batch, head and query one by one.
    """
    at: dict[str, Any] = dict.fromkeys(_GQA) | dict(zip(_GQA, operands))
    q, k, v = _prepared(call, at)
    (batch, n, queries, size), m, total = q.shape, k.shape[1], int(at["total"].reshape(()))
    prompt, added = queries == total, np.full(batch, queries)
    if at["query_lengths"] is not None:  # a chunk of queries: the rows after these are padding
        prompt, added = False, at["query_lengths"].reshape(-1)
    past = np.zeros(batch, int) if prompt else at["seqlens"].reshape(-1) + 1 - added
    if call["do_rotary"]:
        q, k = _rotated(call, at, (q, k), past, prompt)
    old = 0 if at["past_key"] is None else at["past_key"].shape[2]
    k, k_past, k_scale = _in_units(call, at, "k", k)
    v, v_past, v_scale = _in_units(call, at, "v", v)
    units = [np.zeros((batch, m, max(old, total), size)) for _ in range(2)]
    ends = at["seqlens"].reshape(-1) + 1
    for kept, cache, new in zip(units, (k_past, v_past), (k, v)):
        for b, done in enumerate(past):
            if done and cache is not None:
                first = _first(call, done, old)
                kept[b, :, first:done] = cache[b, :, : done - first]
            kept[b, :, done : done + added[b]] = new[b, :, : added[b]]
    keys, values = units[0] * k_scale, units[1] * v_scale
    y, seen = np.zeros(q.shape), np.zeros((batch, n, queries, total))
    for b, (done, last) in enumerate(zip(past, ends)):
        for head, row in np.ndindex(n, int(added[b])):
            y[b, head, row], seen[b, head, row] = _row(
                call,
                at,
                q[b, head, row],
                keys[b, head * m // n],
                values[b, head * m // n],
                (b, head, row, done, int(last), total),
            )
    caches = [_stored(call, name, unit, ends, old) for name, unit in zip("kv", units)]
    return y.swapaxes(1, 2).reshape(batch, queries, -1), *caches, seen


def _first(call: Call, end: int, slots: int) -> int:
    """Returns the position in slot 0 of a cache of `end` positions. A windowed cache drops as many
    positions at once as it has slots beyond the window.
    """
    at_once = slots - call["local_window_size"] + 1 if call["sliding_window_cache"] else 0
    return at_once * (max(end - call["local_window_size"], 0) // at_once) if at_once else 0


def _in_units(
    call: Call, at: dict[str, Any], name: str, new: Array
) -> tuple[Array, Array | None, Array | float]:
    """Returns new keys or values and past ones in multiples of their scale, and the scale."""
    past = at["past_key" if name == "k" else "past_value"]
    kind = call[f"{name}_quant_type"] or "NONE"
    if kind == "NONE":
        return new, past, 1.0
    scale, half = at[f"{name}_scale"], 1 << call["kv_cache_bit_width"] - 1
    scale = scale.reshape(1) if kind == "PER_TENSOR" else scale.reshape(1, new.shape[1], 1, -1)
    if half == 8:
        past = np.stack([past & 15, past >> 4], axis=-1).reshape(*past.shape[:-1], -1)
        past = past.astype(np.int8) - 8
    return np.clip(np.rint(new / scale), -half, half - 1), past, scale


def _stored(call: Call, name: str, units: Array, ends: Array, slots: int) -> Array:
    """Returns the cache of these multiples by position, of which a windowed one drops the first."""
    if call["sliding_window_cache"]:
        whole, units = units, np.zeros((*units.shape[:2], slots, units.shape[3]))
        for b, end in enumerate(ends):
            first = _first(call, end, slots)
            units[b, :, : end - first] = whole[b, :, first:end]
    if (call[f"{name}_quant_type"] or "NONE") == "NONE":
        return units
    if call["kv_cache_bit_width"] == 8:
        return units.astype(np.int8)
    codes = (units + 8).astype(np.uint8)
    return np.asarray(codes[..., ::2] | codes[..., 1::2] << 4)


def _rotated(
    call: Call, at: dict[str, Any], parts: tuple[Array, Array], past: Array, prompt: bool
) -> list[Array]:
    places = at["positions"]
    if places is None or prompt:
        first = 0 if places is None else places.reshape(-1)[0]
        places = np.maximum(first + past[:, None] + np.arange(parts[0].shape[2]), 0)
    cos, sin = at["cos"][places], at["sin"][places]
    return [_turned(t, cos, sin, bool(call["rotary_interleaved"])) for t in parts]


def _prepared(call: Call, at: dict[str, Any]) -> tuple[Array, Array, Array]:
    """Returns queries (B, N, S, H), and keys and values (B, M, S, H), normalised if scales are
    given.
    """
    n, m = call["num_heads"], call["kv_num_heads"]
    q, k, v = at["query"], at["key"], at["value"]
    if k is None:
        size = q.shape[2] // (n + 2 * m)
        q, k, v = np.split(q, [size * n, size * (n + m)], axis=2)
    q, k, v = _heads(q, n), _heads(k, m), _heads(v, m)
    if at["q_norm"] is not None:
        q, k = _normed(call, q, at["q_norm"], "q"), _normed(call, k, at["k_norm"], "k")
    return q, k, v


def _normed(call: Call, x: Array, scale: Array, which: str) -> Array:
    own, both = call[f"{which}_norm_epsilon"], call["qk_norm_epsilon"]
    epsilon = next((e for e in (own, both) if e is not None), 1e-6)
    return np.asarray(x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + epsilon) * scale)


def _row(
    call: Call, at: dict[str, Any], q: Array, keys: Array, values: Array, place: tuple[int, ...]
) -> tuple[Array, Array]:
    """Returns one query's result, and its scores or weights for all keys."""
    b, head, row, done, last, total = place
    last = last if call["causal"] == 0 else done + row + 1
    window = call["local_window_size"] or -1
    part = slice(max(0, last - window) if window > 0 else 0, last)
    scores = keys[part] @ q * (call["scale"] or 1 / math.sqrt(len(q)))
    if call["softcap"]:
        scores = np.tanh(scores / call["softcap"]) * call["softcap"]
    if at["bias"] is not None:
        bias = at["bias"]
        scores = scores + bias[b % len(bias), head % bias.shape[1], row, part]
    top = scores.max()
    e, rest = np.exp(scores - top), 0.0
    if at["sink"] is not None:
        rest = np.exp(at["sink"][head] - top)
    elif call["smooth_softmax"] == 1:
        rest = np.exp(-top)
    weights, shown = e / (e.sum() + rest), np.zeros(total)
    shown[part] = scores if call["qk_output"] == 1 else weights
    return weights @ values[part], shown
