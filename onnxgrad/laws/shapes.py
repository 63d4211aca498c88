"""Removes Expand, Reshape and Unsqueeze around broadcasting operators, products and Concat."""

from __future__ import annotations

import math
from typing import Any

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission.fill_and_reshape import with_type_of
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import broadcast_shapes, is_static, same_shape
from onnxgrad.ir.var import Var
from onnxgrad.rewrite.pattern import Each, P, capture
from onnxgrad.rewrite.worklist import Measure, count, rewrite

a, b, c, s, d, x = capture("a b c s d x")


READS_OF_EXPAND = Measure(
    "operands that are Expands",
    lambda block: sum(b.op == "Expand" and b.out.use_count for b in block.walk()),
)


def _fills(out: Var, *operands: Var) -> bool:
    """Whether the operands broadcast to the shape of `out` without the Expand."""
    return same_shape(broadcast_shapes([v.shape for v in operands]), out.shape)


@rewrite(P.any_of("Add", "Mul")(P.Expand(a, s), b), shrinks=READS_OF_EXPAND)
def commuting_with_expand(a: Var, b: Var, root: Binding) -> Any:
    """f(Expand(a, s), b) = f(a, b), f broadcasting, where b has the shape already"""
    return getattr(op, root.op)(a, b) if _fills(root.out, a, b) else None


@rewrite(P.any_of("Sub", "Div")(P.Expand(a, s), b), shrinks=READS_OF_EXPAND)
def left_of_expand(a: Var, b: Var, root: Binding) -> Any:
    """Expand(a, s) - b = a - b, where b has the shape already"""
    return getattr(op, root.op)(a, b) if _fills(root.out, a, b) else None


@rewrite(P.any_of("Sub", "Div")(a, P.Expand(b, s)), shrinks=READS_OF_EXPAND)
def right_of_expand(a: Var, b: Var, root: Binding) -> Any:
    """a - Expand(b, s) = a - b, where a has the shape already"""
    return getattr(op, root.op)(a, b) if _fills(root.out, a, b) else None


@rewrite(P.Where(c, P.Expand(a, s), b), shrinks=READS_OF_EXPAND)
def where_of_expand(a: Var, b: Var, c: Var, root: Binding) -> Any:
    """Where(c, Expand(a, s), b) = Where(c, a, b), where c and b have the shape already"""
    return op.Where(c, a, b) if _fills(root.out, a, b, c) else None


@rewrite(P.Reshape(P.Reshape(x, c), s), shrinks=count())
def reshape_back(x: Var, root: Binding) -> Any:
    """Reshape(Reshape(x, s), t) = x, where t is the shape of x"""
    return x if is_static(x.shape) and x.shape == root.out.shape and not root.out.returned else None


@rewrite(P.Reshape(P.Mul(P.Reshape(x, c).only, a).only, s), shrinks=count("Reshape"))
def reshape_around_product(x: Var, a: Var, s: Var, root: Binding) -> Any:
    """Reshape(Reshape(x, s) * a, t) = x * Reshape(a, t), where t is the shape of x and a has
    that of the product
    """
    product = None if root.inputs[0] is None else root.inputs[0].shape
    if not is_static(x.shape) or x.shape != root.out.shape or not same_shape(a.shape, product):
        return None
    return x * op.Reshape(a, s, allowzero=root.attr("allowzero") or None)


@rewrite(P.Concat(Each(P.Reshape(x, s).only), axis=c), shrinks=count("Reshape"))
def concat_of_reshapes(x: list[Var], c: int, root: Binding) -> Any:
    """Concat(Reshape(a), Reshape(b)) = Reshape(Concat(a, b)), where each joins the axes from the
    concatenated one on
    """
    rank = root.out.rank
    if not rank or len(x) < 2 or c % rank != rank - 1:
        return None
    lead, joined = rank - 1, 0
    for v, part in zip(x, root.inputs):
        inner, outer = v.shape, None if part is None else part.shape
        if inner is None or outer is None or len(inner) != rank + 1:
            return None
        sizes = (*inner[lead:], *(x[0].shape or ())[lead + 1 :])
        numbers = [d for d in sizes if isinstance(d, int)]
        if not same_shape(inner[:lead], outer[:lead]) or len(numbers) < len(sizes):
            return None
        if inner[lead + 1] != (x[0].shape or ())[lead + 1] or not same_shape(
            inner[:lead], (x[0].shape or ())[:lead]
        ):
            return None
        joined += math.prod(numbers[:2])
    # -1 has no value beside a size of 0, such as that of an empty batch
    return with_type_of(op.Reshape(op.Concat(*x, axis=lead), [0] * lead + [joined]), root.out)


@rewrite(P.Concat(Each(P.Unsqueeze(x, s).only), axis=c), shrinks=count("Unsqueeze"))
def stack(x: list[Var], s: list[Var], c: int, root: Binding) -> Any:
    """Concat(Unsqueeze(a, k), Unsqueeze(b, k), axis=k) = Reshape(Concat(a, b, axis=k)): k splits
    in two
    """
    shape = root.out.shape
    first = x[0].shape
    if not shape or first is None or len(x) < 2 or not all(same_shape(v.shape, first) for v in x):
        return None
    axis = c % len(shape)
    if axis == len(first) or any(
        a.ints is None or [i % len(shape) for i in a.ints] != [axis] for a in s
    ):
        return None
    after = [d if isinstance(d, int) and d > 0 else -1 for d in first[axis:]]
    if after.count(-1) > 1:
        return None
    return with_type_of(
        op.Reshape(op.Concat(*x, axis=axis), [*[0] * axis, len(x), *after]), root.out
    )
