"""Bindings that return their operand."""

from __future__ import annotations

from typing import Any

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import is_static, same_shape
from onnxgrad.ir.var import Var
from onnxgrad.rewrite.pattern import P, capture
from onnxgrad.rewrite.trace import Decline, decline
from onnxgrad.rewrite.worklist import count, rewrite

x, y, p, begin, end, axis, step, a, b, c, w, r, lens, h = capture(
    "x y p begin end axis step a b c w r lens h"
)

# ends from here on mean "to the end": exporters write the largest int32 or int64
_FAR = (1 << 31) - 1


def x_if_free(root: Binding, x: Var) -> Var | Decline:
    """`x` for the root's result, unless the interface would need an Identity in its place
    anyway.
    """
    if root.out.returned and (x.definition is None or x.returned or x.block is not root.block):
        return decline("the result is an output and its operand cannot take its name")
    return x


def x_or_identity(root: Binding, x: Var) -> Var:
    """`x` for the root's result, through an Identity where the interface needs one: for laws of
    several bindings.
    """
    free = x_if_free(root, x)
    return op.Identity(x) if isinstance(free, Decline) else free


@rewrite(P.Identity(x), shrinks=count())
def identity(x: Var, root: Binding) -> Any:
    """Identity(x) = x"""
    return x_if_free(root, x)


@rewrite(P.Cast(x), shrinks=count())
def cast_to_same(x: Var, root: Binding) -> Any:
    """Cast(x, to=dtype(x)) = x"""
    return x_if_free(root, x) if x.dtype and root.attr("to") == x.dtype else None


@rewrite(P.CastLike(x, y), shrinks=count("CastLike"))
def cast_like(x: Var, y: Var, root: Binding) -> Any:
    """CastLike(x, y) = Cast(x, to=dtype(y)), which is x when the types agree"""
    if not (x.dtype and y.dtype):
        return None
    if x.dtype != y.dtype:
        return op.Cast(x, to=y.dtype, **root.attrs)  # saturate and the like
    return x_if_free(root, x)


@rewrite(P.any_of("Expand", "Reshape", "Tile")(x, y), shrinks=count())
def same_shape_result(x: Var, y: Var, root: Binding) -> Any:
    """Expand/Reshape/Tile(x, s) = x when the result provably has x's shape"""
    if not same_shape(x.shape, root.out.shape):
        return None
    if root.op == "Reshape" and not (is_static(x.shape) or _keeps_each(x)):
        return decline("the sizes agree in name only")
    return x_if_free(root, x)


def _keeps_each(x: Var) -> bool:
    """At most one symbolic size and no size of 0: the element count then decides it."""
    shape = x.shape or ()
    return 0 not in shape and sum(not isinstance(d, int) for d in shape) <= 1


@rewrite(P.any_of("Squeeze", "Unsqueeze", "Flatten")(x), shrinks=count())
def same_rank_result(x: Var, root: Binding) -> Any:
    """Squeeze/Unsqueeze/Flatten(x) = x when the shape stays"""
    # which axes a Squeeze without axes drops is only known when every size is
    stays = same_shape(x.shape, root.out.shape) and (root.op == "Flatten" or is_static(x.shape))
    return x_if_free(root, x) if stays else None


in_order = p.where(lambda perm: perm is not None and list(perm) == sorted(perm))


@rewrite(P.Transpose(x, perm=in_order), shrinks=count())
def transpose_in_order(x: Var, root: Binding) -> Any:
    """Transpose(x, (0, 1, ..., n-1)) = x"""
    return x_if_free(root, x)


@rewrite(P.Slice(x, begin, end, axis.maybe, step.maybe), shrinks=count())
def slice_of_everything(
    x: Var, begin: Var, end: Var, axis: Var | None, step: Var | None, root: Binding
) -> Any:
    """x[0:, 0:, ...] = x"""
    starts, ends = begin.ints, end.ints
    if starts is None or ends is None or x.shape is None:
        return None
    axes = tuple(range(len(starts))) if axis is None else axis.ints
    steps = (1,) * len(starts) if step is None else step.ints
    if axes is None or steps is None:
        return None
    if not len(starts) == len(ends) == len(axes) == len(steps):
        return None  # no legal Slice
    for first, last, k, by in zip(starts, ends, axes, steps, strict=True):
        if not -len(x.shape) <= k < len(x.shape):
            return None
        size = x.shape[k]
        if first != 0 or by != 1 or not (last >= _FAR or (isinstance(size, int) and last >= size)):
            return None
    return x_if_free(root, x)


@rewrite(P.any_of("Concat", "Sum", "Max", "Min", "Mean")(x), shrinks=count())
def of_one_operand(x: Var, root: Binding) -> Any:
    """Concat(x) = Sum(x) = Max(x) = x"""
    return x_if_free(root, x)


@rewrite(P.Pad(x, y.const), shrinks=count())
def pad_by_nothing(x: Var, y: Var, root: Binding) -> Any:
    """Pad(x, 0) = x"""
    return x_if_free(root, x) if y.ints is not None and not any(y.ints) else None


@rewrite(P.Reshape(P.Reshape(x, p).only, y), shrinks=count())
def reshape_of_reshape(x: Var, y: Var, root: Binding) -> Any:
    """Reshape(Reshape(x, s), t) = Reshape(x, t), when t copies no size (0) of what it reshapes"""
    sizes = y.ints
    if sizes is None or (0 in sizes and not root.attr("allowzero", 0)):
        return None
    return op.Reshape(x, y, allowzero=root.attrs.get("allowzero"))


@rewrite(P.Cast(P.Cast(x)), shrinks=count())
def cast_of_cast(x: Var, root: Binding) -> Any:
    """Cast(Cast(x, to=a), to=dtype(x)) = x when every value of x's dtype is one of a's"""
    inner = root.inputs[0]
    if (
        inner is None
        or not x.dtype
        or root.attr("to") != x.dtype
        or (x.dtype, inner.dtype) not in _WIDENS
    ):
        return None
    return x_if_free(root, x)


def _widening() -> frozenset[tuple[int, int]]:
    """Pairs (narrow, wide) such that narrow -> wide -> narrow gives every value back, NaN
    payloads aside.
    """
    from onnx import TensorProto as T

    floats = [
        (T.FLOAT16, T.FLOAT),
        (T.BFLOAT16, T.FLOAT),
        (T.FLOAT, T.DOUBLE),
        (T.FLOAT16, T.DOUBLE),
    ]
    ints = [
        (T.INT32, T.INT64),
        (T.INT8, T.INT32),
        (T.UINT8, T.INT32),
        (T.INT8, T.INT64),
        (T.UINT8, T.INT64),
    ]
    bools = [(T.BOOL, t) for t in (T.INT32, T.INT64, T.FLOAT, T.FLOAT16, T.DOUBLE, T.UINT8, T.INT8)]
    return frozenset((int(a), int(b)) for a, b in floats + ints + bools)


_WIDENS = _widening()

NOOPS = [
    identity,
    cast_to_same,
    cast_like,
    cast_of_cast,
    same_shape_result,
    same_rank_result,
    transpose_in_order,
    slice_of_everything,
    of_one_operand,
    pad_by_nothing,
    reshape_of_reshape,
]
