"""Steps that compute wide rows and read some of them, as classifiers do. `select-rows` moves the
selection before the computation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from scripts.sweeping.graphs import BOOL, INT, Block, Dim, Value
from scripts.sweeping.steps import step

_HEADS, _SIZE = 4, 8
_WIDTH = _HEADS * _SIZE


@step(2)
def selected(g: Block) -> None:
    """Some rows of one to five layers, which mostly nothing else reads."""
    v = g.floating()
    if v is None or len(v.dims) < 2 or not isinstance(v.dims[-1], int):
        return
    made = [_wide(g, v)]
    for _ in range(g.rng.randint(1, 5)):
        layer = g.rng.choice(_LAYERS)(g, made[-1], made)
        made += [] if layer is None else [layer]
    if g.rng.random() < 0.15:
        g.values.append(g.rng.choice(made))
    if g.rng.random() < 0.3:
        _summed(g, g.rng.choice(made))
    for _ in range(g.rng.choice([1, 1, 1, 2])):
        g.rng.choice(_SELECTIONS)(g, made[-1] if g.rng.random() < 0.8 else g.rng.choice(made))


def _wide(g: Block, v: Value) -> Value:
    """Rows of 32 numbers, often many of them."""
    if g.rng.random() < 0.6:
        axis = g.rng.randrange(len(v.dims) - 1)
        parts = [v, *(g.add("Mul", [v, _number(g, v, n)], v, keep=False) for n in (-1, 2, 0.5, -2))]
        size = v.dims[axis]
        longer: Dim = 5 * size if isinstance(size, int) else g.names.new("u")
        dims = tuple(longer if i == axis else d for i, d in enumerate(v.dims))
        v = g.add("Concat", parts, replace(v, dims=dims), keep=False, axis=axis)
    return _product(g, v, _WIDTH)


def _number(g: Block, v: Value, number: float) -> Value:
    return g.names.constant(np.array(number, helper.tensor_dtype_to_np_dtype(v.dtype)), own=True)


def _product(g: Block, v: Value, width: int) -> Value:
    w = g.names.weight((int(v.dims[-1]), width), v.dtype)
    out = g.add("MatMul", [v, w], replace(v, dims=(*v.dims[:-1], width)), keep=False)
    low, high = _number(g, v, -4), _number(g, v, 4)
    return replace(g.add("Clip", [out, low, high], out, keep=False), exact=v.exact)


# ---- layers --------------------------------------------------------------------------------------


def _linear(g: Block, v: Value, made: Sequence[Value]) -> Value:
    return _product(g, v, _WIDTH)


def _unary(g: Block, v: Value, made: Sequence[Value]) -> Value:
    kinds = ["Relu", "Neg", "Tanh", "Sigmoid", "Erf", "LeakyRelu", "Identity", "Softplus"]
    kinds += ["Gelu"] if g.names.opset >= 20 else []
    return g.add(g.rng.choice(kinds), [v], replace(v, exact=False), keep=False)


def _binary(g: Block, v: Value, made: Sequence[Value]) -> Value:
    """With a value of the same sizes, or with a constant that broadcasts over any axes."""
    same = [u for u in [*made, *g.outer, *g.values] if u.dtype == v.dtype and u.dims == v.dims]
    cut = g.rng.randrange(len(v.dims) + 1)
    dims = [d if isinstance(d, int) and g.rng.random() < 0.7 else 1 for d in v.dims[cut:]]
    other = g.rng.choice(same) if g.rng.random() < 0.5 else g.names.weight(dims, v.dtype)
    op, like = g.rng.choice(["Add", "Sub", "Max", "Min", "Sum", "Mul", "Where", "PRelu"]), v
    pair = [v, other]
    if op == "PRelu":
        return g.add(op, pair, replace(like, exact=False), keep=False)
    g.rng.shuffle(pair)
    if op == "Where":
        pair.insert(0, g.add("Greater", [v, _number(g, v, 0)], replace(v, dtype=BOOL), keep=False))
    out = g.add(op, pair, replace(like, exact=False), keep=False)
    return g.add("Clip", [out, _number(g, v, -4), _number(g, v, 4)], out, keep=False)


def _normalised(g: Block, v: Value, made: Sequence[Value]) -> Value | None:
    kinds = ["LayerNormalization"] * (g.names.opset >= 17)
    kinds += ["RMSNormalization"] * (g.names.opset >= 23)
    if not kinds:
        return None
    axis = g.rng.choice([-1, -1, -2, len(v.dims) - 1, 1])
    inner = v.dims[axis:]
    if not all(isinstance(d, int) and d for d in inner):
        axis, inner = -1, v.dims[-1:]
    op, scale = g.rng.choice(kinds), g.names.weight([int(d) for d in inner], v.dtype)
    shift = [scale] if op[0] == "L" and g.rng.random() < 0.5 else []
    like = replace(v, exact=False)
    return g.add(op, [v, scale, *shift], like, keep=False, axis=axis, epsilon=0.5)


def _soft(g: Block, v: Value, made: Sequence[Value]) -> Value:
    axis = g.rng.choice([-1, 0, len(v.dims) - 1, -2])
    return g.add("Softmax", [v], replace(v, exact=False), keep=False, axis=axis)


def _centred(g: Block, v: Value, made: Sequence[Value]) -> Value | None:
    """x - max x along any axis of known size."""
    known = [i for i, d in enumerate(v.dims) if isinstance(d, int) and d]
    axis = g.rng.choice(known)
    as_input = g.names.opset >= 18
    operands = [v, g.ints(axis)] if as_input else [v]
    attrs: dict[str, Any] = {} if as_input else {"axes": [axis]}
    dims = tuple(1 if i == axis else d for i, d in enumerate(v.dims))
    like = replace(v, dims=dims)
    most = g.add("ReduceMax", operands, like, keep=False, keepdims=1, **attrs)
    return g.add("Sub", [v, most], replace(v, exact=False), keep=False)


def _turned(g: Block, v: Value, made: Sequence[Value]) -> Value | None:
    if len(v.dims) < 3:
        return None
    dims = (v.dims[1], v.dims[0], *v.dims[2:])
    perm = [1, 0, *range(2, len(dims))]
    return g.add("Transpose", [v], replace(v, dims=dims), keep=False, perm=perm)


def _attention(g: Block, v: Value, made: Sequence[Value]) -> Value | None:
    """Attention of all rows to those of another value, with any mask that the sizes allow."""
    if g.names.opset < 23 or len(v.dims) != 3 or 0 in v.dims:
        return None
    fits = [u for u in made if len(u.dims) == 3 and u.dims[0] == v.dims[0] and 0 not in u.dims]
    rows, groups = g.rng.choice(fits), g.rng.choice([1, 1, 2, 4])
    key, value = (_product(g, rows, _WIDTH // groups) for _ in range(2))
    b, s, t = v.dims[0], v.dims[1], rows.dims[1]
    lead = g.rng.choice([(), (1,), (1, 1), (b, 1), (b, _HEADS), (1, _HEADS)])
    sizes = (*lead, s, t)
    attrs: dict[str, Any] = {"q_num_heads": _HEADS, "kv_num_heads": _HEADS // groups}
    attrs |= g.rng.choice([{}, {}, {"softcap": 2.0}, {"scale": 0.25}, {"is_causal": 1}])
    mask, known = None, [d for d in sizes if isinstance(d, int)]
    if len(known) == len(sizes) and g.rng.random() < 0.6:
        if g.rng.random() < 0.5:
            mask = g.names.weight(known, v.dtype)
        else:  # each query has a key
            seen = g.names.array(known, BOOL)
            seen[..., 0] = True
            mask = g.names.constant(seen)
    past: list[Value | None] = []
    if isinstance(b, int) and mask is None and g.rng.random() < 0.2:
        past = [None, *[g.names.weight((b, _HEADS // groups, 2, _SIZE), v.dtype)] * 2]
    operands = [v, key, value, *([mask] if mask is not None else past)]
    like = replace(v, exact=False)
    if past:
        longer = replace(like, dims=(b, _HEADS // groups, g.names.new("u"), _SIZE))
        return g.several("Attention", operands, [like, longer, longer], **attrs)[0]
    return g.add("Attention", operands, like, keep=False, **attrs)


# ---- selections ----------------------------------------------------------------------------------


def _index(g: Block, size: Dim, dims: Sequence[int]) -> Value:
    """Indices of any order and sign, fixed or computed."""
    most = size if isinstance(size, int) and g.rng.random() < 0.7 else 1
    picked = [g.rng.randrange(-most, most) for _ in range(int(np.prod(dims, dtype=int)))]
    fixed = g.names.constant(np.array(picked, np.int64).reshape(dims))
    if g.rng.random() < 0.6:
        return fixed
    v = g.floating(exact=True)
    if v is None or (v.dims and not all(isinstance(d, int) and d for d in v.dims)):
        return fixed
    flat = g.add("Reshape", [v, g.ints(-1)], replace(v, dims=(g.names.new("u"),)), keep=False)
    first = g.names.constant(np.zeros(dims, np.int64))
    some = g.add("Gather", [flat, first], replace(v, dims=tuple(dims)), keep=False)
    whole = g.add("Cast", [some], replace(some, dtype=INT), keep=False, to=INT)
    sign = g.add("Sign", [whole], whole, keep=False)
    return g.add("Min", [sign, g.names.constant(np.int64(0))], sign, keep=False)


def _summed(g: Block, v: Value) -> None:
    """A sum over the first or last axis, whose operands are those of a Gather of such a row."""
    axis = g.rng.choice([0, -1])
    dims = (1, *v.dims[1:]) if axis == 0 else (*v.dims[:-1], 1)
    g.add("ReduceSum", [v, g.ints(axis)], replace(v, dims=dims), keepdims=1)


def _gathered(g: Block, v: Value) -> None:
    axis = g.rng.randrange(len(v.dims))
    if v.dims[axis] == 0:
        return
    dims = tuple(g.rng.choice([(), (1,), (1,), (2,), (1, 1), (2, 1), (1, 2, 1)]))
    index = _index(g, v.dims[axis], dims)
    like = replace(v, dims=(*v.dims[:axis], *dims, *v.dims[axis + 1 :]))
    at = axis if g.rng.random() < 0.5 else axis - len(v.dims)
    out = g.add("Gather", [v, index], like, axis=at)
    if g.rng.random() < 0.3:
        _read_again(g, v, out, index, axis=at)


def _read_again(g: Block, v: Value, like: Value, index: Value, axis: int) -> None:
    """The same rows of another value of these sizes, or of the same one."""
    other = g.pick(lambda u: u.dtype == v.dtype and u.dims == v.dims) or v
    g.add("Gather", [other, index], like, axis=axis)


def _gathered_as_matrix(g: Block, v: Value) -> None:
    if not all(isinstance(d, int) and d for d in v.dims[:-1]) and g.rng.random() < 0.5:
        return
    rows, width = g.names.new("u"), v.dims[-1]
    known = [d for d in v.dims[:-1] if isinstance(d, int)]
    count = int(np.prod(known)) if len(known) == len(v.dims) - 1 else 1
    like = replace(v, dims=(rows, width))
    if g.rng.random() < 0.5:
        axis = g.rng.choice([len(v.dims) - 1, -1])
        flat = g.add("Flatten", [v], like, keep=False, axis=axis)
    else:
        sizes = g.ints(-1, int(width)) if g.rng.random() < 0.7 else g.ints(count, -1)
        flat = g.add("Reshape", [v, sizes], like, keep=False)
    dims = g.rng.choice([(), (1,), (2,), (1, 2)])
    index = _index(g, max(count, 1), dims)
    g.add("Gather", [flat, index], replace(v, dims=(*dims, width)), axis=0)


def _gathered_by_tuples(g: Block, v: Value) -> None:
    """GatherND, with fixed batches or with the rows that a batch has most of."""
    known = [d for d in v.dims if isinstance(d, int) and d]
    batch = g.rng.choice([0, 0, 1])
    depth = g.rng.randint(1, max(1, len(v.dims) - 1 - batch))
    if len(known) < len(v.dims) or batch + depth > len(v.dims):
        return
    lead = v.dims[:batch]
    many = g.rng.choice([(), (1,), (2,), (2, 1)])
    dims = (*[int(d) for d in lead], *many)
    columns = [
        np.array(g.rng.choices(range(-n, n), k=int(np.prod(dims, dtype=int))), np.int64)
        for n in (int(d) for d in v.dims[batch : batch + depth])
    ]
    index = g.names.constant(np.stack(columns, -1).reshape(*dims, depth))
    like = replace(v, dims=(*dims, *v.dims[batch + depth :]))
    g.add("GatherND", [v, index], like, batch_dims=batch)


def _most(g: Block, v: Value) -> None:
    """The row of each batch at which the first value is largest, as CLIP reads it."""
    if len(v.dims) != 3 or not all(isinstance(d, int) and d for d in v.dims):
        return
    b, s, width = (int(d) for d in v.dims)
    scores = g.names.constant(np.argsort(g.names.array((b, s), TensorProto.FLOAT)))
    place = Value("", INT, (b,))
    at = g.add("ArgMax", [scores], place, keep=False, axis=1, keepdims=0)
    how = g.rng.randrange(3)
    if how == 0:
        starts = g.names.constant(np.arange(b) * s)
        index = g.add("Add", [at, starts], place, keep=False)
        flat = g.add("Reshape", [v, g.ints(-1, width)], replace(v, dims=(b * s, width)), keep=False)
        g.add("Gather", [flat, index], replace(v, dims=(b, width)), axis=0)
        return
    wide = g.add("Unsqueeze", [at, g.ints(1)], replace(place, dims=(b, 1)), keep=False)
    if how == 1:
        batches = g.names.constant(np.arange(b)[:, None])
        pairs = g.add("Concat", [batches, wide], replace(place, dims=(b, 2)), keep=False, axis=1)
        g.add("GatherND", [v, pairs], replace(v, dims=(b, width)))
    else:
        g.add("GatherND", [v, wide], replace(v, dims=(b, width)), batch_dims=1)


def _sliced(g: Block, v: Value) -> None:
    axis = g.rng.randrange(len(v.dims))
    if v.dims[axis] == 0:
        return
    start, end = g.rng.choice([(0, 1), (-1, 2**40), (0, 1)])
    one = replace(v, dims=tuple(1 if i == axis else d for i, d in enumerate(v.dims)))
    bounds = [g.ints(n) for n in (start, end, axis)]
    row = g.add("Slice", [v, *bounds], one, keep=False)
    if g.rng.random() < 0.7:
        fewer = replace(v, dims=(*v.dims[:axis], *v.dims[axis + 1 :]))
        row = g.add("Squeeze", [row, g.ints(axis)], fewer, keep=False)
    g.values.append(row)


_Layer = Callable[[Block, Value, Sequence[Value]], Value | None]
_LAYERS: tuple[_Layer, ...] = (
    *[_linear] * 4, *[_unary] * 3, *[_binary] * 5, *[_normalised] * 3, _soft, _centred, _turned,
    *[_attention] * 3,
)  # fmt: skip
_SELECTIONS: tuple[Callable[[Block, Value], None], ...] = (
    *[_gathered] * 4, *[_gathered_as_matrix] * 2, *[_gathered_by_tuples] * 2, *[_most] * 2, _sliced,
)  # fmt: skip
