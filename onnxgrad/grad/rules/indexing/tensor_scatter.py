"""TensorScatter: a cache that is written in place."""

from __future__ import annotations

import numpy as np

from onnxgrad.errors import InputError
from onnxgrad.grad.registry import vjp
from onnxgrad.grad.rules._common import from_front, size_along
from onnxgrad.ir.like import zeros_like
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var


def _written(past: Var, update: Var, start: Var | None, axis: int, mode: str) -> Var:
    """For each element of `update`, the place along `axis` where it was written."""
    rank = update.rank
    if rank is None:
        raise InputError(
            f"TensorScatter needs an update of known rank, '{update.name}' is {update.type}"
        )
    axis = from_front(axis, rank)
    along = np.ones(rank, np.int64)
    along[axis] = -1
    count = op.Range(np.int64(0), op.Squeeze(size_along(update, axis)), np.int64(1))
    places = op.Reshape(count, along)
    if start is not None:
        batch = np.ones(rank, np.int64)
        batch[0] = -1
        places = op.Add(places, op.Reshape(start, batch))
    if mode == "circular":
        places = op.Mod(places, size_along(past, axis))
    return op.Expand(places, op.Shape(update))


vjp(
    "TensorScatter",
    lambda g, y, past, update, start=None, *, axis, mode: op.TensorScatter(
        g, zeros_like(update), start, axis=axis, mode=mode
    ),
    lambda g, y, past, update, start=None, *, axis, mode: op.GatherElements(
        g, _written(past, update, start, axis, mode), axis=axis
    ),
)
