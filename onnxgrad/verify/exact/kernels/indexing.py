"""Operators that read and write elements at integer indices."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto

from onnxgrad.verify.exact.field import Array, OutOfRange, Undecided
from onnxgrad.verify.exact.kernels.registry import Operands, axis_of, get, given, kernel
from onnxgrad.verify.exact.side import Attributes, Side, min_image, select
from onnxgrad.verify.exact.values import Known, Num, Value, array_of, integers, known


def indices(side: Side, value: Value | None, size: int) -> Array:
    """Returns indices from 0 on. Raises OutOfRange if chosen ones are invalid."""
    array = array_of(value, "an index").astype(np.int64)
    if isinstance(value, Known):
        side.chosen("index", value)
    if array.size and (array.min() < -size or array.max() >= size):
        if isinstance(value, Known) and value.free:
            raise OutOfRange(size)
        raise Undecided(f"an index that is out of range for size {size}")
    return np.where(array < 0, array + size, array)


def _freed(data: Value, *others: Value | None) -> Value:
    """Returns data marked as chosen if an index is."""
    free = any(isinstance(o, Known) and o.free for o in others)
    return replace(data, free=True) if isinstance(data, Known) and free else data


def _note_table(side: Side, data: Value, index: Value | None, at: Array, size: int) -> None:
    """Notes a constant table of which the chosen indices read some rows only."""
    raw = data.raw if isinstance(data, Num) else data.array
    chosen = isinstance(index, Known) and index.free
    constant = raw is not None and not (isinstance(data, Known) and data.free)
    if chosen and constant and raw is not None and len(np.unique(at)) < size:
        side.tables.add(hashlib.blake2b(np.ascontiguousarray(raw).tobytes()).digest())


@kernel("Gather")
def gather(side: Side, node: NodeProto, x: Operands, a: Attributes) -> list[Value]:
    data = given(x, 0)
    axis = axis_of(a.get("axis", 0), data.ndim)
    at = indices(side, get(x, 1), data.shape[axis])
    _note_table(side, data, get(x, 1), at, data.shape[axis])
    return [_freed(data.map(lambda v: np.take(v, at, axis)), get(x, 1))]


@kernel("GatherElements")
def gather_elements(side: Side, node: NodeProto, x: Operands, a: Attributes) -> list[Value]:
    data = given(x, 0)
    axis = axis_of(a.get("axis", 0), data.ndim)
    at = indices(side, get(x, 1), data.shape[axis])
    _note_table(side, data, get(x, 1), at, data.shape[axis])
    grid: list[Array] = list(np.indices(at.shape))
    grid[axis] = at
    return [_freed(data.map(lambda v: v[tuple(grid)]), get(x, 1))]


@kernel("GatherND")
def gather_nd(side: Side, node: NodeProto, x: Operands, a: Attributes) -> list[Value]:
    data, b = given(x, 0), a.get("batch_dims", 0)
    raw = array_of(get(x, 1), "an index").astype(np.int64)
    columns = []
    for k in range(raw.shape[-1]):
        column = get(x, 1)
        assert isinstance(column, Known)
        part = replace(column, array=raw[..., k])
        columns.append(indices(side, part, data.shape[b + k]))
    grid = [
        np.arange(size).reshape([-1 if i == k else 1 for i in range(raw.ndim - 1)])
        for k, size in enumerate(raw.shape[:b])
    ]
    if columns:
        _note_table(side, data, get(x, 1), columns[0], data.shape[b])
    return [_freed(data.map(lambda v: v[(*grid, *columns)]), get(x, 1))]


@kernel("ScatterElements", "Scatter", "ScatterND")
def scatter(side: Side, node: NodeProto, x: Operands, a: Attributes) -> list[Value]:
    data, updates = given(x, 0), given(x, 2)
    reduction = a.get("reduction", "none")
    where: tuple[Any, ...]
    if node.op_type == "ScatterND":
        raw = array_of(get(x, 1), "an index").astype(np.int64)
        index = get(x, 1)
        assert isinstance(index, Known)
        where = tuple(
            indices(side, replace(index, array=raw[..., k]), data.shape[k])
            for k in range(raw.shape[-1])
        )
        key = np.stack([w.reshape(-1) for w in where], -1) if where else np.zeros((1, 0))
    else:
        axis = axis_of(a.get("axis", 0), data.ndim)
        at = indices(side, get(x, 1), data.shape[axis])
        grid: list[Array] = list(np.indices(at.shape))
        grid[axis] = at
        where = tuple(grid)
        key = np.stack([w.reshape(-1) for w in where], -1)
    if reduction not in ("none", "add"):
        raise Undecided(f"{node.op_type} with reduction {reduction}")
    if reduction == "none" and len(np.unique(key, axis=0)) < len(key):
        chosen = get(x, 1)
        if isinstance(chosen, Known) and chosen.free:
            raise OutOfRange(0)
        raise Undecided(f"{node.op_type} that writes an element twice")
    if isinstance(data, Known) and isinstance(updates, Known):
        out = data.array.copy()
        if reduction == "none":
            out[where] = updates.array
        else:
            np.add.at(out, where, updates.array)
        return [_freed(Known(out, data.dtype, data.free or updates.free), get(x, 1))]
    d, u = side.lift(data), side.lift(updates)
    parts = []
    for i, (p, q) in enumerate(zip(d.parts, u.parts, strict=True)):
        out = p.copy()
        if reduction == "none":
            out[where] = q
        else:
            np.add.at(out, where, q)
        parts.append(side.ring.reduce(i, out))
    return [Num(tuple(parts), d.dtype, max(d.degree, u.degree), min_image(d, u)
                if reduction == "none" else 0, infinite=d.infinite or u.infinite,
                atoms=d.atoms | u.atoms)]  # fmt: skip


@kernel("OneHot")
def one_hot(side: Side, node: NodeProto, x: Operands, a: Attributes) -> list[Value]:
    index = given(x, 0)
    depth = integers(get(x, 1), "a depth")[0]
    at = array_of(index, "an index").astype(np.int64)
    axis = a.get("axis", -1) % (at.ndim + 1)
    at = np.where(at < 0, at + depth, at)
    shape = [depth if k == axis else 1 for k in range(at.ndim + 1)]
    hot = np.expand_dims(at, axis) == np.arange(depth).reshape(shape)
    side.chosen("OneHot", *(o for o in (index,) if isinstance(o, Known)))
    values = given(x, 2)
    off = values.map(lambda v: np.broadcast_to(v[0], hot.shape))
    on = values.map(lambda v: np.broadcast_to(v[1], hot.shape))
    return [select(side, Known(hot, TensorProto.BOOL, isinstance(index, Known) and index.free),
                   on, off)]  # fmt: skip


@kernel("Compress")
def compress(side: Side, node: NodeProto, x: Operands, a: Attributes) -> list[Value]:
    keep = array_of(get(x, 1), "a condition").astype(bool)
    side.chosen("Compress", *(o for o in x[1:] if isinstance(o, Known)))
    data = given(x, 0)
    if "axis" not in a or a["axis"] is None:
        at = np.flatnonzero(keep)
        return [_freed(data.map(lambda v: v.reshape(-1)[at]), get(x, 1))]
    axis, at = axis_of(a["axis"], data.ndim), np.flatnonzero(keep)
    return [_freed(data.map(lambda v: np.take(v, at, axis)), get(x, 1))]


@kernel("NonZero")
def non_zero(side: Side, node: NodeProto, x: Operands, a: Attributes) -> list[Value]:
    value = given(x, 0)
    found = np.array(np.nonzero(array_of(value, "NonZero"))).astype(np.int64)
    side.chosen("NonZero", *(o for o in (value,) if isinstance(o, Known)))
    return [known(found, free=isinstance(value, Known) and value.free)]


@kernel("ReverseSequence")
def reverse_sequence(side: Side, node: NodeProto, x: Operands, a: Attributes) -> list[Value]:
    time, batch = a.get("time_axis", 0), a.get("batch_axis", 1)
    lengths = array_of(get(x, 1), "lengths").astype(np.int64)
    data = given(x, 0)
    if lengths.size and (lengths.min() < 1 or lengths.max() > data.shape[time]):
        if isinstance(x[1], Known) and x[1].free:
            raise OutOfRange(data.shape[time])
        raise Undecided("lengths that are out of range")

    def move(v: Array) -> Array:
        out = np.moveaxis(v, (batch, time), (0, 1)).copy()
        for i, n in enumerate(lengths):
            out[i, :n] = out[i, :n][::-1]
        return np.moveaxis(out, (0, 1), (batch, time))

    return [_freed(data.map(move), get(x, 1))]
