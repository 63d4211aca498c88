"""Gathering and scattering."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxgrad.grad.accumulate import shape_of, zeros_like
from onnxgrad.grad.registry import vjp
from onnxgrad.grad.rules._common import from_front, pad
from onnxgrad.ir.block import Var
from onnxgrad.ir.ops import op


def _gather(g: Var, y: Var, data: Var, indices: Var, axis: int) -> Var:
    """ScatterND that adds, along the first axis: the fastest form in onnxruntime; one Pad for one constant place."""
    rank = data.rank or 0
    axis = from_front(axis, rank)
    at = indices.ints
    size = None if data.shape is None else data.shape[axis]
    if at is not None and indices.shape == () and isinstance(size, int):
        place = at[0] + size if at[0] < 0 else at[0]
        before = [place if i == axis else 0 for i in range(rank)]
        after = [size - 1 - place if i == axis else 0 for i in range(rank)]
        return pad(op.Unsqueeze(g, [axis]), [*before, *after])
    places = op.Unsqueeze(indices, [-1])
    if axis == 0:
        return op.ScatterND(zeros_like(data), places, g, reduction="add")
    # the gathered axis, and the axes of the indices in g, come first
    k = indices.rank or 0
    to_front = [axis, *(i for i in range(rank) if i != axis)]
    g_first = [*range(axis, axis + k), *range(axis), *range(axis + k, rank + k - 1)]
    empty = _zeros(data, to_front)
    summed = op.ScatterND(empty, places, op.Transpose(g, perm=g_first), reduction="add")
    return op.Transpose(summed, perm=[int(i) for i in np.argsort(to_front)])


def _zeros(data: Var, perm: list[int]) -> Var:
    """Zeros of the shape of Transpose(data, perm)."""
    shape: Any = shape_of(data)
    moved = shape[perm] if isinstance(shape, np.ndarray) else op.Gather(shape, np.array(perm, np.int64))
    return op.CastLike(op.ConstantOfShape(moved), data)


vjp("Gather", _gather)
vjp(
    "GatherElements",
    lambda g, y, data, indices, axis: op.ScatterElements(zeros_like(data), indices, g, axis=axis, reduction="add"),
)


def _features(g: Var, y: Var, data: Var, at: Var) -> Var:
    """Gather along the last axis, by any number of places in any shape; a vector counts as one row."""
    flat = op.Reshape(g, [-1]) if data.rank == 1 else g
    return _gather(flat, y, data, op.Reshape(at, [-1]), -1)


vjp("ai.onnx.ml::ArrayFeatureExtractor", _features)
