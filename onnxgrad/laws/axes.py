"""Squeeze and Unsqueeze that undo each other, or are one."""

from __future__ import annotations

from typing import Any

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var
from onnxgrad.laws.noops import a, b, x, x_or_identity
from onnxgrad.rewrite.pattern import P
from onnxgrad.rewrite.worklist import count, rewrite


@rewrite(P.Squeeze(P.Unsqueeze(x, a.maybe).named("inner"), b.maybe), shrinks=count("Squeeze"))
def squeeze_of_unsqueeze(x: Var, inner: Binding, root: Binding) -> Any:
    """Squeeze(Unsqueeze(x, axes), axes) = x"""
    return x_or_identity(root, x) if _same_axes(inner, root, inner.out.rank) else None


@rewrite(P.Unsqueeze(P.Squeeze(x, a.maybe).named("inner"), b.maybe), shrinks=count("Unsqueeze"))
def unsqueeze_of_squeeze(x: Var, inner: Binding, root: Binding) -> Any:
    """Unsqueeze(Squeeze(x, axes), axes) = x"""
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


def _same_axes(inner: Binding, outer: Binding, rank: int | None) -> bool:
    """Both write their axes, and mean the same ones of a value of this rank."""
    one, other = (_axes(b, rank) for b in (inner, outer))
    return one is not None and one == other


def _axes(b: Binding, rank: int | None) -> list[int] | None:
    """The axes in order; None for none written (a Squeeze then asks the sizes), or where
    negative ones mean nothing.
    """
    given = b.operand(1)
    axes = b.attr("axes") if b.version < 13 else None if given is None else given.ints
    if not axes or (rank is None and min(axes) < 0):
        return None
    if rank is not None and not all(-rank <= k < rank for k in axes):
        return None
    return sorted(k + (rank or 0) if k < 0 else k for k in axes)
