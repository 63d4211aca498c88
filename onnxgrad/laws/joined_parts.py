"""Split, Slice and Gather of a Concat read the operand that they choose; a Concat of all parts of a
Split is what was split, and one with an empty operand does without. Exact: elements only move.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import same_shape
from onnxgrad.ir.var import Var
from onnxgrad.laws.merge_consecutive import sliced
from onnxgrad.laws.remove_noops import x_or_identity
from onnxgrad.rewrite.pattern import Each, P, capture
from onnxgrad.rewrite.trace import decline
from onnxgrad.rewrite.worklist import Measure, count, rewrite

x, a, b, c, d, i = capture("x a b c d i")

_CONCAT = P.Concat(Each(x)).named("whole")


@rewrite(P.Split(_CONCAT, c.maybe), shrinks=count("Split"))
def split_of_concat(x: list[Var], whole: Binding, root: Binding) -> Any:
    """Split(Concat(a, b)) = (a, b), for cuts at the same places; a part of several operands is
    their Concat
    """
    axis = _axis(whole)
    if axis is None or axis != _axis(root):
        return None
    joins, cuts = _bounds(x, axis), _bounds(root.outputs, axis)
    if len(joins) <= len(x) or len(cuts) <= len(root.outputs) or not set(cuts) <= set(joins):
        return decline("it cuts at other places, or a size is unknown")
    if len(set(joins)) < len(joins):
        return decline("an operand is empty")
    if len(cuts) < len(joins) and whole.out.use_count > 1:
        return decline("others read the Concat, and a part joins several operands")
    found: dict[Var, Var] = {}
    for v, (first, last) in zip(root.outputs, pairwise(cuts), strict=True):
        members = x[joins.index(first) : joins.index(last)]
        if v is not None and members:
            part = members[0] if len(members) == 1 else op.Concat(*members, axis=axis)
            found[v] = op.Identity(part) if v.returned else part
    return found if len(found) == len(root.outputs) else None


OPERANDS = Measure(
    "number of operands of Concat",
    lambda block: sum(len(b.inputs) for b in block.walk() if b.is_op("Concat")),
)


@rewrite(_CONCAT, shrinks=OPERANDS)
def concat_of_split(x: list[Var], root: Binding) -> Any:
    """Concat(a, b, y) = Concat(x, y), where a, b = Split(x) along the same axis"""
    axis = _axis(root)
    if axis is None:
        return None
    joined: list[Var] = []
    while x:
        b = x[0].definition
        is_split = b is not None and b.op == "Split" and _axis(b) == axis
        source, parts = (b.inputs[0], b.outputs) if b is not None and is_split else (None, [])
        whole = source is not None and len(parts) > 1 and x[: len(parts)] == parts
        joined.append(source if source is not None and whole else x[0])
        x = x[len(parts) if whole else 1 :]
    if len(joined) == len(root.inputs):
        return None
    return x_or_identity(root, joined[0]) if len(joined) == 1 else op.Concat(*joined, axis=axis)


@rewrite(_CONCAT, shrinks=OPERANDS)
def concat_of_empty(x: list[Var], root: Binding) -> Any:
    """Concat(a, e) = a, where e has size 0 along the axis, and the other sizes of a"""
    axis = _axis(root)
    if axis is None:
        return None
    kept = [v for v in x if not v.shape or v.shape[axis] != 0] or x[:1]
    first = kept[0].shape
    if len(kept) == len(x) or not first:
        return None
    empty = (*first[:axis], 0, *first[axis + 1 :])
    if not all(same_shape(v.shape, empty) for v in x if v not in kept):
        return decline("the other sizes of an empty operand are not known to be those of the first")
    return x_or_identity(root, kept[0]) if len(kept) == 1 else op.Concat(*kept, axis=axis)


@rewrite(P.Slice(_CONCAT, a.const, b.const, c.maybe, d.maybe))
def slice_of_concat(whole: Binding, root: Binding) -> Any:
    """Concat(a, b)[n:m] = b[n - k : m - k], for bounds within b, which begins at k"""
    cut, axis = sliced(root, whole.out.rank), _axis(whole)
    if cut is None or axis is None or cut[2].count(axis) != 1:
        return None
    starts, ends, axes, steps = cut
    at = axes.index(axis)
    read = _places(whole, axis, slice(starts[at], ends[at], steps[at]))
    source = _source(whole, axis, read)
    if source is None:
        return decline("it reads several operands, or a size is unknown")
    v, begin = source
    first, after = read[0] - begin, read[-1] - begin + (1 if steps[at] > 0 else -1)
    # -1 would be the last element; from the end, one before the first is beyond every size
    starts[at], ends[at] = first, after if after >= 0 else _FAR_BACK
    return op.Slice(v, *(np.array(column, np.int64) for column in cut))


_FAR_BACK = -(1 << 31)


@rewrite(P.Gather(_CONCAT, i.const))
def gather_of_concat(whole: Binding, i: Var, root: Binding) -> Any:
    """Gather(Concat(a, b), i) = Gather(b, i - k), for constant indices within b, which begins at
    k
    """
    axis, indices = _axis(whole), i.const
    if axis is None or axis != root.attr("axis", 0) % (whole.out.rank or 1) or indices is None:
        return None
    read = [_places(whole, axis, slice(k, k + 1 or None)) for k in indices.reshape(-1).tolist()]
    if not all(map(len, read)):
        return decline("a size is unknown, or an index is out of range")
    places = [place for one in read for place in one]
    source = _source(whole, axis, places)
    if source is None:
        return decline("it reads several operands, or a size is unknown")
    v, begin = source
    return op.Gather(v, np.array(places, np.int64).reshape(indices.shape) - begin, axis=axis)


def _axis(b: Binding | None) -> int | None:
    """The axis that a Concat joins or a Split cuts; None for others, and if it is unknown."""
    if b is None or not (b.is_op("Concat") or b.is_op("Split")) or b.has_refs or not b.inputs:
        return None
    rank = b.out.rank
    # before opset 4 a Concat has another axis by default
    axis = b.attrs.get("axis", 0 if b.op == "Split" else None)
    return None if axis is None or not rank or not -rank <= axis < rank else axis % rank


def _bounds(parts: Sequence[Var | None], axis: int) -> list[int]:
    """Where each part begins along an axis, and where the last one ends, up to the first part of
    unknown size.
    """
    sizes: list[int] = []
    for v in parts:
        size = None if v is None or not v.shape else v.shape[axis]
        if not isinstance(size, int):
            break
        sizes.append(size)
    return [*accumulate(sizes, initial=0)]


def _places(whole: Binding, axis: int, read: slice) -> Sequence[int]:
    """The places that a slice of a Concat reads, in order; none if they depend on an unknown
    size.
    """
    bounds = _bounds(whole.inputs, axis)
    known = len(bounds) > len(whole.inputs)
    within = read.start >= 0 and read.stop is not None and 0 <= read.stop <= bounds[-1]
    return range(bounds[-1])[read] if known or within else ()


def _source(whole: Binding, axis: int, places: Sequence[int]) -> tuple[Var, int] | None:
    """The operand of a Concat, or of those that it joins along the same axis, which has all
    places, and where it begins.
    """
    if not places:
        return None
    v, begin = whole.out, 0
    while _axis(b := v.definition) == axis and b is not None and b.op == "Concat":
        operands = dict(zip(pairwise(_bounds(b.inputs, axis)), b.inputs, strict=False))
        low, high = min(places) - begin, max(places) - begin
        inner = [(u, n) for (n, m), u in operands.items() if n <= low and high < m]
        if not inner or inner[0][0] is None:
            break
        v, begin = inner[0][0], begin + inner[0][1]
    return None if v is whole.out else (v, begin)


JOINED_PARTS = [
    split_of_concat, concat_of_split, concat_of_empty, slice_of_concat, gather_of_concat
]  # fmt: skip
