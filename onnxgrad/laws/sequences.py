"""Sequences whose elements stand in the graph: the element, the length, the Concat or the longer
sequence that is read from them. TorchScript writes them for `split`, `unbind` and list arguments.
Exact: elements only move.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission.emit import constant
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var
from onnxgrad.laws.remove_noops import x_or_identity
from onnxgrad.rewrite.pattern import Each, P, capture
from onnxgrad.rewrite.trace import decline, decline_if
from onnxgrad.rewrite.worklist import count, rewrite

x, y, i, k = capture("x y i k")

_BUILT = P.SequenceConstruct(Each(x))


@rewrite(P.SequenceAt(_BUILT, i.const), shrinks=count("SequenceAt"))
def at_of_construct(x: list[Var], i: Var, root: Binding) -> Any:
    """SequenceAt(SequenceConstruct(a, b), 1) = b"""
    place = _place(i, len(x) - 1, len(x))
    return None if place is None else x_or_identity(root, x[place])


@rewrite(P.SequenceLength(_BUILT), shrinks=count("SequenceLength"))
def length_of_construct(x: list[Var]) -> Any:
    """SequenceLength(SequenceConstruct(a, b)) = 2"""
    return constant(np.array(len(x), np.int64))


@rewrite(P.ConcatFromSequence(_BUILT), shrinks=count("ConcatFromSequence"))
def concat_of_construct(x: list[Var], root: Binding) -> Any:
    """ConcatFromSequence(SequenceConstruct(a, b)) = Concat(a, b), of Unsqueezes for a new axis"""
    axis = root.attr("axis")
    if root.attr("new_axis", 0):
        return op.Concat(*(op.Unsqueeze(v, [axis]) for v in x), axis=axis)
    return op.Concat(*x, axis=axis)


@rewrite(P.SequenceInsert(_BUILT, y, i.const.maybe), shrinks=count("SequenceInsert"))
def insert_into_construct(x: list[Var], y: Var, i: Var | None) -> Any:
    """SequenceInsert(SequenceConstruct(a, b), c) = SequenceConstruct(a, b, c)"""
    place = len(x) if i is None else _place(i, len(x), len(x))
    return None if place is None else op.SequenceConstruct(*x[:place], y, *x[place:])


@rewrite(P.SequenceInsert(P.SequenceEmpty(), y), shrinks=count("SequenceInsert"))
def insert_into_empty(y: Var) -> Any:
    """SequenceInsert(SequenceEmpty(), a) = SequenceConstruct(a)"""
    return op.SequenceConstruct(y)


@rewrite(P.SequenceErase(_BUILT, i.const.maybe), shrinks=count("SequenceErase"))
def erase_from_construct(x: list[Var], i: Var | None) -> Any:
    """SequenceErase(SequenceConstruct(a, b), 0) = SequenceConstruct(b)"""
    place = len(x) - 1 if i is None else _place(i, len(x) - 1, len(x))
    decline_if(len(x) < 2, "a sequence without elements has another operator")
    return None if place is None else op.SequenceConstruct(*x[:place], *x[place + 1 :])


def _place(i: Var, last: int, count: int) -> int | None:
    """The place that an index names among `count` elements; None if it is above `last`."""
    array = i.const
    if array is None or array.size != 1:
        return None
    index = int(array.item())
    return index % count if -count <= index < 0 else index if 0 <= index <= last else None


@rewrite(P.SplitToSequence(x, k.const.maybe), shrinks=count("SplitToSequence"))
def split_to_sequence(x: Var, k: Var | None, root: Binding) -> Any:
    """SplitToSequence(x, k) = SequenceConstruct(Split(x, k)), where elements at constant places,
    the length or the Concat are read
    """
    axis, rank = root.attr("axis", 0), x.rank
    size = None if not rank or not -rank <= axis < rank else (x.shape or ())[axis]
    if not isinstance(size, int) or size == 0:
        return decline("the size along its axis is unknown, or 0")
    decline_if(
        root.out.returned or not all(map(_reads_elements, root.out.users)),
        "it is read as a sequence",
    )
    sizes = _sizes(k, size)
    if sizes is None or sum(sizes) != size or min(sizes) < 0:
        return None
    parts = [x] if len(sizes) == 1 else op.Split(x, sizes, axis=axis, outputs=len(sizes))
    if k is None and not root.attr("keepdims", 1):
        return op.SequenceConstruct(*(op.Squeeze(part, [axis]) for part in parts))
    return op.SequenceConstruct(*parts)


def _reads_elements(b: Binding) -> bool:
    """Whether another law makes a sequence needless to this reader."""
    if b.op == "SequenceAt":
        return b.inputs[1] is not None and b.inputs[1].const is not None
    return b.op in ("SequenceLength", "ConcatFromSequence")


def _sizes(k: Var | None, size: int) -> list[int] | None:
    """The sizes of the parts: each 1, each `k` but the last, or as listed."""
    if k is None:
        return [1] * size
    array = k.const
    if array is None:
        return None
    if array.ndim:
        return [int(n) for n in array]
    n = int(array.item())
    return None if n < 1 else [*[n] * (size // n), *[size % n] * (size % n > 0)]


SEQUENCES = [
    at_of_construct,
    length_of_construct,
    concat_of_construct,
    insert_into_construct,
    insert_into_empty,
    erase_from_construct,
    split_to_sequence,
]
