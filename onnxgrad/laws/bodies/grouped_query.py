"""Bodies of onnxruntime's GroupQueryAttention and RotaryEmbedding (com.microsoft), which compute
what its CPU kernels compute. Generative models use these operators.

Shapes: B batch, S queries, P slots of past keys, T slots of all keys, N heads, M heads of keys and
values, H the size of a head, R half the number of rotated elements.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from onnxgrad.frozen import frozen
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission.arithmetic import size_along
from onnxgrad.ir.emission.emit import constant
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var
from onnxgrad.laws.bodies.attention import count, heads, lowest, scale_of
from onnxgrad.laws.bodies.calls import Bodies, decline
from onnxgrad.laws.bodies.fused import root_mean_square

# the dtype of a quantised cache, by kv_cache_bit_width
_INTEGERS = {4: TensorProto.UINT8, 8: TensorProto.INT8}
_END = np.iinfo(np.int64).max


def _rotary_embedding(
    x: Var,
    positions: Var,
    cos: Var,
    sin: Var,
    *,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
    interleaved: int = 0,
    binding: Binding,
) -> Var:
    """x (B, S, N H) or (B, N, S, H), positions (B, S) or the first one (1), cos and sin (.., R)."""
    decline(binding, "is_packed_batching", bool(binding.attr("is_packed_batching", 0)))
    unknown = x.rank not in (3, 4) or positions.rank not in (1, 2)
    decline(binding, "an operand of unknown rank", unknown)
    if x.rank == 4:
        by_head = x
    elif rotary_embedding_dim:
        by_head = heads(x, num_heads)
    else:
        split = op.Reshape(x, op.Concat([0, 0, -1], op.Mul(size_along(cos, 1), 2), axis=0))
        by_head = op.Transpose(split, perm=[0, 2, 1, 3])
    if positions.rank == 1:
        positions = op.Unsqueeze(positions + op.Range(0, count(by_head, 2), 1), [0])
    y = _turned(by_head, op.Gather(cos, positions), op.Gather(sin, positions), interleaved)
    return y if x.rank == 4 else op.Reshape(op.Transpose(y, perm=[0, 2, 1, 3]), [0, 0, -1])


def _turned(x: Var, cos: Var, sin: Var, interleaved: int) -> Var:
    """Rotates x (B, N, S, H): the first 2 R columns, as R complex numbers, are multiplied by
    cos + i sin (B, S, R).
    """
    half = size_along(cos, 2)
    both = op.Add(half, half)
    if interleaved:
        a, b = (op.Slice(x, [first], both, [3], [2]) for first in (0, 1))
    else:
        a, b = op.Slice(x, [0], half, [3]), op.Slice(x, half, both, [3])
    c, s = op.Unsqueeze(cos, [1]), op.Unsqueeze(sin, [1])
    real, imaginary = a * c - b * s, a * s + b * c
    if interleaved:
        pairs = op.Concat(*(op.Unsqueeze(v, [4]) for v in (real, imaginary)), axis=4)
        parts = [op.Reshape(pairs, [0, 0, 0, -1])]
    else:
        parts = [real, imaginary]
    width, turned = (None if v.shape is None else v.shape[-1] for v in (x, cos))
    if not isinstance(turned, int) or width != 2 * turned:
        parts.append(op.Slice(x, both, [_END], [3]))
    return op.Concat(*parts, axis=3)


def _group_query_attention(
    query: Var,
    key: Var | None,
    value: Var | None,
    past_key: Var | None,
    past_value: Var | None,
    seqlens: Var,
    total: Var,
    cos: Var | None,
    sin: Var | None,
    positions: Var | None,
    *,
    num_heads: int,
    kv_num_heads: int,
    binding: Binding,
) -> tuple[Var | None, ...]:
    """query (B, S, N H), key and value (B, S, M H), or all three in query; past ones (B, M, P, H).

    seqlens: (B), the number of keys in each row minus one; total: the largest number of keys.
    """
    q, k, v = _parts(query, key, value, num_heads, kv_num_heads, binding)
    lengths = op.Reshape(op.Cast(seqlens, to=TensorProto.INT64), [-1, 1])
    most = op.Reshape(op.Cast(total, to=TensorProto.INT64), [])
    short = bool(binding.attr("sliding_window_cache", 0))
    decline(binding, "sliding_window_cache without a cache", short and past_key is None)
    window = binding.attr("local_window_size", -1) if short else 0
    place = _Places(count(query, 1), lengths, most, past_key, binding.operand(16), window)
    if binding.attr("do_rotary", 0):
        at = place.of_rows if positions is None else place.given(positions)
        c, s = op.Gather(cos, at), op.Gather(sin, at)
        q, k = (_turned(v, c, s, binding.attr("rotary_interleaved", 0)) for v in (q, k))
    units = [_units_of(name, binding) for name in ("k", "v")]
    caches = [
        place.cached(past, new, unit)
        for past, new, unit in zip((past_key, past_value), (k, v), units)
    ]
    k, v = (unit.times(cache, q) for unit, cache in zip(units, caches))
    y, shown = _attend(q, k, v, place, binding)
    return y, *(unit.stored(place.kept(cache)) for unit, cache in zip(units, caches)), shown


@frozen
class _Units:
    """A cache's numbers as multiples of a scale: of `bits` bits, two of 4 bits in a byte. Without a
    scale, the numbers themselves.
    """

    scale: Var | None
    bits: int

    def read(self, past: Var) -> Var:
        """Returns the multiples in a cache, as floats."""
        if self.scale is None:
            return past
        if self.bits == 8:
            return op.Cast(past, to=self.scale.dtype)
        parts = op.BitwiseAnd(past, np.uint8(15)), op.BitShift(past, np.uint8(4), direction="RIGHT")
        both = op.Concat(*(op.Unsqueeze(part, [4]) for part in parts), axis=4)
        return op.Cast(op.Reshape(both, [0, 0, 0, -1]), to=self.scale.dtype) - 8.0

    def rounded(self, x: Var) -> Var:
        """Returns the nearest multiples. `--ste` passes the pair straight through."""
        if self.scale is None:
            return x
        steps = op.Cast(x, to=self.scale.dtype) / self.scale
        one = constant(1.0, self.scale.dtype)
        integers = op.QuantizeLinear(steps, one, constant(np.int8(0)))
        y = op.DequantizeLinear(integers, one, constant(np.int8(0)))
        return op.Clip(y, -8.0, 7.0) if self.bits == 4 else y

    def times(self, multiples: Var, like: Var) -> Var:
        """Returns the numbers in the dtype of `like`."""
        if self.scale is None:
            return multiples
        return op.Cast(multiples * self.scale, to=like.dtype)

    def stored(self, multiples: Var) -> Var:
        """Returns the cache of these multiples."""
        if self.scale is None:
            return multiples
        if self.bits == 8:
            return op.Cast(multiples, to=TensorProto.INT8)
        pairs = op.Reshape(multiples + 8.0, [0, 0, 0, -1, 2])
        low, high = op.Split(pairs, axis=4, num_outputs=2, outputs=2)
        return op.Cast(op.Squeeze(low + high * 16.0, [4]), to=TensorProto.UINT8)


def _units_of(name: str, binding: Binding) -> _Units:
    """Returns the units of the cache of keys or values: one scale, or one per channel."""
    kind = binding.attr(f"{name}_quant_type", "NONE")
    if kind == "NONE":
        return _Units(None, 0)
    scale, past = (binding.operand(i + (name == "v")) for i in (12, 3))
    bits = binding.attr("kv_cache_bit_width", 0)
    known = past is not None and past.dtype == _INTEGERS.get(bits)
    decline(binding, f"{name}_quant_type {kind} of a cache {past}", scale is None or not known)
    shape = [1] if kind == "PER_TENSOR" else [1, binding.attr("kv_num_heads"), 1, -1]
    return _Units(op.Reshape(scale, shape), bits)


def _parts(
    query: Var, key: Var | None, value: Var | None, n: int, m: int, binding: Binding
) -> tuple[Var, Var, Var]:
    """Returns queries (B, N, S, H), and keys and values (B, M, S, H)."""
    if key is None or value is None:
        q, k, v = op.Split(heads(query, n + 2 * m), [n, m, m], axis=1, outputs=3)
    else:
        q, k, v = heads(query, n), heads(key, m), heads(value, m)
    return _normed(q, 14, "q", binding), _normed(k, 15, "k", binding), v


def _normed(x: Var, place: int, name: str, binding: Binding) -> Var:
    """Divides each head by its root mean square, if the call has a scale for it."""
    scale, both = binding.operand(place), binding.attr("qk_norm_epsilon", 1e-6)
    if scale is None:
        return x
    return root_mean_square(x, scale, binding.attr(f"{name}_norm_epsilon", both), [-1])[0]


class _Places:
    """The positions of rows and keys: new ones of row b begin after `done[b]` past ones.

    valid: how many rows of each batch entry are no padding, for a chunk of queries. window: if not
    0, the cache keeps only positions from `first` on, the last `window` ones among them.
    """

    def __init__(
        self,
        rows: Var,
        lengths: Var,
        most: Var,
        cache: Var | None,
        valid: Var | None,
        window: int,
    ) -> None:
        self.window = window
        self.lengths, self.rows, self.added = lengths, rows, rows
        self.index = op.Unsqueeze(op.Range(0, rows, 1), [0])  # (1, S)
        # the first prompt fills the cache from its beginning
        self.prompt = op.Equal(rows, most)
        if valid is not None:
            self.added = op.Reshape(op.Cast(valid, to=TensorProto.INT64), [-1, 1])
            self.prompt = constant(False)
        self.done: Var | None = None
        self.of_rows = self.index
        self.total = rows
        if cache is not None and (cache.shape is None or cache.shape[2] != 0):
            self.done = op.Where(self.prompt, 0, lengths + 1 - self.added)  # (B, 1)
            self.of_rows = op.Max(self.index + self.done, 0)
            self.slots = count(cache, 2)
            self.total = most if window else op.Max(self.slots, most)
        self.most = most
        self.keys = op.Unsqueeze(op.Range(0, self.total, 1), [0])  # (1, T)

    def given(self, positions: Var) -> Var:
        """Returns the positions of an operand; the first prompt counts from the first position."""
        first = op.Slice(op.Reshape(positions, [-1]), [0], [1], [0])
        counted = first + self.index
        return counted if self.done is None else op.Where(self.prompt, counted, positions)

    def cached(self, past: Var | None, new: Var, unit: _Units) -> Var:
        """Returns (B, M, T, H): the past keys or values, then the new ones, then zeros."""
        if past is None or self.done is None:
            return unit.rounded(new)
        past = unit.read(past)
        at = self.keys - self.done  # (B, T)
        inside = op.And(op.GreaterOrEqual(at, 0), op.Less(at, self.added))
        # onnxruntime 1.32 moves quantisations across a Transpose, which loses the type of zero
        moved = unit.rounded(_rows(new, at, self.rows))
        if self.window:
            old = _rows(past, self.keys - self._first(self.done), self.slots)
        else:
            room = op.Unsqueeze(self.total - self.slots, [0])
            old = op.Pad(past, op.Concat([0, 0, 0, 0, 0, 0], room, [0], axis=0))
        before = op.Where(op.Unsqueeze(op.Less(self.keys, self.done), [1, 3]), old, 0.0)
        return op.Where(op.Unsqueeze(inside, [1, 3]), moved, before)

    def kept(self, cache: Var) -> Var:
        """Returns what the call returns of (B, M, T, H): as many slots as the past cache has."""
        if not self.window or self.done is None:
            return cache
        end = self.lengths + 1
        at = self._first(end) + op.Unsqueeze(op.Range(0, self.slots, 1), [0])
        return op.Where(op.Unsqueeze(op.Less(at, end), [1, 3]), _rows(cache, at, self.total), 0.0)

    def _first(self, end: Var) -> Var:
        """Returns the first position in a cache of `end` positions, which drops several at once."""
        at_once = self.slots - (self.window - 1)
        return op.Div(op.Max(end - self.window, 0), at_once) * at_once

    def over_slots(self, bias: Var) -> Var:
        """Pads a bias of the keys in use with zeros for unused slots."""
        if self.done is None:
            return bias
        room = op.Unsqueeze(self.total - self.most, [0])
        return op.Pad(bias, op.Concat([0, 0, 0, 0, 0, 0, 0], room, axis=0))

    def in_use(self, shown: Var) -> Var:
        """Returns the columns of the keys in use."""
        return (
            shown if self.done is None else op.Slice(shown, [0], op.Unsqueeze(self.most, [0]), [3])
        )

    def visible(self, window: int, causal: int) -> Var:
        """Returns the keys that each row sees, (B or 1, 1, S, T)."""
        keys = op.Unsqueeze(self.keys, [1])
        if not causal:
            return op.Unsqueeze(op.LessOrEqual(keys, op.Unsqueeze(self.lengths, [2])), [1])
        last = self.index if self.done is None else self.index + self.done
        last = op.Unsqueeze(last, [2])
        seen = op.LessOrEqual(keys, last)
        if window > 0:
            seen = op.And(seen, op.Greater(keys, last - window))
        return op.Unsqueeze(seen, [1])


def _rows(x: Var, at: Var, rows: Var) -> Var:
    """Returns the rows `at` (B, T) of x (B, M, rows, H)."""
    index = op.Unsqueeze(op.Clip(at, 0, rows - 1), [2])
    by_row = op.Transpose(x, perm=[0, 2, 1, 3])
    return op.Transpose(op.GatherND(by_row, index, batch_dims=1), perm=[0, 2, 1, 3])


def _attend(q: Var, k: Var, v: Var, place: _Places, binding: Binding) -> tuple[Var, Var | None]:
    """Returns y (B, S, N H), and the scores or weights if the call has them as a result."""
    n, m = binding.attr("num_heads"), binding.attr("kv_num_heads")
    # the N / M queries of each key are adjacent
    scores = op.Reshape(q * scale_of(q, binding.attr("scale", None)), [0, m, -1, 0]) @ k.mT
    scores = op.Reshape(scores, op.Concat([0, n], op.Unsqueeze(place.rows, [0]), [-1], axis=0))
    if cap := binding.attr("softcap", 0.0):
        scores = op.Tanh(scores * (1.0 / cap)) * cap
    bias, sink = binding.operand(10), binding.operand(11)
    seen = place.visible(binding.attr("local_window_size", -1), binding.attr("causal", 1))
    if bias is not None:
        scores = scores + place.over_slots(bias)
    hidden = op.Where(seen, scores, lowest(q))
    if sink is not None or binding.attr("smooth_softmax", -1) == 1:
        weights = _beside_a_sink(hidden, constant(0.0, q.dtype) if sink is None else sink)
    else:
        weights = op.Softmax(hidden, axis=-1)
    context = op.Reshape(op.Reshape(weights, [0, m, -1, 0]) @ v, [0, n, -1, 0])
    y = op.Reshape(op.Transpose(context, perm=[0, 2, 1, 3]), [0, 0, -1])
    if place.added is not place.rows:
        y = op.Where(op.Unsqueeze(op.Less(place.index, place.added), [2]), y, 0.0)
    if binding.result(3) is None:
        return y, None
    shown = op.Where(seen, scores, 0.0) if binding.attr("qk_output", 0) == 1 else weights
    return y, place.in_use(shown)


def _beside_a_sink(scores: Var, sink: Var) -> Var:
    """Returns the softmax over the scores and the sink, without the sink's column."""
    like = op.Slice(scores, [0], [1], [3])
    sinks = op.Expand(op.Reshape(sink, [1, -1, 1, 1]), op.Shape(like))
    weights = op.Softmax(op.Concat(scores, sinks, axis=3), axis=-1)
    return op.Slice(weights, [0], [-1], [3])


BODIES: Bodies = {
    "RotaryEmbedding": (_rotary_embedding, "without packed batches"),
    "GroupQueryAttention": (
        _group_query_attention,
        "quantised caches: zero w.r.t. new keys and values unless --ste is given",
    ),
}
