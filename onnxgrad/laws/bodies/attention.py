"""Bodies of onnxruntime's Attention, MultiHeadAttention and DecoderMaskedMultiHeadAttention
(com.microsoft), which compute what its CPU kernels compute.

Shapes: B batch, S queries, L keys, P of them past (a cache), N heads, H the size of a head,
D = N H. Shared caches of Attention and MultiHeadAttention, rotary embedding within Attention,
packed projections and beams raise InputError.
"""

from __future__ import annotations

import math
from typing import cast

import numpy as np
from onnx import TensorProto

from onnxgrad.errors import InputError
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission.arithmetic import plus
from onnxgrad.ir.emission.emit import constant
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import numpy_dtype, same_dim
from onnxgrad.ir.var import Var
from onnxgrad.laws.bodies.calls import Bodies, decline

_FILTER = -10000.0


def _attention(
    x: Var,
    weights: Var,
    bias: Var | None,
    mask: Var | None,
    past: Var | None,
    attention_bias: Var | None,
    *,
    num_heads: int,
    binding: Binding,
) -> tuple[Var | None, ...]:
    """Projects x (B, S, E) by weights (E, D + D + D_v), with heads side by side, and applies
    self-attention.
    """
    decline(binding, "a shared cache of keys and values", binding.operand(6) is not None)
    decline(binding, "do_rotary", bool(binding.attr("do_rotary", 0)))
    sizes = binding.attr("qkv_hidden_sizes", None)
    projected = plus(x @ weights, bias)
    parts = op.Split(projected, list(sizes) if sizes else None, axis=-1, outputs=3)
    q, k, v = (heads(part, num_heads) for part in parts)
    if past is not None:
        before = op.Split(past, axis=0, num_outputs=2, outputs=2)
        k, v = (op.Concat(op.Squeeze(old, [0]), new, axis=2) for old, new in zip(before, (k, v)))
    y, _ = _attend(q, k, v, mask, attention_bias, binding, None if past is None else (past, 3))
    if binding.result(1) is None:
        return (y,)
    return y, op.Concat(op.Unsqueeze(k, [0]), op.Unsqueeze(v, [0]), axis=0)


def _multi_head_attention(
    query: Var,
    key: Var | None,
    value: Var | None,
    bias: Var | None,
    mask: Var | None,
    attention_bias: Var | None,
    *,
    num_heads: int,
    binding: Binding,
) -> tuple[Var | None, ...]:
    """query (B, S, D); key (B, L, D) and value (B, L, D_v), or both (B, N, L, H); bias (D + D +
    D_v). Past keys and values (B, N, P, H) precede the new ones.
    """
    past_key, past_value, *shared = (binding.operand(i) for i in range(6, 10))
    decline(binding, "a shared cache of keys and values", any(v is not None for v in shared))
    if (
        key is None
        or value is None
        or query.rank != 3
        or key.rank not in (3, 4)
        or value.rank != key.rank
    ):
        decline(binding, "packed operands, or operands of unknown rank,", True)
        raise InputError(f"no gradient of '{binding}'")
    q, k, v = _projected(query, key, value, bias, num_heads)
    if past_key is None or past_value is None:
        past = None
    else:
        past = past_key, 2
        k, v = op.Concat(past_key, k, axis=2), op.Concat(past_value, v, axis=2)
    y, scores = _attend(q, k, v, mask, attention_bias, binding, past)
    return y, k, v, scores


def _projected(
    query: Var, key: Var, value: Var, bias: Var | None, number: int
) -> tuple[Var, Var, Var]:
    """Returns heads of queries, keys and values plus their bias. Keys and values that arrive in
    heads, as those of cross-attention do, have none added.
    """
    if bias is not None:
        # an explicit size: D may be known at run time only
        size = op.Shape(query, start=2, end=3)
        query = query + op.Slice(bias, [0], size, [0])
        if key.rank == 3:
            key = key + op.Slice(bias, size, size + size, [0])
            value = value + op.Slice(bias, size + size, [np.iinfo(np.int64).max], [0])
    k, v = (part if part.rank == 4 else heads(part, number) for part in (key, value))
    return heads(query, number), k, v


def _decoder_attention(
    query: Var,
    key: Var | None,
    value: Var | None,
    mask: Var | None,
    attention_bias: Var | None,
    past_key: Var | None,
    past_value: Var | None,
    past_length: Var | None,
    beam_width: Var | None,
    beams: Var | None,
    bias: Var | None,
    *,
    num_heads: int,
    binding: Binding,
) -> tuple[Var | None, ...]:
    """Self-attention: query, key and value (B, 1, D) of one step, written into place P of caches
    (B, N, slots, H). Cross-attention: query (B, 1, D), key and value (B, N, L, H), and no cache.
    """
    decline(binding, "beams", beams is not None or beam_width is not None)
    packed = key is None or value is None or query.rank != 3 or key.rank not in (3, 4)
    decline(binding, "packed operands, or operands of unknown rank,", packed)
    q, k, v = _projected(query, cast(Var, key), cast(Var, value), bias, num_heads)
    if past_key is None or past_value is None or past_length is None:
        y, scores = _attend(q, k, v, mask, attention_bias, binding, None)
        return y, None, None, scores
    place = op.Reshape(op.Cast(past_length, to=TensorProto.INT64), [1])
    after = op.Add(place, 1)
    caches = past_key, past_value
    known = [
        op.Concat(op.Slice(old, [0], place, [2]), new, axis=2) for old, new in zip(caches, (k, v))
    ]
    y, scores = _attend(q, known[0], known[1], mask, attention_bias, binding, None)
    whole = [
        op.Concat(part, op.Slice(old, after, [np.iinfo(np.int64).max], [2]), axis=2)
        for part, old in zip(known, caches)
    ]
    return y, *whole, scores


def _attend(
    q: Var,
    k: Var,
    v: Var,
    mask: Var | None,
    bias: Var | None,
    binding: Binding,
    past: tuple[Var, int] | None,
) -> tuple[Var, Var]:
    """Returns softmax(scale q k^T + bias + masks) v, (B, S, N H_v), and the operand of the softmax.

    q: (B, N, S, H), k: (B, N, L, H), v: (B, N, L, H_v). past: a value, and the axis that counts its
    keys from the cache.
    """
    scores = plus(
        (q * scale_of(q, binding.attr("scale", None))) @ op.Transpose(k, perm=[0, 1, 3, 2]), bias
    )
    if mask is not None:
        visible, fill = _visible(mask, q, k, binding), binding.attr("mask_filter_value", _FILTER)
        scores = scores + op.Where(visible, constant(0.0, q.dtype), constant(fill, q.dtype))
    if binding.attr("unidirectional", 0):
        scores = op.Where(_not_later(q, k, past), scores, lowest(q))
    context = op.Transpose(op.Softmax(scores, axis=-1) @ v, perm=[0, 2, 1, 3])
    n, h = (context.shape or (None,) * 4)[2:]
    return op.Reshape(
        context, [0, 0, n * h if isinstance(n, int) and isinstance(h, int) else -1]
    ), scores


def heads(x: Var, number: int) -> Var:
    """Splits (B, S, N H) into heads (B, N, S, H)."""
    size = None if x.shape is None else x.shape[-1]
    split = op.Reshape(x, [0, 0, number, size // number if isinstance(size, int) else -1])
    return op.Transpose(split, perm=[0, 2, 1, 3])


def scale_of(q: Var, given: float | None) -> float | Var:
    """Returns the factor of the scores: 1 / sqrt(H) unless given (0 counts as not given)."""
    if given:
        return given
    size = None if q.shape is None else q.shape[-1]
    if isinstance(size, int):
        return 1.0 / math.sqrt(size)
    return op.Reciprocal(op.Sqrt(op.Cast(op.Shape(q, start=3), to=q.dtype)))


def _visible(mask: Var, q: Var, k: Var, binding: Binding) -> Var:
    """Returns which keys a query sees: a bool tensor that broadcasts to (B, N, S, L).

    A mask (B, L) or (B, S, L) has positive numbers at visible keys. A mask (B) holds the end of
    each row of keys, and a mask (2 B) the ends and then the starts. For a mask of 3 B + 2
    numbers, the CPU kernel reads only the first B, the end positions.
    """
    if mask.rank in (2, 3):
        return op.Unsqueeze(op.Greater(mask, 0), [1, 2] if mask.rank == 2 else [1])
    decline(binding, f"a mask of type {mask.type}", mask.rank != 1)
    batch = op.Shape(q, start=0, end=1)
    places = op.Range(0, op.Squeeze(op.Shape(k, start=2, end=3), [0]), 1)
    given = op.Cast(mask, to=TensorProto.INT64)
    inside = op.Less(places, op.Unsqueeze(op.Slice(given, [0], batch, [0]), [1]))
    starts = _starts(given, q, batch)
    if starts is not None:
        inside = op.And(inside, op.GreaterOrEqual(places, op.Unsqueeze(starts, [1])))
    return op.Unsqueeze(inside, [1, 2])


def _starts(mask: Var, q: Var, batch: Var) -> Var | None:
    """Returns the second half of a mask of 2 B numbers.

    Returns zeros (or None) for a mask of another length, which may be known at run time only.
    """
    length = None if mask.shape is None else mask.shape[0]
    count = None if q.shape is None else q.shape[0]
    if length is not None and count is not None and same_dim(length, count):
        return None
    if isinstance(length, int) and isinstance(count, int):
        return op.Slice(mask, [count], [2 * count], [0]) if length == 2 * count else None
    enough = op.Concat(mask, op.Expand(constant([0], TensorProto.INT64), batch), axis=0)
    found = op.Slice(enough, batch, batch + batch, [0])
    two = op.Equal(op.Shape(mask), batch + batch)
    return op.Where(two, found, constant(0, TensorProto.INT64))


def _not_later(q: Var, k: Var, past: tuple[Var, int] | None) -> Var:
    """Returns the causal mask (S, L): query i sees the past keys and new keys up to i.

    The last query sees all keys, also those that exceed S.
    """
    cached = [] if past is None else [past]
    sizes = [None if v.shape is None else v.shape[a] for v, a in ((q, 2), (k, 2), *cached)]
    known = [n for n in sizes if isinstance(n, int)]
    if len(known) == len(sizes):
        seen = np.tri(known[0], known[1], sum(known[2:]), dtype=bool)
        seen[-1:] = True
        return constant(seen)
    queries, keys, *before = (count(v, a) for v, a in ((q, 2), (k, 2), *cached))
    rows = op.Unsqueeze(op.Range(0, queries, 1), [1])
    seen_last = plus(rows, *before)
    return op.Or(op.LessOrEqual(op.Range(0, keys, 1), seen_last), op.Equal(rows, queries - 1))


def count(v: Var, axis: int) -> Var:
    """Returns the size of an axis as an integer scalar."""
    return op.Squeeze(op.Shape(v, start=axis, end=axis + 1), [0])


def lowest(like: Var) -> float:
    """Returns the lowest float16 if `like` is float16, else the lowest float32.

    numpy has no bfloat16, where the lowest float32 would round to -inf.
    """
    half = numpy_dtype(like.dtype or TensorProto.FLOAT) == np.float16
    return float(np.finfo(np.float16 if half else np.float32).min)


BODIES: Bodies = {
    "Attention": (_attention, "without do_rotary, shared caches and 4-D masks"),
    "MultiHeadAttention": (_multi_head_attention, "without shared caches and packed operands"),
    "DecoderMaskedMultiHeadAttention": (_decoder_attention, "without beams and packed operands"),
}
