"""Scattering and selecting by index: ScatterND, ScatterElements, GatherND, TensorScatter, TopK, Compress, Unique."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import TensorProto

from onnxgrad.errors import InputError
from onnxgrad.grad.registry import vjp
from onnxgrad.grad.rules._common import as_number, from_front, where
from onnxgrad.grad.rules._rows import add_rows
from onnxgrad.grad.rules._scatter import scatter_elements, scatter_nd
from onnxgrad.grad.rules.index import gather as gather_gradient
from onnxgrad.grad.rules.shape import size_along
from onnxgrad.ir.block import Var
from onnxgrad.ir.like import reshape_like, zeros_like
from onnxgrad.ir.ops import op


@dataclass(frozen=True)
class _Places:
    """The places that a scatter writes: how to write there (with a reduction) and how to read there."""

    write: Callable[[Var, Var, str], Var]
    read: Callable[[Var], Var]


def _nd(indices: Var) -> _Places:
    return _Places(
        lambda data, updates, reduction: scatter_nd(data, indices, updates, reduction=reduction),
        lambda data: op.GatherND(data, indices),
    )


def _elements(indices: Var, axis: int) -> _Places:
    return _Places(
        lambda data, updates, reduction: scatter_elements(data, indices, updates, axis=axis, reduction=reduction),
        lambda data: op.GatherElements(data, indices, axis=axis),
    )


def _d_data(g: Var, y: Var, data: Var, updates: Var, at: _Places, reduction: str) -> Any:
    """none: g, zero where written; add: g; mul: g times what was multiplied in; max, min: an even share of ties."""
    if reduction == "none":
        return at.write(g, zeros_like(updates), "none")
    if reduction == "add":
        return g
    if reduction == "mul":
        return at.write(g, updates, "mul")
    return where(op.Equal(data, y), g / _winners(y, data, updates, at), 0.0)


def _d_updates(g: Var, y: Var, data: Var, updates: Var, at: _Places, reduction: str) -> Any:
    """none, add: g there; mul: g times the product of the others, zeros counted; max, min: an even share of ties."""
    if reduction in ("none", "add"):
        return at.read(g)
    if reduction == "mul":
        is_zero = op.Equal(updates, 0.0)
        nonzero = where(is_zero, 1.0, updates)
        zeros = as_number(is_zero, updates)
        product = at.write(data, nonzero, "mul")
        zeros_there = at.read(at.write(zeros_like(data), zeros, "add"))
        # the others hold no zero exactly when all zeros there are this update's own
        return where(op.Equal(zeros_there, zeros), at.read(g * product) / nonzero, 0.0)
    wins = op.Equal(updates, at.read(y))
    return where(wins, at.read(g / _winners(y, data, updates, at)), 0.0)


def _winners(y: Var, data: Var, updates: Var, at: _Places) -> Var:
    """How many of the datum and its updates equal the result."""
    own = as_number(op.Equal(data, y), y)
    return at.write(own, as_number(op.Equal(updates, at.read(y)), y), "add")


_NOTES = "max, min: ties share evenly; mul: the exact product of the others; none: several writers are undefined"

vjp(
    "ScatterND",
    lambda g, y, data, indices, updates, reduction: _d_data(g, y, data, updates, _nd(indices), reduction),
    None,
    lambda g, y, data, indices, updates, reduction: _d_updates(g, y, data, updates, _nd(indices), reduction),
    notes=_NOTES,
    compares=True,
)
vjp(
    "ScatterElements",
    lambda g, y, data, indices, updates, axis, reduction: _d_data(
        g, y, data, updates, _elements(indices, axis), reduction
    ),
    None,
    lambda g, y, data, indices, updates, axis, reduction: _d_updates(
        g, y, data, updates, _elements(indices, axis), reduction
    ),
    notes=_NOTES,
    compares=True,
)


def _gather_nd(g: Var, y: Var, data: Var, indices: Var, batch_dims: int) -> Var:
    """Gathering the numbers of data's elements says where each element of g belongs."""
    count = op.Range(np.int64(0), op.Size(data), np.int64(1))
    places = op.GatherND(reshape_like(count, data), indices, batch_dims=batch_dims)
    return reshape_like(add_rows(op.Reshape(data, [-1]), op.Reshape(places, [-1]), op.Reshape(g, [-1])), data)


vjp("GatherND", _gather_nd)


def _written(past: Var, update: Var, start: Var | None, axis: int, mode: str) -> Var:
    """For each element of `update`, the place along `axis` where it was written."""
    rank = update.rank
    if rank is None:
        raise InputError(f"TensorScatter needs an update of known rank, '{update.name}' is {update.type}")
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
    result: Var = op.Expand(places, op.Shape(update))
    return result


vjp(
    "TensorScatter",
    lambda g, y, past, update, start=None, *, axis, mode: op.TensorScatter(
        g, zeros_like(update), start, axis=axis, mode=mode
    ),
    lambda g, y, past, update, start=None, *, axis, mode: op.GatherElements(
        g, _written(past, update, start, axis, mode), axis=axis
    ),
)


def _top_k(g: Any, y: Any, x: Var, axis: int) -> Any:
    """Each value's adjoint goes to where it came from."""
    return None if g[0] is None else op.ScatterElements(zeros_like(x), y[1], g[0], axis=axis)


vjp("TopK", _top_k, notes="ties: the index that the forward returned")


def _flat_gather(g: Var, x: Var, places: Var) -> Var:
    """The gradient of x.reshape(-1)[places], the places all different."""
    return reshape_like(add_rows(op.Reshape(x, [-1]), places, g, distinct=True), x)


def _compress(g: Var, y: Var, x: Var, condition: Var, axis: int | None = None) -> Var:
    """Compress(x, c) gathers x where c holds."""
    places = op.Reshape(op.NonZero(condition), [-1])
    return _flat_gather(g, x, places) if axis is None else gather_gradient(g, y, x, places, axis)


vjp("Compress", _compress)


def _unique(g: Any, y: Any, x: Var, axis: int | None = None) -> Any:
    """The values are gathered from their first places."""
    if g[0] is None:
        return None
    return _flat_gather(g[0], x, y[1]) if axis is None else gather_gradient(g[0], y[0], x, y[1], axis)


vjp("Unique", _unique, notes="equal elements: the first one receives everything")


def _one_hot_values(g: Var, y: Var, indices: Var, depth: Var, values: Var, axis: int) -> Var:
    """(off, on): g summed where the result is off, and where it is on."""
    on = op.OneHot(indices, depth, np.array([0, 1], np.float32), axis=axis)
    mask = op.Cast(on, to=TensorProto.BOOL)
    parts = [op.Reshape(op.ReduceSum(where(m, g, 0.0), keepdims=0), [1]) for m in (op.Not(mask), mask)]
    result: Var = op.Concat(*parts, axis=0)
    return result


vjp("OneHot", None, None, _one_hot_values)
