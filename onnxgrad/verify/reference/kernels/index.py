"""Indexing and shape operators.

onnx.reference's GatherElements reshapes its operands to the data's shape and fails where the index is smaller (HF
BERT); its Scatter* loop in Python; the deprecated Scatter is missing.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxgrad.verify.reference.kernels.registry import Array, Call, axes_of, kernel


@kernel("Gather")
def gather(call: Call, data: Array, indices: Array) -> Array:
    axis = call["axis"] or 0
    size = data.shape[axis]
    positions = np.where(indices < 0, indices + size, indices)
    if positions.size and (positions.min() < 0 or positions.max() >= size):
        raise IndexError(f"index out of range for axis {axis} of size {size}")
    return np.take(data, positions, axis=axis)


def _grid(indices: Array, axis: int, size: int) -> tuple[Array, ...]:
    """Open mesh over the index's own shape with the index itself along `axis`."""
    positions = np.where(indices < 0, indices + size, indices)
    grid = list(np.ogrid[tuple(slice(n) for n in indices.shape)])
    grid[axis] = positions
    return tuple(grid)


@kernel("GatherElements")
def gather_elements(call: Call, data: Array, indices: Array) -> Array:
    axis = (call["axis"] or 0) % max(data.ndim, 1)
    return np.asarray(data[_grid(indices, axis, data.shape[axis])])


_COMBINE: dict[str, Any] = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


@kernel("ScatterElements", "Scatter")
def scatter_elements(call: Call, data: Array, indices: Array, updates: Array) -> Array:
    axis = (call["axis"] or 0) % max(data.ndim, 1)
    result = data.copy()
    _scatter(result, _grid(indices, axis, data.shape[axis]), updates, call["reduction"])
    return result


@kernel("ScatterND")
def scatter_nd(call: Call, data: Array, indices: Array, updates: Array) -> Array:
    result = data.copy()
    depth = indices.shape[-1]
    sizes = np.asarray(data.shape[:depth])
    positions = np.where(indices < 0, indices + sizes, indices)
    _scatter(result, tuple(positions[..., k] for k in range(depth)), updates, call["reduction"])
    return result


def _scatter(result: Array, where: tuple[Array, ...], updates: Array, reduction: str | None) -> None:
    combine = _COMBINE.get(reduction or "none")
    if combine is None:
        result[where] = updates
    else:
        combine.at(result, where, updates)


@kernel("Squeeze")
def squeeze(call: Call, x: Array, axes: Array | None = None) -> Array:
    chosen = axes_of(call, axes, x.ndim)
    if chosen is None and axes is not None:
        return x
    return x.reshape([n for axis, n in enumerate(x.shape) if (n != 1 if chosen is None else axis not in chosen)])


@kernel("Unsqueeze")
def unsqueeze(call: Call, x: Array, axes: Array | None = None) -> Array:
    count = len(call["axes"]) if axes is None else np.asarray(axes).size
    chosen = axes_of(call, axes, x.ndim + count) or ()
    sizes = iter(x.shape)
    return x.reshape([1 if axis in chosen else next(sizes) for axis in range(x.ndim + count)])


@kernel("Reshape")
def reshape(call: Call, x: Array, shape: Array | None = None) -> Array:
    wanted = [int(n) for n in (call["shape"] if shape is None else shape)]
    if not call["allowzero"]:
        wanted = [x.shape[axis] if n == 0 else n for axis, n in enumerate(wanted)]
    return x.reshape(wanted)


@kernel("Transpose")
def transpose(call: Call, x: Array) -> Array:
    return np.transpose(x, call["perm"] or None)


@kernel("Concat")
def concat(call: Call, *operands: Array) -> Array:
    return np.concatenate(operands, axis=1 if call["axis"] is None else call["axis"])


@kernel("Shape")
def shape_of(call: Call, x: Array) -> Array:
    return np.asarray(x.shape[slice(call["start"] or 0, call["end"])], np.int64)


@kernel("Expand")
def expand(call: Call, x: Array, shape: Array) -> Array:
    return np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(int(n) for n in shape)))


@kernel("Slice")
def slice_(
    call: Call,
    x: Array,
    starts: Array | None = None,
    ends: Array | None = None,
    axes: Array | None = None,
    steps: Array | None = None,
) -> Array:
    """Bounds are attributes up to opset 9 and operands later; a negative step walks backwards as Python's does."""
    first = call["starts"] if starts is None else starts.reshape(-1).tolist()
    last = call["ends"] if ends is None else ends.reshape(-1).tolist()
    where = axes_of(call, axes, x.ndim) or tuple(range(len(first)))
    step = [1] * len(first) if steps is None else steps.reshape(-1).tolist()
    index: list[slice] = [slice(None)] * x.ndim
    for axis, a, b, s in zip(where, first, last, step, strict=True):
        index[axis] = _bounds(x.shape[axis], int(a), int(b), int(s))
    return x[tuple(index)]


def _bounds(size: int, start: int, end: int, step: int) -> slice:
    start = start + size if start < 0 else start
    end = end + size if end < 0 else end
    if step > 0:
        return slice(min(max(start, 0), size), min(max(end, 0), size), step)
    return slice(min(max(start, 0), size - 1), None if end < 0 else end, step)


@kernel("Split")
def split(call: Call, x: Array, sizes: Array | None = None) -> tuple[Array, ...]:
    axis = call["axis"] or 0
    parts = call["split"] if sizes is None else sizes.reshape(-1).tolist()
    if parts is None:
        chunk = -(-x.shape[axis] // len(call.outputs))
        edges = [chunk * k for k in range(1, len(call.outputs))]
    else:
        edges = np.cumsum(parts)[:-1].tolist()
    return tuple(np.split(x, edges, axis=axis))


@kernel("SplitToSequence")
def split_to_sequence(call: Call, x: Array, sizes: Array | None = None) -> tuple[list[Array]]:
    axis = call["axis"] or 0
    if sizes is None:
        pieces = np.split(x, x.shape[axis], axis=axis)
        keep = call["keepdims"] is None or bool(call["keepdims"])
        return ([p if keep else p.squeeze(axis) for p in pieces],)
    edges = np.cumsum(sizes)[:-1].tolist() if sizes.ndim else list(range(int(sizes), x.shape[axis], int(sizes)))
    return (np.split(x, edges, axis=axis),)


@kernel("Upsample")
def upsample(call: Call, x: Array, scales: Array | None = None) -> Array:
    """The deprecated operator: nearest, or linear without corner alignment (asymmetric coordinates)."""
    factors = call["scales"] if scales is None else scales.tolist()
    y = x
    for axis, factor in enumerate(factors):
        size = int(np.floor(x.shape[axis] * factor))
        if size == x.shape[axis]:
            continue
        source = np.arange(size) / factor
        low = np.clip(np.floor(source).astype(np.int64), 0, x.shape[axis] - 1)
        if call["mode"] in (None, "nearest"):
            y = np.take(y, low, axis=axis)
            continue
        high = np.minimum(low + 1, x.shape[axis] - 1)
        weight = (source - low).reshape([-1 if a == axis else 1 for a in range(x.ndim)])
        y = np.take(y, low, axis=axis) * (1 - weight) + np.take(y, high, axis=axis) * weight
    return y


@kernel("OneHot")
def one_hot(call: Call, indices: Array, depth: Array, values: Array) -> Array:
    count = int(np.asarray(depth).reshape(-1)[0])
    axis = -1 if call["axis"] is None else call["axis"]
    positions = np.asarray(indices).astype(np.int64)
    positions = np.where(positions < 0, positions + count, positions)
    axis = axis % (positions.ndim + 1)
    grid = np.arange(count).reshape([-1 if a == axis else 1 for a in range(positions.ndim + 1)])
    chosen: Array = np.where(np.expand_dims(positions, axis) == grid, values[1], values[0])
    return chosen.astype(values.dtype)
