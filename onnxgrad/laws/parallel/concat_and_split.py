"""Operands of parallel products joined, and their result split again, at run time if need be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from onnxgrad.ir.emission.constant import constant
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import Dim
from onnxgrad.ir.var import Var


def concat(values: Sequence[Var], axis: int) -> Var:
    """Concat(values), computed now when all are constants."""
    axis = _from_front(values[0], axis)
    arrays = [v.const for v in values]
    if all(a is not None for a in arrays):
        return constant(
            np.concatenate([a for a in arrays if a is not None], axis=axis),
            name=f"{values[0].name}_merged",
        )
    return op.Concat(*values, axis=axis)


def stack(values: Sequence[Var], rank: int) -> Var:
    """The values, of one shape, along a new axis 0 in front of `rank` others; computed now when
    all are constants.
    """
    known = [v.const for v in values]
    arrays = [a.reshape(*[1] * (rank - a.ndim), *a.shape) for a in known if a is not None]
    if len(arrays) == len(values):
        return constant(np.stack(arrays), name=f"{values[0].name}_stacked")
    # one value many times over is lifted once
    lifted = {
        v: op.Unsqueeze(v, list(range(rank + 1 - (v.rank or 0)))) for v in dict.fromkeys(values)
    }
    return op.Concat(*(lifted[v] for v in values), axis=0)


def split(
    value: Var, sizes: Sequence[Dim], sources: Sequence[Var], source_axis: int, axis: int
) -> tuple[Var, ...]:
    """Split `value` along `axis` into parts as long as the sources are along `source_axis`, at
    run time if need be.
    """
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
    """The axis counted from the front where the rank is known: operators before opset 11 want it
    so.
    """
    return axis + v.rank if axis < 0 and v.rank is not None else axis


def _size(v: Var, axis: int) -> Var:
    """The one-element vector (size of `v` along `axis`), in operators that every opset has."""
    return op.Gather(op.Shape(v), np.array([_from_front(v, axis)]), axis=0)


def reason_not_to_split(value_rank: int | None, sizes: Sequence[Dim], opset: int) -> str | None:
    """Why this opset has no Split into such parts along the last axes, None when it has."""
    if opset < 7:
        return "before opset 7 Add and Gemm broadcast by an attribute"
    if opset < 11 and value_rank is None:
        return "before opset 11 Split counts its axis from the front, and the rank is unknown"
    if opset < 13 and any(not isinstance(d, int) for d in sizes):
        return "before opset 13 Split has fixed sizes, and one is unknown"
    return None
