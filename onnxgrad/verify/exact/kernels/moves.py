"""Operators that move elements: the arrays themselves move."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto

from onnxgrad.verify.exact.field import Array, Undecided
from onnxgrad.verify.exact.kernels.registry import (
    Operands,
    axes_of,
    axis_of,
    get,
    given,
    kernel,
    sizes,
)
from onnxgrad.verify.exact.side import Attributes, Side, atoms_of, min_image, select
from onnxgrad.verify.exact.values import Known, Num, Value, array_of, integers, known, number


@kernel("Identity", "Dropout")
def identity(side: Side, node: NodeProto, x: Operands, a: Attributes) -> list[Value]:
    if node.op_type == "Dropout":
        training = get(x, 2)
        if a.get("is_test") == 0 and side.opset < 7:
            raise Undecided("Dropout in training")
        if training is not None and array_of(training, "training_mode").any():
            raise Undecided("Dropout in training")
        mask = known(np.ones(given(x, 0).shape, bool))
        return [given(x, 0), mask][: len(node.output)]
    return [given(x, 0)]


@kernel("Reshape")
def reshape(side: Side, node: NodeProto, x: Operands, a: Attributes) -> list[Value]:
    data = given(x, 0)
    target = [int(i) for i in a["shape"]] if "shape" in a else integers(get(x, 1), "a shape")
    if not a.get("allowzero"):
        if any(s == 0 and i >= data.ndim for i, s in enumerate(target)):
            raise Undecided("a shape that copies a size which is not there")
        target = [data.shape[i] if s == 0 else s for i, s in enumerate(target)]
    return [data.map(lambda v: v.reshape(target))]


@kernel("Flatten")
def flatten(side: Side, node: NodeProto, x: Operands, a: Attributes) -> list[Value]:
    data = given(x, 0)
    axis = a.get("axis", 1)
    axis += data.ndim if axis < 0 else 0
    rows = int(np.prod(data.shape[:axis]))
    columns = int(np.prod(data.shape[axis:]))
    return [data.map(lambda v: v.reshape(rows, columns))]


@kernel("Squeeze")
def squeeze(side: Side, node: NodeProto, x: Operands, a: Attributes) -> list[Value]:
    data = given(x, 0)
    axes = axes_of(x, a, 1, data.ndim)
    return [data.map(lambda v: np.squeeze(v, None if axes is None else tuple(axes)))]


@kernel("Unsqueeze")
def unsqueeze(side: Side, node: NodeProto, x: Operands, a: Attributes) -> list[Value]:
    data = given(x, 0)
    found = a["axes"] if "axes" in a else integers(get(x, 1), "axes")
    return [data.map(lambda v: np.expand_dims(v, tuple(int(i) for i in found)))]


@kernel("Transpose")
def transpose(side: Side, node: NodeProto, x: Operands, a: Attributes) -> list[Value]:
    return [given(x, 0).map(lambda v: np.transpose(v, a.get("perm")))]


@kernel("Slice")
def slice_(side: Side, node: NodeProto, x: Operands, a: Attributes) -> list[Value]:
    data = given(x, 0)
    if "starts" in a:
        starts, ends = list(a["starts"]), list(a["ends"])
        axes, steps = list(a.get("axes", range(len(starts)))), [1] * len(starts)
    else:
        starts, ends = integers(get(x, 1), "starts"), integers(get(x, 2), "ends")
        axes = list(range(len(starts))) if get(x, 3) is None else integers(get(x, 3), "axes")
        steps = [1] * len(starts) if get(x, 4) is None else integers(get(x, 4), "steps")
    index = [slice(None)] * data.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        k = axis_of(axis, data.ndim)
        size = data.shape[k]
        start, end = (i + size if i < 0 else i for i in (start, end))
        if step > 0:
            index[k] = slice(min(max(start, 0), size), min(max(end, 0), size), step)
        else:
            end = min(max(end, -1), size - 1)
            start = min(max(start, 0), size - 1)
            index[k] = slice(start, None if end < 0 else end, step)
    return [data.map(lambda v: v[tuple(index)])]


@kernel("Concat")
def concat(side: Side, node: NodeProto, x: Operands, a: Attributes) -> list[Value]:
    return [joined(side, [given(x, i) for i in range(len(x))], a.get("axis", 1))]


def joined(side: Side, operands: list[Value], axis: int) -> Value:
    """Returns operands of one dtype, joined along an axis."""
    if all(isinstance(o, Known) for o in operands):
        arrays = [array_of(o, "") for o in operands]
        free = any(isinstance(o, Known) and o.free for o in operands)
        return Known(np.concatenate(arrays, axis), operands[0].dtype, free)
    nums = [side.lift(o) for o in operands]
    parts = tuple(
        np.concatenate(group, axis) for group in zip(*(n.parts for n in nums), strict=True)
    )
    raws = [n.raw for n in nums if n.raw is not None]
    raw = np.concatenate(raws, axis) if len(raws) == len(nums) else None
    return Num(parts, nums[0].dtype, max(n.degree for n in nums), min_image(*nums), raw,
               any(n.infinite for n in nums), atoms_of(nums))  # fmt: skip


@kernel("Split")
def split(side: Side, node: NodeProto, x: Operands, a: Attributes) -> list[Value]:
    data, count = given(x, 0), len(node.output)
    axis = axis_of(a.get("axis", 0), data.ndim)
    size = data.shape[axis]
    if "split" in a:
        parts = list(a["split"])
    elif get(x, 1) is not None:
        parts = integers(get(x, 1), "sizes of parts")
    else:
        each = -(-size // int(a.get("num_outputs") or count))
        parts = [min(each, size - each * i) for i in range(count)]
    if sum(parts) != size or len(parts) != count or min(parts, default=0) < 0:
        raise Undecided("a Split whose parts do not add up")
    at = np.cumsum([0, *parts])
    return [_part(data, at[i], at[i + 1], axis) for i in range(count)]


def _part(data: Value, start: int, end: int, axis: int) -> Value:
    return data.map(lambda v: np.take(v, range(start, end), axis))


@kernel("Expand")
def expand(side: Side, node: NodeProto, x: Operands, a: Attributes) -> list[Value]:
    data = given(x, 0)
    shape = np.broadcast_shapes(data.shape, tuple(sizes(get(x, 1), "a shape")))
    return [data.map(lambda v: np.broadcast_to(v, shape))]


@kernel("Tile")
def tile(side: Side, node: NodeProto, x: Operands, a: Attributes) -> list[Value]:
    repeats = sizes(get(x, 1), "repeats")
    return [given(x, 0).map(lambda v: np.tile(v, repeats))]


@kernel("Pad")
def pad(side: Side, node: NodeProto, x: Operands, a: Attributes) -> list[Value]:
    data = given(x, 0)
    pads = list(a["pads"]) if "pads" in a else integers(get(x, 1), "pads")
    axes = axes_of(x, {}, 3, data.ndim) or list(range(data.ndim))
    low, high = [0] * data.ndim, [0] * data.ndim
    for i, axis in enumerate(axes):
        low[axis], high[axis] = pads[i], pads[i + len(axes)]
    index = tuple(
        slice(max(-b, 0), size - max(-e, 0))
        for b, e, size in zip(low, high, data.shape, strict=True)
    )
    data = data.map(lambda v: v[index])
    widths = [(max(b, 0), max(e, 0)) for b, e in zip(low, high, strict=True)]
    if not any(low) and not any(high):
        return [data]
    mode = a.get("mode", "constant")
    if mode != "constant":
        return [data.map(lambda v: np.pad(v, widths, mode=mode))]
    value = get(x, 2)
    inside = np.pad(np.ones(data.shape, bool), widths)
    around = data.map(lambda v: np.pad(v, widths))
    if value is None and not a.get("value"):
        return [around]
    filler = side.constant(float(a["value"]), data.dtype) if value is None else value
    filler = filler.map(lambda v: np.broadcast_to(v.reshape(()), inside.shape))
    return [select(side, known(inside), around, filler)]


@kernel("DepthToSpace")
def depth_to_space(side: Side, node: NodeProto, x: Operands, a: Attributes) -> list[Value]:
    b, crd = a["blocksize"], a.get("mode", "DCR") == "CRD"

    def move(v: Array) -> Array:
        n, c, h, w = v.shape
        split = (n, c // b**2, b, b, h, w) if crd else (n, b, b, c // b**2, h, w)
        order = (0, 1, 4, 2, 5, 3) if crd else (0, 3, 4, 1, 5, 2)
        return v.reshape(split).transpose(order).reshape(n, c // b**2, h * b, w * b)

    return [given(x, 0).map(move)]


@kernel("SpaceToDepth")
def space_to_depth(side: Side, node: NodeProto, x: Operands, a: Attributes) -> list[Value]:
    b = a["blocksize"]

    def move(v: Array) -> Array:
        n, c, h, w = v.shape
        split = v.reshape(n, c, h // b, b, w // b, b)
        return split.transpose(0, 3, 5, 1, 2, 4).reshape(n, c * b * b, h // b, w // b)

    return [given(x, 0).map(move)]


@kernel("Shape", "Size")
def shape(side: Side, node: NodeProto, x: Operands, a: Attributes) -> list[Value]:
    found = given(x, 0).shape
    if node.op_type == "Size":
        return [known(np.int64(np.prod(found)))]
    return [known(np.array(found[a.get("start", 0) : a.get("end")], np.int64))]


@kernel("ConstantOfShape")
def constant_of_shape(side: Side, node: NodeProto, x: Operands, a: Attributes) -> list[Value]:
    target = sizes(get(x, 0), "a shape")
    value: Any = a.get("value")
    filler = side.constant(0) if value is None else side.tensor(value)
    return [filler.map(lambda v: np.broadcast_to(v.reshape(()), target))]


@kernel("Range")
def range_(side: Side, node: NodeProto, x: Operands, a: Attributes) -> list[Value]:
    if all(isinstance(o, Known) for o in x):
        start, end, step = (int(array_of(o, "").reshape(())) for o in x)
        free = any(isinstance(o, Known) and o.free for o in x)
        if free:
            raise Undecided("lengths that the caller chooses")
        if step == 0 or (end - start) // step > 1 << 20:
            raise Undecided("Range of this length")
        first = given(x, 0)
        dtype = array_of(first, "").dtype
        return [Known(np.arange(start, end, step).astype(dtype), first.dtype)]
    low, high, by = (number(o, "Range") for o in x)
    places = side.lift(known(np.arange(max(int(np.ceil((high - low) / by)), 0), dtype=np.int64)))
    begin, between = side.lift(x[0]), side.lift(x[2])
    return [replace(side.add(side.mul(places, between), begin), dtype=begin.dtype)]


@kernel("EyeLike")
def eye_like(side: Side, node: NodeProto, x: Operands, a: Attributes) -> list[Value]:
    data = given(x, 0)
    dtype = a.get("dtype") or data.dtype
    rows, columns = data.shape
    eye = known(np.eye(rows, columns, k=a.get("k", 0), dtype=np.int64))
    if dtype in (TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL):
        return [side.cast_known(eye, dtype)]
    return [replace(side.lift(eye), dtype=dtype)]


@kernel("Trilu")
def trilu(side: Side, node: NodeProto, x: Operands, a: Attributes) -> list[Value]:
    k = 0 if get(x, 1) is None else integers(get(x, 1), "a diagonal")[0]
    cut = np.triu if a.get("upper", 1) else np.tril
    data = given(x, 0)
    keep = cut(np.ones(data.shape, bool), k)
    if isinstance(data, Num):
        return [data.map(lambda v: np.where(keep, v, v * 0))]
    return [data.map(lambda v: np.where(keep, v, np.zeros_like(v)))]
