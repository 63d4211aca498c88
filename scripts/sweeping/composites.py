"""Steps of a random graph that resemble the chains of exporters: activations, normalisations,
rotations and attention, which `raise-composites` replaces by operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from scripts.sweeping.graphs import BOOL, Block, Value
from scripts.sweeping.steps import step


def _number(g: Block, v: Value, number: float) -> Value:
    """Returns a constant as files store it: a scalar, or with axes of size 1."""
    return _scalar(g, v, number, [] if g.rng.random() < 0.8 else [1] * len(v.dims))


def _scalar(g: Block, v: Value, number: float, dims: Sequence[int] = ()) -> Value:
    kind = helper.tensor_dtype_to_np_dtype(v.dtype)
    return g.names.constant(np.full(dims, number, kind), own=True)


def _mix(g: Block, op: str, a: Value, b: Value, like: Value | None = None) -> Value:
    """Adds a commutative operator with its operands in random order."""
    pair = [a, b]
    g.rng.shuffle(pair)
    return g.add(op, pair, replace(like or a, exact=False), keep=False)


def _slip(g: Block) -> bool:
    """Whether this chain should deviate from the operator in one place."""
    return g.rng.random() < 0.15


@step()
def activation(g: Block) -> None:
    """Gelu, by erf and by tanh, HardSigmoid and HardSwish."""
    v = g.floating()
    if v is None:
        return
    v = replace(v, exact=False)
    kind = g.rng.choice(["erf", "tanh", "hard sigmoid", "hard swish"])
    if kind.startswith("hard"):
        moved = _mix(g, "Add", v, _number(g, v, 3 if not _slip(g) else 2))
        clipped = g.add("Clip", [moved, _scalar(g, v, 0), _scalar(g, v, 6)], v, keep=False)
        inner = _mix(g, "Mul", v, clipped) if kind == "hard swish" else clipped
        by = g.rng.choice(["Div", "Mul"])
        g.add(by, [inner, _number(g, v, 6 if by == "Div" else 1 / 6)], v)
        return
    half, one = _number(g, v, 0.5 if not _slip(g) else 1), _number(g, v, 1)
    if kind == "erf":
        by = g.rng.choice(["Div", "Mul"])
        root = _number(g, v, np.sqrt(2) if by == "Div" else np.sqrt(0.5))
        inner = g.add("Erf", [g.add(by, [v, root], v, keep=False)], v, keep=False)
    else:
        cube = g.add("Pow", [v, _number(g, v, 3)], v, keep=False)
        bent = _mix(g, "Add", v, _mix(g, "Mul", cube, _number(g, v, 0.044715)))
        slope = _mix(g, "Mul", bent, _number(g, v, np.sqrt(2 / np.pi)))
        inner = g.add("Tanh", [slope], v, keep=False)
    factors = [v, half, _mix(g, "Add", inner, one)]
    g.rng.shuffle(factors)
    g.values.append(_mix(g, "Mul", factors[0], _mix(g, "Mul", factors[1], factors[2], v), v))


@step()
def exponentials(g: Block) -> None:
    """exp(x - max x) / sum exp(x - max x), along the last axis or another."""
    v = g.floating()
    if v is None or not v.dims or not isinstance(v.dims[-1], int):
        return
    v = replace(v, exact=False)
    axis = -1 if not _slip(g) else 0
    largest = _reduced(g, "ReduceMax", v, [axis])
    power = g.add("Exp", [g.add("Sub", [v, largest], v, keep=False)], v, keep=False)
    total = _reduced(g, "ReduceSum", power, [axis])
    g.add("Div", [power, total], v)


@step(2)
def normalised(g: Block) -> None:
    """x / sqrt(mean(x x) + eps) w, where x may have its own mean taken away, and a bias added."""
    v = g.floating()
    if v is None or len(v.dims) < 2 or not isinstance(v.dims[-1], int):
        return
    v, narrow = replace(v, exact=False), v.dtype
    if narrow == TensorProto.FLOAT16 and g.rng.random() < 0.7:
        wide = replace(v, dtype=TensorProto.FLOAT)
        v = g.add("Cast", [v], wide, keep=False, to=TensorProto.FLOAT)
    rank = len(v.dims)
    known = isinstance(v.dims[-2], int) and rank > 2
    axes = [-1] if not known or g.rng.random() < 0.7 else [-2, -1]
    if _slip(g):
        axes = [g.rng.randrange(rank)]
    x = (
        g.add("Sub", [v, _reduced(g, "ReduceMean", v, axes)], v, keep=False)
        if g.rng.random() < 0.5
        else v
    )
    square = (
        g.add("Pow", [x, _number(g, v, 2)], v, keep=False)
        if g.rng.random() < 0.5
        else g.add("Mul", [x, x], v, keep=False)
    )
    mean = _reduced(g, "ReduceMean", square, axes if not _slip(g) else [0])
    moment = _mix(g, "Add", mean, _number(g, mean, g.rng.choice([1e-3, 0.5])), mean)
    root = g.add("Sqrt", [moment], moment, keep=False)
    how = g.rng.randrange(3)
    if how == 0:
        out = g.add("Div", [x, root], v, keep=False)
    elif how == 1:
        out = _mix(g, "Mul", x, g.add("Reciprocal", [root], root, keep=False), v)
    else:
        out = _mix(g, "Mul", x, g.add("Div", [_scalar(g, v, 1), root], root, keep=False), v)
    shape = tuple(int(d) for d in v.dims[-len(axes) :] if isinstance(d, int))
    if _slip(g):
        shape = shape[-1:]
    if v.dtype != narrow:
        out = g.add("Cast", [out], replace(out, dtype=narrow), keep=False, to=narrow)
    out = _mix(g, "Mul", out, g.names.weight(shape, narrow))
    if g.rng.random() < 0.3:
        out = _mix(g, "Add", out, g.names.weight(shape, narrow))
    g.values.append(out)


def _reduced(g: Block, op: str, v: Value, axes: Sequence[int]) -> Value:
    """Adds a reduction over axes that stay as 1; older opsets have them as an attribute."""
    at = {a % len(v.dims) for a in axes}
    like = replace(v, dims=tuple(1 if i in at else d for i, d in enumerate(v.dims)))
    if op == "ReduceSum" or g.names.opset >= 18:
        return g.add(op, [v, g.ints(*axes)], like, keep=False, keepdims=1)
    return g.add(op, [v], like, keep=False, axes=list(axes), keepdims=1)


def _rows(g: Block, width: int, batch: Any = None) -> Value | None:
    """(batch, rows, width): a product of something with a weight, as queries and keys are. There
    may be none of a size that depends on data, which onnxruntime's Attention refuses.
    """
    v = g.pick(
        lambda u: (
            u.dtype == g.names.dtype
            and len(u.dims) == 3
            and isinstance(u.dims[2], int)
            and all(isinstance(d, int) or d in ("N", "S") for d in u.dims)
            and (batch is None or u.dims[0] == batch)
        )
    )
    if v is None:
        return None
    w = g.names.weight((int(v.dims[2]), width), v.dtype)
    return g.add("MatMul", [_finite(g, v), w], replace(v, dims=(*v.dims[:2], width)), keep=False)


def _finite(g: Block, v: Value) -> Value:
    """Replaces NaN and infinities, on which a chain and its operator may differ."""
    zero, low, high = (_scalar(g, v, n) for n in (0, -4, 4))
    bad = g.add("IsNaN", [v], replace(v, dtype=BOOL), keep=False)
    known = g.add("Where", [bad, zero, v], v, keep=False)
    return g.add("Clip", [known, low, high], v, keep=False)


def _split(g: Block, rows: Value, heads: int, width: int) -> Value:
    """(batch, heads, rows, width) of rows."""
    b, n, _ = rows.dims
    four = replace(rows, dims=(b, n, heads, width))
    apart = g.add("Reshape", [rows, g.ints(0, 0, heads, width)], four, keep=False)
    turned = replace(rows, dims=(b, heads, n, width))
    return g.add("Transpose", [apart], turned, keep=False, perm=[0, 2, 1, 3])


def _rotated(g: Block, v: Value) -> Value:
    """x cos + concat(-x2, x1) sin, with tables of two equal halves, or nearly."""
    n, width = v.dims[2], int(v.dims[3])
    if width % 2 or not isinstance(n, int):
        return v
    half = width // 2
    kind = helper.tensor_dtype_to_np_dtype(v.dtype)
    tables = []
    for _ in range(2):
        first = np.array(g.rng.choices([-1, -0.5, 0.5, 1], k=n * half), kind).reshape(n, half)
        table = np.concatenate([first, -first if _slip(g) else first], axis=1)
        tables.append(g.names.constant(table[None, None] if g.rng.random() < 0.5 else table))

    def part(start: int, end: int) -> Value:
        like = replace(v, dims=(*v.dims[:3], half))
        ends = [g.ints(start), g.ints(end), g.ints(3 if g.rng.random() < 0.5 else -1)]
        return g.add("Slice", [v, *ends], like, keep=False)

    second, first = part(half, g.rng.choice([width, 1 << 40])), part(0, half)
    if _slip(g):
        second, first = first, second
    negative = g.add("Neg", [second], second, keep=False)
    turned = g.add("Concat", [negative, first], v, keep=False, axis=-1)
    return _mix(g, "Add", _mix(g, "Mul", v, tables[0], v), _mix(g, "Mul", turned, tables[1], v))


def _masked(g: Block, scores: Value) -> Value:
    """The scores with a mask added, or replaced where a mask is."""
    n, m = scores.dims[2:]
    kind = helper.tensor_dtype_to_np_dtype(scores.dtype)
    roll = g.rng.random()
    if not (isinstance(n, int) and isinstance(m, int)) or roll < 0.3:
        return scores
    causal = np.tril(np.ones((n, m), bool))
    if roll < 0.4:  # rows that are masked completely
        causal[g.rng.randrange(n)] = False
    low = g.rng.choice([-1e4, -1e9, np.finfo(kind).min, -np.inf] if kind != np.float16 else [-1e4])
    lead = g.rng.choice([(), (1, 1)])
    if roll < 0.7:
        mask = np.where(causal, 0, low).astype(kind)
        return _mix(g, "Add", scores, g.names.constant(mask.reshape(*lead, n, m)), scores)
    if roll < 0.85:
        like = replace(scores, dims=(n, m), exact=True)
        made = g.names.constant(g.names.array((n, m), scores.dtype))
        where = g.add("Greater", [made, _number(g, like, 0)], replace(like, dtype=BOOL), keep=False)
        pair = [_scalar(g, scores, 0), _scalar(g, scores, low)]
        g.rng.shuffle(pair)
        mask = g.add("Where", [where, *pair], like, keep=False)
        return _mix(g, "Add", scores, mask, scores)
    keep = g.names.constant(causal.reshape(*lead, n, m))
    return g.add("Where", [keep, scores, _scalar(g, scores, low)], scores, keep=False)


def _scaled(g: Block, v: Value, factor: float) -> Value:
    by = g.rng.choice(["Mul", "Div"])
    number = _number(g, v, factor if by == "Mul" else 1 / factor)
    return _mix(g, "Mul", v, number) if by == "Mul" else g.add(by, [v, number], v, keep=False)


@step(3)
def attention(g: Block) -> None:
    """softmax(scale q k^T + mask) v over heads that are split from rows and joined again."""
    heads, width, groups = g.rng.choice([(2, 2, 1), (1, 2, 1), (2, 4, 2), (3, 1, 1)])
    q = _rows(g, heads * width)
    k = None if q is None else _rows(g, heads // groups * width, q.dims[0])
    v = None if k is None else _rows(g, heads // groups * width, k.dims[0])
    if q is None or k is None or v is None or k.dims[:2] != v.dims[:2]:
        return
    counts = (heads, heads // groups, heads // groups)
    query, key, value = (
        replace(_split(g, u, n, width), exact=False) for u, n in zip((q, k, v), counts, strict=True)
    )
    if g.rng.random() < 0.4:
        query, key = _rotated(g, query), _rotated(g, key)
    if groups > 1:
        key, value = _repeated(g, key, groups), _repeated(g, value, groups)
    b, h, n, m = *query.dims[:3], key.dims[2]
    like = replace(query, dims=(b, h, n, m))
    where, scale = g.rng.choice(["q", "both", "scores", "none"]), g.rng.choice([0.5, width**-0.5])
    if where in ("q", "both"):
        query = _scaled(g, query, scale)
    turned = g.add("Transpose", [key], replace(key, dims=(b, h, width, m)), keep=False,
                   perm=[0, 1, 3, 2])  # fmt: skip
    if where == "both":
        turned = _scaled(g, turned, scale)
    scores = g.add("MatMul", [query, turned], like, keep=False)
    scores = _masked(g, _scaled(g, scores, scale) if where == "scores" else scores)
    weights = g.add("Softmax", [scores], like, keep=False, axis=2 if _slip(g) else -1)
    if g.rng.random() < 0.3:
        bad = g.add("IsNaN", [weights], replace(weights, dtype=BOOL), keep=False)
        weights = g.add("Where", [bad, _scalar(g, query, 0), weights], weights, keep=False)
    if _slip(g):
        g.values.append(weights)
    out = g.add("MatMul", [weights, value], replace(query, dims=(b, h, n, width)), keep=False)
    if g.rng.random() < 0.8:
        joined = replace(out, dims=(b, n, h, width))
        turned = g.add("Transpose", [out], joined, keep=False, perm=[0, 2, 1, 3])
        whole = replace(out, dims=(b, n, heads * width))
        out = g.add("Reshape", [turned, g.ints(0, 0, heads * width)], whole, keep=False)
    g.values.append(out)


def _repeated(g: Block, v: Value, times: int) -> Value:
    """Repeats each head, as grouped queries need."""
    b, h, n, w = v.dims
    if not (isinstance(b, int) and isinstance(n, int) and isinstance(h, int)):
        sizes = g.ints(1, 1, times, 1, 1)
    else:
        sizes = g.ints(b, h, times, n, int(w))
    five = g.add("Unsqueeze", [v, g.ints(2)], replace(v, dims=(b, h, 1, n, w)), keep=False)
    wide = g.add("Expand", [five, sizes], replace(v, dims=(b, h, times, n, w)), keep=False)
    like = replace(v, dims=(b, int(h) * times, n, w))
    return g.add("Reshape", [wide, g.ints(0, int(h) * times, -1, int(w))], like, keep=False)
