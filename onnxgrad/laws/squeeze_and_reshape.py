"""Merges Squeeze, Unsqueeze, Reshape and Flatten in a row, and moves axes in and out of
reductions.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.domains import REDUCTIONS
from onnxgrad.ir.ops import op
from onnxgrad.ir.sizes import at_least
from onnxgrad.ir.type_inference.shape_arithmetic import sizes
from onnxgrad.ir.types import Array, Shape, same_shape
from onnxgrad.ir.var import Var
from onnxgrad.laws.fold_scale_axis.scale import again
from onnxgrad.laws.permeable import permeable
from onnxgrad.laws.remove_noops import x_or_identity
from onnxgrad.rewrite.pattern import P, capture
from onnxgrad.rewrite.trace import decline, decline_if
from onnxgrad.rewrite.worklist import count, rewrite

x, y, a, b, s, p, q = capture("x y a b s p q")

_VIEWS = ("Flatten", "Reshape", "Squeeze", "Unsqueeze")


@rewrite(P.Squeeze(P.Unsqueeze(x, a.maybe).named("inner"), b.maybe), shrinks=count("Squeeze"))
def squeeze_of_unsqueeze(x: Var, inner: Binding, root: Binding) -> Any:
    """Squeeze(Unsqueeze(x, axes), axes) = x"""
    return x_or_identity(root, x) if _same_axes(inner, root, inner.out.rank) else None


@rewrite(P.Unsqueeze(P.Squeeze(x, a.maybe).named("inner"), b.maybe), shrinks=count("Unsqueeze"))
def unsqueeze_of_squeeze(x: Var, inner: Binding, root: Binding) -> Any:
    """Unsqueeze(Squeeze(x, axes), axes) = x"""
    if root.out.rank != x.rank:  # invalid: a Squeeze of axes whose size is not 1
        return None
    return x_or_identity(root, x) if _same_axes(inner, root, x.rank) else None


@rewrite(P.Unsqueeze(P.Unsqueeze(x, a.maybe).only.named("inner"), b.maybe), shrinks=count())
def unsqueeze_of_unsqueeze(x: Var, inner: Binding, root: Binding) -> Any:
    """Unsqueeze(Unsqueeze(x, a), b) = Unsqueeze(x, a and b), a counted among the axes that b
    leaves
    """
    rank = root.out.rank
    one, other = _axes(inner, inner.out.rank), _axes(root, rank)
    if rank is None or one is None or other is None:
        return None
    left = [i for i in range(rank) if i not in other]
    return op.Unsqueeze(x, sorted([*other, *(left[i] for i in one)]))


@rewrite(P.Squeeze(P.Squeeze(x, a.maybe).only.named("inner"), b.maybe), shrinks=count())
def squeeze_of_squeeze(x: Var, inner: Binding, root: Binding) -> Any:
    """Squeeze(Squeeze(x, a), b) = Squeeze(x, a and b), b counted among the axes that a leaves"""
    one, other = _axes(inner, x.rank), _axes(root, inner.out.rank)
    if one is None or other is None:
        return None
    # nonnegative axes do not depend on the rank
    left = [i for i in range(max((*one, *other)) + len(one) + 1) if i not in one]
    return op.Squeeze(x, sorted([*one, *(left[i] for i in other)]))


def _same_axes(inner: Binding, outer: Binding, rank: int | None) -> bool:
    """Whether both have explicit axes, and the same ones for a value of this rank."""
    one, other = (_axes(b, rank) for b in (inner, outer))
    return one is not None and one == other


def _axes(b: Binding, rank: int | None, since: int = 13) -> list[int] | None:
    """The axes in order, which are an operand `since` an opset. None if they are absent (a Squeeze
    then depends on the sizes), or if they are negative and the rank is unknown.
    """
    given = b.operand(1)
    axes = b.attr("axes") if b.version < since else None if given is None else given.ints
    if not axes or (rank is None and min(axes) < 0):
        return None
    if rank is not None and not all(-rank <= k < rank for k in axes):
        return None
    return sorted(k + (rank or 0) if k < 0 else k for k in axes)


@rewrite(P.Reshape(P.any_of(*_VIEWS)(x, p.maybe).only, s), shrinks=count())
def reshape_of_reshape(x: Var, s: Var, root: Binding) -> Any:
    """Reshape(Reshape(x, s), t) = Reshape(x, t), when t copies no size (0) of what it reshapes; so
    for Reshape of Squeeze, Unsqueeze and Flatten
    """
    wanted = sizes(s)
    if wanted is None or not (root.attr("allowzero", 0) or _copies_nothing(x.shape, wanted)):
        return None
    return op.Reshape(x, s, allowzero=root.attrs.get("allowzero"))


def _copies_nothing(source: Shape | None, wanted: Shape) -> bool:
    """Whether no size that is requested may be 0, unless `source` has the same in its place."""
    return all(
        d == -1 or at_least(d, 1) or (source is not None and same_shape(source[i : i + 1], (d,)))
        for i, d in enumerate(wanted)
    )


@rewrite(
    P.any_of("Flatten", "Squeeze", "Unsqueeze")(
        P.any_of(*_VIEWS)(x, p.maybe).only.named("inner"), q.maybe
    ),
    shrinks=count(),
)
def view_of_view(x: Var, inner: Binding, root: Binding) -> Any:
    """Squeeze(Reshape(x, s), axes) = Reshape(x, t), where t is the shape of the result; so for any
    two of Reshape, Squeeze, Unsqueeze and Flatten
    """
    if root.op == inner.op or root.version < 5:
        return None  # axes meet in Squeeze of Squeeze; before opset 5 Reshape has no target operand
    return op.Reshape(x, _target(root.out.shape))


_ONE = P.any_of("Add", "Sub", "Mul")(P.Squeeze(x, a.maybe), P.Squeeze(y, b.maybe))


@rewrite(P.any_of("Reshape", "Unsqueeze")(_ONE.only.named("inner"), s.maybe), shrinks=count())
def view_of_squeezed_sizes(x: Var, y: Var, inner: Binding, root: Binding) -> Any:
    """Reshape(Squeeze(x) + Squeeze(y), [-1]) = x + y for vectors of one element; so for - and *"""
    if x.shape != (1,) or y.shape != (1,) or root.out.rank != 1:
        return None
    return getattr(op, inner.op)(x, y)


def _target(shape: Shape | None) -> Array:
    """The shape as a target of Reshape, with -1 for at most one unknown size. Raises Decline."""
    if shape is None:
        raise decline("the result's rank is unknown")
    decline_if(0 in shape, "a size is 0, which Reshape would copy")
    decline_if(
        sum(not isinstance(d, int) for d in shape) > 1,
        "several sizes are unknown, but the number of elements determines only one",
    )
    return np.array([d if isinstance(d, int) else -1 for d in shape], np.int64)


def _keeps_order(shape: Shape | None, perm: Any) -> bool:
    """Whether transposing a value of this shape moves axes of size 1 only."""
    if shape is None or perm is None or len(shape) != len(perm):
        return False
    moved = [i for i in perm if shape[i] != 1]
    return moved == sorted(moved)


@rewrite(P.Transpose(P.Reshape(x, s).only.named("inner"), perm=p), shrinks=count("Transpose"))
def transpose_of_reshape(x: Var, p: Any, inner: Binding, root: Binding) -> Any:
    """Transpose(Reshape(x, s), p) = Reshape(x, t), where only axes of size 1 move"""
    if not _keeps_order(inner.out.shape, p) or root.out.rank is None or inner.version < 5:
        return None
    return op.Reshape(x, _target(root.out.shape))


@rewrite(P.Reshape(P.Transpose(x, perm=p).only, s), shrinks=count("Transpose"))
def reshape_of_transpose(x: Var, p: Any, root: Binding) -> Any:
    """Reshape(Transpose(x, p), t) = Reshape(x, t), where only axes of size 1 move"""
    return op.Reshape(x, _target(root.out.shape)) if _keeps_order(x.shape, p) else None


_REDUCES = P.any_of(*REDUCTIONS, "ArgMax", "ArgMin")


@rewrite(
    P.Unsqueeze(_REDUCES(x, a.maybe, keepdims=0).only.named("inner"), b.maybe),
    shrinks=count("Unsqueeze"),
)
def unsqueeze_of_reduce(x: Var, inner: Binding, root: Binding) -> Any:
    """Unsqueeze(Reduce(x, axes), axes) = Reduce(x, axes) that keeps them as axes of size 1"""
    return _reduced(x, inner, _axes(root, x.rank), keepdims=1)


@rewrite(
    P.Squeeze(_REDUCES(x, a.maybe, keepdims=1).only.named("inner"), b.maybe),
    shrinks=count("Squeeze"),
)
def squeeze_of_reduce(x: Var, inner: Binding, root: Binding) -> Any:
    """Squeeze(Reduce(x, axes), axes) = Reduce(x, axes) that drops them"""
    return _reduced(x, inner, _axes(root, x.rank), keepdims=0)


def _reduced(x: Var, inner: Binding, axes: list[int] | None, keepdims: int) -> Any:
    """The reduction with its axes kept or dropped, if they are `axes`."""
    if axes is None or axes != _reduced_axes(inner, x.rank):
        return None
    return again(inner, inner.inputs, {"keepdims": keepdims})


def _reduced_axes(b: Binding, rank: int | None) -> list[int] | None:
    """The axes along which a binding reduces a value of this rank; None if they are unknown."""
    if b.op in ("ArgMax", "ArgMin"):
        axis = b.attr("axis", 0)
        if rank is None:
            return [axis] if axis >= 0 else None
        return [axis % rank] if -rank <= axis < rank else None
    since = 13 if b.op == "ReduceSum" else 18
    written = b.operand(1) if b.version >= since else b.attr("axes")
    if written is None and not b.attr("noop_with_empty_axes", 0):
        return None if rank is None else list(range(rank))
    return _axes(b, rank, since)


@rewrite(
    P.any_of(*REDUCTIONS)(P.Transpose(x, perm=p).only, a.maybe, keepdims=0),
    shrinks=count("Transpose"),
)
def reduce_of_transpose(x: Var, p: Any, root: Binding) -> Any:
    """Reduce(Transpose(x, p), axes) = Reduce(x, p[axes]), where the axes that are left are in the
    order of x
    """
    if p is None or x.rank != len(p):
        return None
    moved = permeable(root, tuple(int(i) for i in np.argsort(p)))
    if moved is None:
        return decline("the axes are unknown, or those that are left change their order")
    return moved.emit(root, [x, *root.inputs[1:]])[0]


@rewrite(
    P.Transpose(
        P.any_of(*REDUCTIONS)(P.Transpose(x, perm=p).only, a.maybe, keepdims=1).only.named(
            "between"
        ),
        perm=q,
    ),
    shrinks=count("Transpose"),
)
def transpose_through_reduce(x: Var, p: Any, q: Any, between: Binding) -> Any:
    """Transpose(Reduce(Transpose(x, p), axes), q) = Reduce(x, p[axes]), where p o q is the identity
    and the reduced axes stay as axes of size 1
    """
    if p is None or q is None or len(p) != len(q) or [p[i] for i in q] != list(range(len(p))):
        return None
    moved = permeable(between, tuple(q)) if x.rank == len(q) else None
    if moved is None:
        return decline("the reduced axes are unknown")
    return moved.emit(between, [x, *between.inputs[1:]])[0]


# the laws of Squeeze and Unsqueeze, in the order in which they are tried
AXES = [
    squeeze_of_unsqueeze,
    unsqueeze_of_squeeze,
    unsqueeze_of_unsqueeze,
    squeeze_of_squeeze,
    unsqueeze_of_reduce,
    squeeze_of_reduce,
    reshape_of_reshape,
    view_of_view,
    view_of_squeezed_sizes,
]
