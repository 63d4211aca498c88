"""What all combinations of parallel branches share: concatenating operands, splitting results, and when it pays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onnxgrad.ir.block import Var
from onnxgrad.ir.ops import constant, op
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
    result: Var = op.Concat(*values, axis=axis)
    return result


def split(value: Var, sizes: Sequence[Dim], sources: Sequence[Var], source_axis: int, axis: int) -> tuple[Var, ...]:
    """Split `value` along `axis` into parts as long as the sources are along `source_axis`, at run time if need be."""
    known = [d for d in sizes if isinstance(d, int)]
    if len(known) == len(sizes):
        parts = known
    else:
        parts = op.Concat(*(_size(v, source_axis) for v in sources), axis=0)
    result: tuple[Var, ...] = op.Split(value, parts, axis=_from_front(value, axis), outputs=len(sources))
    return result


def _from_front(v: Var, axis: int) -> int:
    """The axis counted from the front where the rank is known: operators before opset 11 want it so."""
    return axis + v.rank if axis < 0 and v.rank is not None else axis


def _size(v: Var, axis: int) -> Var:
    """The one-element vector (size of `v` along `axis`)."""
    axis = _from_front(v, axis)
    end = axis + 1 if axis != -1 else None
    result: Var = op.Shape(v, start=axis, end=end)
    return result


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
