"""Indexing and shape operators, Pad and Unique."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from onnxgrad.verify.reference.kernels.registry import Array, Call, axes_of, kernel


@kernel("Gather", why="wrong")
def gather(call: Call, data: Array, indices: Array) -> Array:
    axis = call["axis"] or 0
    size = data.shape[axis]
    positions = np.where(indices < 0, indices + size, indices)
    if positions.size and (positions.min() < 0 or positions.max() >= size):
        raise IndexError(f"index out of range for axis {axis} of size {size}")
    return np.take(data, positions, axis=axis)


def _grid(indices: Array, axis: int, size: int) -> tuple[Array, ...]:
    """Returns an open mesh over the shape of the index, with the index itself along `axis`."""
    positions = np.where(indices < 0, indices + size, indices)
    grid = list(np.ogrid[tuple(slice(n) for n in indices.shape)])
    grid[axis] = positions
    return tuple(grid)


@kernel("GatherElements", why="wrong")
def gather_elements(call: Call, data: Array, indices: Array) -> Array:
    axis = (call["axis"] or 0) % max(data.ndim, 1)
    return np.asarray(data[_grid(indices, axis, data.shape[axis])])


_COMBINE: dict[str, Any] = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


@kernel("ScatterElements", why="speed")
@kernel("Scatter", why="missing")
def scatter_elements(call: Call, data: Array, indices: Array, updates: Array) -> Array:
    axis = (call["axis"] or 0) % max(data.ndim, 1)
    result = data.copy()
    _scatter(result, _grid(indices, axis, data.shape[axis]), updates, call["reduction"])
    return result


@kernel("ScatterND", why="speed")
def scatter_nd(call: Call, data: Array, indices: Array, updates: Array) -> Array:
    result = data.copy()
    depth = indices.shape[-1]
    sizes = np.asarray(data.shape[:depth])
    positions = np.where(indices < 0, indices + sizes, indices)
    _scatter(result, tuple(positions[..., k] for k in range(depth)), updates, call["reduction"])
    return result


def _scatter(
    result: Array, where: tuple[Array, ...], updates: Array, reduction: str | None
) -> None:
    combine = _COMBINE.get(reduction or "none")
    if combine is None:
        result[where] = updates
    else:
        combine.at(result, where, updates)


@kernel("Unsqueeze", why="opset")
def unsqueeze(call: Call, x: Array, axes: Array | None = None) -> Array:
    count = len(call["axes"]) if axes is None else np.asarray(axes).size
    chosen = axes_of(call, axes, x.ndim + count) or ()
    sizes = iter(x.shape)
    return x.reshape([1 if axis in chosen else next(sizes) for axis in range(x.ndim + count)])


@kernel("Reshape", why="opset")
def reshape(call: Call, x: Array, shape: Array | None = None) -> Array:
    wanted = [int(n) for n in (call["shape"] if shape is None else shape)]
    if not call["allowzero"]:
        wanted = [x.shape[axis] if n == 0 else n for axis, n in enumerate(wanted)]
    return x.reshape(wanted)


@kernel("Flatten", why="wrong")
def flatten(call: Call, x: Array) -> Array:
    """onnx.reference fails on a tensor without elements."""
    axis = call["axis"]
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


@kernel("Concat", why="opset")
def concat(call: Call, *operands: Array) -> Array:
    return np.concatenate(operands, axis=1 if call["axis"] is None else call["axis"])


@kernel("Expand", why="memory")
def expand(call: Call, x: Array, shape: Array) -> Array:
    return np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(int(n) for n in shape)))


@kernel("Split", why="opset")
def split(call: Call, x: Array, sizes: Array | None = None) -> tuple[Array, ...]:
    axis = call["axis"] or 0
    parts = call["split"] if sizes is None else sizes.reshape(-1).tolist()
    if parts is None:
        chunk = -(-x.shape[axis] // len(call.outputs))
        edges = [chunk * k for k in range(1, len(call.outputs))]
    else:
        edges = np.cumsum(parts)[:-1].tolist()
    return tuple(np.split(x, edges, axis=axis))


@kernel("Resize", why="opset", until=10)
@kernel("Upsample", why="opset")
def upsample(call: Call, x: Array, scales: Array | None = None) -> Array:
    """Computes the deprecated Upsample, and the first version of Resize: nearest (from above if an
    axis shrinks, as in onnxruntime), or linear without corner alignment (asymmetric coordinates).
    """
    factors = call["scales"] if scales is None else scales.tolist()
    y = x
    for axis, factor in enumerate(factors):
        size = int(np.floor(x.shape[axis] * factor))
        if size == x.shape[axis]:
            continue
        source = np.arange(size) / factor
        low = np.clip(np.floor(source).astype(np.int64), 0, x.shape[axis] - 1)
        if call["mode"] in (None, "nearest"):
            above = np.clip(np.ceil(source).astype(np.int64), 0, x.shape[axis] - 1)
            y = np.take(y, low if factor >= 1 else above, axis=axis)
            continue
        high = np.minimum(low + 1, x.shape[axis] - 1)
        weight = (source - low).reshape([-1 if a == axis else 1 for a in range(x.ndim)])
        y = np.take(y, low, axis=axis) * (1 - weight) + np.take(y, high, axis=axis) * weight
    return y


@kernel("OneHot", why="wrong")
def one_hot(call: Call, indices: Array, depth: Array, values: Array) -> Array:
    count = int(np.asarray(depth).reshape(-1)[0])
    axis = -1 if call["axis"] is None else call["axis"]
    positions = np.asarray(indices).astype(np.int64)
    positions = np.where(positions < 0, positions + count, positions)
    axis = axis % (positions.ndim + 1)
    grid = np.arange(count).reshape([-1 if a == axis else 1 for a in range(positions.ndim + 1)])
    chosen: Array = np.where(np.expand_dims(positions, axis) == grid, values[1], values[0])
    return chosen.astype(values.dtype)


@kernel("Pad", why="wrong")
@kernel("Pad", domain="com.microsoft", why="missing")
def pad(
    call: Call,
    x: Array,
    pads: Array | None = None,
    value: Array | None = None,
    axes: Array | None = None,
) -> Array:
    """Crops first, then pads. Before opset 11, pads and value are attributes."""
    amounts = np.asarray(call["pads"] if pads is None else pads).reshape(-1).tolist()
    over = list(range(x.ndim)) if axes is None else [int(a) % x.ndim for a in axes]
    widths = [(0, 0)] * x.ndim
    for i, axis in enumerate(over):
        widths[axis] = (amounts[i], amounts[i + len(over)])
    x = x[
        tuple(slice(max(-a, 0), n - max(-b, 0)) for n, (a, b) in zip(x.shape, widths, strict=True))
    ]
    grow = [(max(a, 0), max(b, 0)) for a, b in widths]
    mode: Any = call["mode"] or "constant"
    if mode != "constant":
        return np.pad(x, grow, mode=mode)
    fill = call["value"] if value is None and pads is None else value
    return np.pad(
        x, grow, constant_values=0 if fill is None else np.asarray(fill).reshape(()).astype(x.dtype)
    )


@kernel("Unique", why="wrong")
def unique(call: Call, x: Array) -> tuple[Array, ...]:
    """Returns values, first positions, inverse and counts, in the order of first positions if
    `sorted` is 0.
    """
    axis = call["axis"]
    values, first, inverse, counts = np.unique(x, True, True, True, axis=axis)
    inverse = inverse.reshape(-1)
    if call["sorted"] == 0:
        order = np.argsort(first)
        values, first, counts = np.take(values, order, axis=axis or 0), first[order], counts[order]
        inverse = np.argsort(order)[inverse]
    return values, first.astype(np.int64), inverse.astype(np.int64), counts.astype(np.int64)
