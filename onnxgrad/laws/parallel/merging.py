"""What all combinations of parallel branches share: concatenating operands, splitting results, and when it pays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from onnxgrad.ir.block import Var
from onnxgrad.ir.emission.constant import constant
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import Dim

MERGE = ("always", "auto", "never")


def concat(values: Sequence[Var], axis: int) -> Var:
    """Concat(values), computed now when all are constants."""
    axis = _from_front(values[0], axis)
    arrays = [v.const for v in values]
    if all(a is not None for a in arrays):
        return constant(
            np.concatenate([a for a in arrays if a is not None], axis=axis), name=f"{values[0].name}_merged"
        )
    return op.Concat(*values, axis=axis)


def split(value: Var, sizes: Sequence[Dim], sources: Sequence[Var], source_axis: int, axis: int) -> tuple[Var, ...]:
    """Split `value` along `axis` into parts as long as the sources are along `source_axis`, at run time if need be."""
    known = [d for d in sizes if isinstance(d, int)]
    parts: Any
    if len(known) == len(sizes):
        parts = known
    else:
        parts = op.Concat(*(_size(v, source_axis) for v in sources), axis=0)
    return op.Split(value, parts, axis=_from_front(value, axis), outputs=len(sources))


def known_size(v: Var, axis: int) -> Dim:
    """How long it is along one axis, None where that is unknown."""
    return None if v.shape is None else v.shape[axis]


def _from_front(v: Var, axis: int) -> int:
    """The axis counted from the front where the rank is known: operators before opset 11 want it so."""
    return axis + v.rank if axis < 0 and v.rank is not None else axis


def _size(v: Var, axis: int) -> Var:
    """The one-element vector (size of `v` along `axis`), in operators that every opset has."""
    return op.Gather(op.Shape(v), np.array([_from_front(v, axis)]), axis=0)


def reason_of_shared(weights: Sequence[Var]) -> str | None:
    """Why merging these weights would make the file grow, None when it would not."""
    if any(v.is_constant and v.use_count > 1 for v in weights):
        return "a weight has another reader, so the file would hold it twice"
    return None


def reason_not_to_split(value_rank: int | None, sizes: Sequence[Dim], opset: int) -> str | None:
    """Why this opset has no Split into such parts along the last axes, None when it has."""
    if opset < 7:
        return "before opset 7 Add and Gemm broadcast by an attribute"
    if opset < 11 and value_rank is None:
        return "before opset 11 Split counts its axis from the front, and the rank is unknown"
    if opset < 13 and any(not isinstance(d, int) for d in sizes):
        return "before opset 13 Split has fixed sizes, and one is unknown"
    return None


def rows(x: Var) -> int | None:
    """How many rows the left operand of a product has over all batch axes, when known."""
    if x.shape is None:
        return None
    count = 1
    for d in x.shape[:-1]:
        if not isinstance(d, int):
            return None
        count *= d
    return count


def reason_not_to_merge(merge: str, provider: str, branches: int, m: int | None, k: Dim) -> str | None:
    """Why a group of products had better stay apart, None when merging is right.

    The rule for `auto` comes from measurements on onnxruntime: on CPU the Split copies each result, which only single
    rows pay back (12 or more branches, or at least 512 columns); on CUDA one launch in place of many pays.
    """
    if merge == "never":
        return "merging is switched off"
    if merge == "always" or provider == "cuda":
        return None
    if m is None:
        return "the number of rows is unknown, and on CPU merging pays for a single row only"
    if m > 1:
        return f"{m} rows: on CPU the Split copies more than the merged product saves"
    if branches < 12 and not (isinstance(k, int) and k >= 512):
        return f"{branches} branches of {k} columns: too small to pay on CPU"
    return None
