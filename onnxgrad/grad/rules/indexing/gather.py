"""Gather, GatherElements, GatherND and ArrayFeatureExtractor."""

from __future__ import annotations

import numpy as np

from onnxgrad.errors import InputError
from onnxgrad.grad.registry import vjp
from onnxgrad.grad.rules._common import from_front, pad
from onnxgrad.grad.rules.indexing._rows import add_rows
from onnxgrad.grad.rules.indexing._scatter import scatter_elements
from onnxgrad.ir.like import reshape_like, zeros_like
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var


def gather(g: Var, y: Var, data: Var, indices: Var, axis: int) -> Var:
    """Add up along the first axis, where rows lie together; one Pad for one constant place."""
    rank = data.rank
    if rank is None or indices.rank is None:
        raise InputError("the ranks of data and indices are not known")
    axis = from_front(axis, rank)
    at = indices.ints
    size = None if data.shape is None else data.shape[axis]
    if at is not None and indices.shape == () and isinstance(size, int):
        place = at[0] + size if at[0] < 0 else at[0]
        before = [place if i == axis else 0 for i in range(rank)]
        after = [size - 1 - place if i == axis else 0 for i in range(rank)]
        return pad(op.Unsqueeze(g, [axis]), [*before, *after])
    if axis == 0:
        return add_rows(data, indices, g)
    # the gathered axis, and the axes of the indices in g, come first
    k = indices.rank
    to_front = [axis, *(i for i in range(rank) if i != axis)]
    g_first = [*range(axis, axis + k), *range(axis), *range(axis + k, rank + k - 1)]
    summed = add_rows(op.Transpose(data, perm=to_front), indices, op.Transpose(g, perm=g_first))
    return op.Transpose(summed, perm=[int(i) for i in np.argsort(to_front)])


vjp("Gather", gather)
vjp(
    "GatherElements",
    lambda g, y, data, indices, axis: scatter_elements(
        zeros_like(data), indices, g, axis=axis, reduction="add"
    ),
)


def _features(g: Var, y: Var, data: Var, at: Var) -> Var:
    """Gather along the last axis, by any number of places in any shape; a vector counts as one
    row.
    """
    flat = op.Reshape(g, [-1]) if data.rank == 1 else g
    return gather(flat, y, data, op.Reshape(at, [-1]), -1)


vjp("ai.onnx.ml::ArrayFeatureExtractor", _features)


def _gather_nd(g: Var, y: Var, data: Var, indices: Var, batch_dims: int) -> Var:
    """Gathering the numbers of data's elements says where each element of g belongs."""
    count = op.Range(np.int64(0), op.Size(data), np.int64(1))
    places = op.GatherND(reshape_like(count, data), indices, batch_dims=batch_dims)
    return reshape_like(
        add_rows(op.Reshape(data, [-1]), op.Reshape(places, [-1]), op.Reshape(g, [-1])), data
    )


vjp("GatherND", _gather_nd)
