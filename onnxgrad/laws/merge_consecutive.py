"""Merges two operators in a row: Relu and Clip, Min and Max, Ceil of Ceil, Gather of Gather, Slice
of Slice, Concat of Concat, Pad before Conv and AveragePool. Also removes a Where that always
chooses the same side.

Relu and Clip both propagate NaN and treat zeros alike, so one of them equals the two bit for bit.
Pad does not move into MaxPool, which reads the lowest finite value (onnxruntime) or -inf (ONNX)
beyond the edge: a window that contains only -inf shows the difference.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, numpy_helper

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import broadcast_shapes, numpy_dtype, same_shape
from onnxgrad.ir.var import Var
from onnxgrad.laws.constant_values import filling
from onnxgrad.laws.remove_noops import x_or_identity
from onnxgrad.rewrite.pattern import Each, P, capture
from onnxgrad.rewrite.trace import decline, decline_if
from onnxgrad.rewrite.worklist import Measure, count, rewrite

x, a, b, c, d, y, i, j, p, q, w, v, axes = capture("x a b c d y i j p q w v axes")

# numpy and onnxruntime agree on these
_DTYPES = frozenset({TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16})
# the integer dtypes for which onnxruntime has kernels of Clip, Min and Max
_INTEGERS = frozenset({
    TensorProto.INT8, TensorProto.UINT8, TensorProto.INT32, TensorProto.UINT32, TensorProto.INT64,
    TensorProto.UINT64,
})  # fmt: skip


_WHOLE = ("Ceil", "Floor", "Round")
_ONCE = ("Abs", "Relu", "Sign")


@rewrite(P.any_of(*_WHOLE)(P.any_of(*_WHOLE)(x).named("inner")), shrinks=count(*_WHOLE))
def rounding_of_rounding(inner: Binding, root: Binding) -> Any:
    """Ceil(Floor(x)) = Floor(x), and so for any two of Ceil, Floor and Round: whole numbers stay"""
    return x_or_identity(root, inner.out)


@rewrite(P.any_of(*_ONCE)(P.any_of(*_ONCE)(x).named("inner")), shrinks=count(*_ONCE))
def same_again(inner: Binding, root: Binding) -> Any:
    """f(f(x)) = f(x), where f is Relu, Abs or Sign"""
    return x_or_identity(root, inner.out) if inner.op == root.op else None


@rewrite(
    P.Clip(P.Clip(x, a.maybe, b.maybe).named("inner"), a.maybe, b.maybe), shrinks=count("Clip")
)
def clip_again(x: Var, inner: Binding, root: Binding) -> Any:
    """Clip(Clip(x, a, b), a, b) = Clip(x, a, b), of integers: no bound is NaN, or zero of either
    sign
    """
    return x_or_identity(root, inner.out) if root.version >= 12 and x.dtype in _INTEGERS else None


@rewrite(P.Relu(P.Clip(x, a.maybe, b.maybe).only.named("inner")), shrinks=count("Relu"))
def relu_of_clip(x: Var, inner: Binding, root: Binding) -> Any:
    """Relu(Clip(x, a, b)) = Clip(x, max(a, 0), b)"""
    return _clipped(x, inner, _bounds(inner), (0.0, None))


@rewrite(P.Clip(P.Relu(x).only, a.maybe, b.maybe), shrinks=count("Relu"))
def clip_of_relu(x: Var, root: Binding) -> Any:
    """Clip(Relu(x), a, b) = Clip(x, max(a, 0), b)"""
    return _clipped(x, root, (0.0, None), _bounds(root))


@rewrite(
    P.Clip(P.Clip(x, a.maybe, b.maybe).only.named("inner"), c.maybe, d.maybe), shrinks=count("Clip")
)
def clip_of_clip(x: Var, inner: Binding, root: Binding) -> Any:
    """Clip(Clip(x, a, b), c, d) = Clip(x, max(a, c), min(b, d)), for constant bounds whose
    intervals meet
    """
    return _clipped(x, root, _bounds(inner), _bounds(root))


@rewrite(
    P.Min(P.Max(x, a.const).only, b.const) | P.Max(P.Min(x, b.const).only, a.const),
    shrinks=count("Min", "Max"),
)
def min_of_max(x: Var, a: Var, b: Var, root: Binding) -> Any:
    """Min(Max(x, a), b) = Max(Min(x, b), a) = Clip(x, a, b), for numbers a <= b

    Max(-0.0, 0.0) has either sign, in onnxruntime by the place of the element in memory; Clip
    returns -0.0 there.
    """
    decline_if(
        root.version < 12 or x.dtype not in _DTYPES | _INTEGERS,
        "not a type that both Clip and Max have since opset 12",
    )
    low, high = a.const, b.const
    if low is None or high is None or a.shape not in ((), (1,)) or b.shape not in ((), (1,)):
        return decline("a bound is not a number")
    decline_if(
        not low.item() <= high.item() or ((a.rank or b.rank) and not x.rank),
        "the bounds are not in order, or broadcast x",
    )
    return op.Clip(x, low.reshape(()), high.reshape(()))


# the lower and the upper bound; None if there is none
_Bounds = tuple[Any, Any]


def _bounds(clip: Binding) -> _Bounds:
    """The constant bounds of a Clip. Raises Decline."""
    if clip.version < 11:
        return clip.attr("min"), clip.attr("max")
    found = []
    for v in (clip.operand(1), clip.operand(2)):
        value = None if v is None or v.shape not in ((), (1,)) else v.const
        decline_if(v is not None and value is None, "a bound is not a constant")
        found.append(None if value is None else value.item())
    return found[0], found[1]


def _clipped(x: Var, clip: Binding, inner: _Bounds, outer: _Bounds) -> Any:
    """Clip(x) to both intervals, at the opset of `clip`."""
    decline_if(
        x.dtype not in _DTYPES, "not a floating-point type whose Clip and Relu are known to agree"
    )
    lows, highs = ([v for v in pair if v is not None] for pair in zip(inner, outer))
    low, high = max(lows, default=None), min(highs, default=None)
    in_order = all(_in_order(bounds, x.dtype) for bounds in (inner, outer, (low, high)))
    decline_if(
        not in_order or _signs(lows) > 1 or _signs(highs) > 1,
        "the intervals do not meet, or zeros of both signs are bounds",
    )
    if clip.version < 11:
        return op.Clip(x, **{name: v for name, v in (("min", low), ("max", high)) if v is not None})
    kind = numpy_dtype(x.dtype)
    return op.Clip(x, *(None if v is None else np.asarray(v, kind) for v in (low, high)))


def _in_order(bounds: Any, dtype: int) -> bool:
    """Whether the bounds are numbers, and the lower one is below the upper one. An absent bound is
    the extreme of the dtype.
    """
    extreme: Any = np.finfo(numpy_dtype(dtype))
    low, high = (
        e if v is None else v for v, e in zip(bounds, (float(extreme.min), float(extreme.max)))
    )
    return bool(low < high)  # false for NaN as well


def _signs(bounds: list[Any]) -> int:
    """The number of different zeros (0.0 and -0.0) among the bounds."""
    return len({bool(np.signbit(v)) for v in bounds if v == 0})


@rewrite(P.Gather(P.Gather(x, i.const, axis=p).only, j.const, axis=q), shrinks=count("Gather"))
def gather_of_gather(x: Var, i: Var, j: Var, p: int, q: int, root: Binding) -> Any:
    """Gather(Gather(x, i), j) = Gather(x, i[j]), for constant indices along one axis, i a vector"""
    inner = root.inputs[0]
    rank = None if inner is None else inner.rank
    if not rank or i.rank != 1 or p % rank != q % rank:
        return None
    first, second = i.const, j.const
    if first is None or second is None:
        return None
    decline_if(
        any(not -first.size <= k < first.size for k in second.reshape(-1).tolist()),
        "an index is out of range",
    )
    return op.Gather(x, np.asarray(first[second]), axis=p)


def _slices_behind(b: Binding | None) -> int:
    """How many Slices in a row compute the operand of this one; 0 for another operator."""
    found = -1
    while b is not None and b.is_op("Slice"):
        found, b = found + 1, None if b.inputs[0] is None else b.inputs[0].definition
    return max(found, 0)


SLICES_OF_SLICES = Measure(
    "Slices behind Slices", lambda block: sum(_slices_behind(b) for b in block.walk())
)


@rewrite(
    P.Slice(P.Slice(x, a, b, c.maybe, d.maybe).named("inner"), i, j, v.maybe, w.maybe),
    shrinks=SLICES_OF_SLICES,
)
def slice_of_slice(x: Var, inner: Binding, root: Binding) -> Any:
    """x[a:b, ...][..., c:d] = x[a:b, ..., c:d], for constant bounds along different axes

    Each reader of x[a:b, ...] is such a slice, so that none needs it.
    """
    y = inner.out
    if y.returned or not all(u.is_op("Slice") and u.inputs[0] is y for u in y.users):
        return None
    first = sliced(inner, x.rank)
    for user in y.users:
        second = sliced(user, x.rank)
        if first is None or second is None:
            return decline("a bound is computed, or the axes are unknown")
        decline_if(not set(first[2]).isdisjoint(second[2]), "both cut one axis")
    both = zip(first or (), sliced(root, x.rank) or (), strict=True)
    return op.Slice(x, *(np.array([*p, *q], np.int64) for p, q in both))


def sliced(b: Binding, rank: int | None) -> list[list[int]] | None:
    """The starts, ends, axes (not negative) and steps of a Slice, if all are constant."""
    given = [b.operand(k) for k in range(1, 5)]
    vectors = [None if v is None else v.ints for v in given]
    starts, ends, axes, steps = vectors
    if starts is None or ends is None or len(starts) != len(ends):
        return None
    axes = tuple(range(len(starts))) if given[2] is None else axes
    steps = (1,) * len(starts) if given[3] is None else steps
    if axes is None or steps is None or not len(axes) == len(steps) == len(starts):
        return None
    if rank is None or not all(-rank <= k < rank for k in axes):
        return None
    return [[*starts], [*ends], [k % rank for k in axes], [*steps]]


@rewrite(P.Concat(Each(x), axis=p), shrinks=count("Concat"))
def concat_of_concat(x: list[Var], p: int, root: Binding) -> Any:
    """Concat(Concat(a, b), c) = Concat(a, b, c) along one axis, where nothing else reads the
    inner one
    """
    rank = root.out.rank
    flat = [u for v in x for u in _parts(v, root, p, rank)]
    return op.Concat(*flat, axis=p) if len(flat) > len(x) else None


def _parts(v: Var, root: Binding, axis: int, rank: int | None) -> list[Var]:
    inner = v.definition
    if (
        inner is None
        or not inner.is_op("Concat")
        or v.sole_user() is not root
        or v.block is not root.block
    ):
        return [v]
    own = inner.attr("axis")
    if inner.has_refs or (own != axis and (not rank or own % rank != axis % rank)):
        return [v]
    return [u for u in inner.inputs if u is not None]


@rewrite(P.Where(c.const, x, y), shrinks=count("Where"))
def where_of_constant(c: Var, x: Var, y: Var, root: Binding) -> Any:
    """Where(true, x, y) = x and Where(false, x, y) = y, for a constant that says the same
    everywhere

    This follows ONNX: onnxruntime 1.31's Where returns 0.0 for a chosen -0.0.
    """
    chooses = c.const
    if chooses is None or not chooses.size or (chooses.any() and not chooses.all()):
        return None
    chosen = x if chooses.any() else y
    decline_if(
        not same_shape(broadcast_shapes([c.shape, x.shape, y.shape]), chosen.shape),
        "the chosen side may be broadcast",
    )
    return x_or_identity(root, chosen)


@rewrite(P.Where(P.Not(c).only, x, y), shrinks=count("Not"))
def where_of_not(c: Var, x: Var, y: Var) -> Any:
    """Where(not c, x, y) = Where(c, y, x)"""
    return op.Where(c, y, x)


@rewrite(P.Cast(P.ConstantOfShape(x).only.named("made")), shrinks=count("Cast"))
def cast_of_filled(x: Var, made: Binding, root: Binding) -> Any:
    """Cast(ConstantOfShape(s) of v, to=t) = ConstantOfShape(s) of v as t, for a number v that t
    holds
    """
    if x.rank not in (1, None):
        return None  # invalid sizes
    value, kind = filling(made), numpy_dtype(root.attr("to"))
    decline_if(
        value.size != 1 or value.dtype.kind not in "biuf" or kind.kind not in "biuf",
        "not from a number to a dtype of numbers that numpy has",
    )
    with np.errstate(all="ignore"):
        cast = value.astype(kind)
        decline_if(
            not np.isfinite(value).all() or not np.array_equal(cast.astype(value.dtype), value),
            "the number is rounded, and libraries round differently",
        )
    return op.ConstantOfShape(x, value=numpy_helper.from_array(cast))


_PAD = P.Pad(x, p.maybe, v.maybe, axes.maybe, mode="constant").only.named("pad")


@rewrite(P.Conv(_PAD, w, b.maybe), shrinks=count("Pad"))
def pad_into_conv(x: Var, w: Var, b: Var | None, pad: Binding, root: Binding) -> Any:
    """Conv(Pad(x, p), w) = Conv(x, w, pads + p), for zeros beside the spatial axes"""
    return op.Conv(x, w, b, **{**root.attrs, "pads": _pads_of_both(pad, root)})


@rewrite(P.AveragePool(_PAD), shrinks=count("Pad"))
def pad_into_average(x: Var, pad: Binding, root: Binding) -> Any:
    """AveragePool(Pad(x, p)) = AveragePool(x, pads + p, count_include_pad=1), for zeros beside
    the spatial axes
    """
    pads = _pads_of_both(pad, root)
    decline_if(
        root.version < 7 or (any(root.attr("pads") or ()) and not root.attr("count_include_pad")),
        "its own padding is excluded, but that of the Pad is counted",
    )
    decline_if(
        root.attr("ceil_mode", 0), "a last window that begins in the padding would be left out"
    )
    kernel = root.attr("kernel_shape")
    # onnxruntime refuses windows that lie in the padding
    decline_if(
        any(n >= k for n, k in zip(pads, (*kernel, *kernel), strict=True)),
        "a window would lie in the padding",
    )
    return op.AveragePool(x, **{**root.attrs, "count_include_pad": 1, "pads": pads})


def _pads_of_both(pad: Binding, root: Binding) -> list[int]:
    """The sum of the pads of both. Raises Decline unless `pad` adds zeros (not -0.0) on spatial
    axes only.
    """
    rank = pad.out.rank
    pads = None if rank is None else _pads(pad, rank)
    if rank is None or pads is None or min(pads) < 0 or any(pads[:2]) or any(pads[rank : rank + 2]):
        raise decline("it does not pad spatial axes only, or not by known sizes")
    filler = _filler(pad)
    if filler is None or filler != 0 or np.signbit(filler):
        raise decline("it pads with another value")
    decline_if(
        root.attr("auto_pad", "NOTSET") not in ("NOTSET", b"NOTSET"),
        "the padding follows from the size",
    )
    own = root.attr("pads") or [0] * (2 * (rank - 2))
    return [m + n for m, n in zip(own, [*pads[2:rank], *pads[rank + 2 :]], strict=True)]


def _pads(pad: Binding, rank: int) -> list[int] | None:
    """The pads at the begins of all axes, then at their ends; None if they are unknown."""
    if pad.version < 11:
        given = pad.attr("pads") or pad.attr("paddings")
        return None if given is None or len(given) != 2 * rank else list(given)
    sizes, named = pad.operand(1), pad.operand(3)
    ints = None if sizes is None else sizes.ints
    axes = tuple(range(rank)) if named is None else named.ints
    if (
        ints is None
        or axes is None
        or len(ints) != 2 * len(axes)
        or not all(-rank <= k < rank for k in axes)
    ):
        return None
    found = [0] * (2 * rank)
    for i, k in enumerate(axes):
        found[k % rank], found[k % rank + rank] = ints[i], ints[i + len(axes)]
    return found


def _filler(pad: Binding) -> np.float64 | None:
    """The value that a Pad fills with; None if it is unknown."""
    if pad.version < 11:
        return np.float64(pad.attr("value", 0.0))
    given = pad.operand(2)
    if given is None:
        return np.float64(0.0)
    array = given.const
    return (
        None
        if array is None or array.size != 1 or array.dtype.kind not in "fiu"
        else np.float64(array.item())
    )


ONCE = [rounding_of_rounding, same_again, clip_again]
CONSECUTIVE = [
    clip_of_clip,
    clip_of_relu,
    relu_of_clip,
    min_of_max,
    concat_of_concat,
    gather_of_gather,
    slice_of_slice,
    where_of_not,
    cast_of_filled,
    pad_into_conv,
    pad_into_average,
]
