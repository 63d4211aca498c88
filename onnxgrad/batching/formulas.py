"""Operators computed by others, if operands that their rules share differ from row to row: weights
of convolutions, scales of normalisations. Rows are then followed through the formula.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from onnx import TensorProto

from onnxgrad.batching.layout import Refused
from onnxgrad.batching.registry import opened
from onnxgrad.batching.site import Site
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import Array
from onnxgrad.ir.var import Var

_PLANE = 2  # axes of an image
_COL2IM = 18  # opset
_BYTES: dict[int, tuple[int, int]] = {TensorProto.UINT8: (0, 255), TensorProto.INT8: (-128, 127)}
_MOST = 1 << 22  # elements of the indices of a convolution


@opened("Conv")
def conv(at: Site) -> Sequence[Var | None]:
    """A product with the patches, which a Gather with constant indices reads."""
    x, w = _operand(at, 0), _operand(at, 1)
    (n, channels, *image), (_, each, *kernel), out = _ints(x), _ints(w), _ints(at.binding.out)
    groups, spatial = int(at.attr("group", 1)), len(image)
    begin, end = _pads(at, image, kernel, out[2:])
    if any(begin) or any(end):
        x = op.Pad(x, np.array([0, 0, *begin, 0, 0, *end], np.int64))
    padded = [size + a + b for size, a, b in zip(image, begin, end, strict=True)]
    places = _patches(at, padded, kernel, out[2:])
    flat = op.Reshape(x, np.array([n, channels, math.prod(padded)]))
    columns = op.Gather(flat, places.reshape(-1), axis=2)
    count, size = math.prod(out[2:]), math.prod(kernel)
    columns = op.Reshape(columns, np.array([n, groups, each * size, count]))
    weights = op.Reshape(w, np.array([groups, out[1] // groups, each * size]))
    made = op.Reshape(op.MatMul(weights, columns), np.array(out))
    return [_biased(at, made, spatial)]


@opened("ConvTranspose")
def transposed_conv(at: Site) -> Sequence[Var | None]:
    """A product with each element, and Col2Im, which adds up patches."""
    x, w = _operand(at, 0), _operand(at, 1)
    (n, channels, *image), (_, each, *kernel), out = _ints(x), _ints(w), _ints(at.binding.out)
    if at.binding.block.opsets[""] < _COL2IM:
        raise Refused("Col2Im is of a newer opset")
    groups, spatial = int(at.attr("group", 1)), len(image)
    strides, dilations = (list(at.attr(k) or [1] * spatial) for k in ("strides", "dilations"))
    whole = [
        (size - 1) * s + (k - 1) * d + 1
        for size, s, k, d in zip(image, strides, kernel, dilations, strict=True)
    ]
    begin, end = _cut(at, whole, out[2:])
    inside = channels // groups
    flat = op.Reshape(x, np.array([n, groups, inside, math.prod(image)]))
    turned = op.Reshape(w, np.array([groups, inside, each * math.prod(kernel)]))
    turned = op.Transpose(turned, perm=[0, 2, 1])
    columns = op.MatMul(turned, flat)
    columns = op.Reshape(columns, np.array([n, out[1] * math.prod(kernel), math.prod(image)]))
    # a longer image than the patches reach has zeros at its end
    more = [max(-e, 0) for e in end]
    shape = [size + m for size, m in zip(out[2:], [-m for m in more], strict=True)]
    # onnxruntime's Col2Im is wrong for dilations unless the image has two axes
    dilated = any(d != 1 for d in dilations)
    if dilated and spatial > _PLANE:
        raise Refused("Col2Im with dilations is right for two axes alone")
    unit, zero = ([1], [0]) if dilated and spatial < _PLANE else ([], [])
    made = op.Col2Im(
        columns,
        np.array([*unit, *shape]),
        np.array([*unit, *kernel]),
        dilations=[*unit, *dilations],
        strides=[*unit, *strides],
        pads=[*zero, *begin, *zero, *(max(e, 0) for e in end)],
    )
    if unit:
        made = op.Reshape(made, np.array([n, out[1], *shape]))
    if any(more):
        made = op.Pad(made, np.array([0, 0, *[0] * spatial, 0, 0, *more]))
    return [_biased(at, made, spatial)]


@opened("BatchNormalization")
def batch_normalization(at: Site) -> Sequence[Var | None]:
    """By the statistics of the row, or those stored."""
    x, scale, bias, mean, variance = (_operand(at, k) for k in range(5))
    rank, training = at.rank(0), at.attr("training_mode", 0)
    if at.version < 14 and sum(v is not None for v in at.binding.outputs) > 1:
        raise Refused("BatchNormalization of an old opset")
    ends: list[Var | None] = []
    if training:
        axes = np.array([i for i in range(rank) if i != 1])
        old, share = (mean, variance), float(at.attr("momentum", 0.9))
        kept = op.ReduceMean(x, axes, keepdims=1)
        apart = op.Sub(x, kept)
        spread = op.ReduceMean(op.Mul(apart, apart), axes, keepdims=1)
        mean, variance = (op.Reshape(v, np.array([-1])) for v in (kept, spread))
        ends = [
            op.Add(op.Mul(a, share), op.Mul(b, 1.0 - share))
            for a, b in zip(old, (mean, variance), strict=True)
        ]
    inverse = op.Sqrt(op.Add(variance, float(at.attr("epsilon", 1e-5))))
    columns = [_column(v, rank - 2) for v in (mean, inverse, scale, bias)]
    made = op.Div(op.Sub(x, columns[0]), columns[1])
    return [op.Add(op.Mul(made, columns[2]), columns[3]), *ends]


@opened("InstanceNormalization")
def instance_normalization(at: Site) -> Sequence[Var | None]:
    """Each channel of each sample by its statistics."""
    x, scale, bias = (_operand(at, k) for k in range(3))
    rank = at.rank(0)
    axes = np.arange(2, rank)
    apart = op.Sub(x, op.ReduceMean(x, axes, keepdims=1))
    spread = op.ReduceMean(op.Mul(apart, apart), axes, keepdims=1)
    made = op.Div(apart, op.Sqrt(op.Add(spread, float(at.attr("epsilon", 1e-5)))))
    columns = [_column(v, rank - 2) for v in (scale, bias)]
    return [op.Add(op.Mul(made, columns[0]), columns[1])]


@opened("OneHot")
def one_hot(at: Site) -> Sequence[Var | None]:
    """A choice between both values."""
    if at.at(1) is not None or at.at(2) is None:
        raise Refused("its depth differs from row to row")
    indices, depth, values = (_operand(at, k) for k in range(3))
    # onnxruntime has no bool results, and floats for these indices and depths alone
    indices, depth = (op.Cast(v, to=TensorProto.INT64) for v in (indices, depth))
    hot = op.OneHot(indices, depth, np.array([0, 1], np.float32), axis=int(at.attr("axis", -1)))
    hot = op.Cast(hot, to=TensorProto.BOOL)
    off, on = (op.Gather(values, np.array(i), axis=0) for i in range(2))
    return [op.Where(hot, on, off)]


@opened("QuantizeLinear")
def quantize(at: Site) -> Sequence[Var | None]:
    """One scale in each row."""
    x, scale, zero = (_operand(at, k) for k in range(3))
    least = _BYTES.get(zero.dtype)
    if least is None or max(scale.rank or 0, zero.rank or 0):
        raise Refused("its scales are several, or its type is another")
    wide = op.Add(op.Round(op.Div(x, scale)), op.Cast(zero, to=x.dtype))
    return [op.Cast(op.Min(op.Max(wide, float(least[0])), float(least[1])), to=zero.dtype)]


@opened("DequantizeLinear")
def dequantize(at: Site) -> Sequence[Var | None]:
    """One scale in each row."""
    x, scale = _operand(at, 0), _operand(at, 1)
    zero = at.operand(2)
    if scale.rank or x.dtype not in (TensorProto.UINT8, TensorProto.INT8):
        raise Refused("its scales are several, or its type is another")
    made = op.Cast(x, to=scale.dtype)
    if zero is not None:
        made = op.Sub(made, op.Cast(zero, to=scale.dtype))
    return [op.Mul(made, scale)]


def _operand(at: Site, k: int) -> Var:
    v = at.operand(k)
    if v is None:
        raise Refused(f"operand {k} is missing")
    return v


def _column(v: Var, axes: int) -> Var:
    """Returns a vector as the shape [size, 1, ...]."""
    made: Var = op.Unsqueeze(v, np.arange(1, axes + 1)) if axes else v
    return made


def _biased(at: Site, made: Var, spatial: int) -> Var:
    bias = at.operand(2)
    return made if bias is None else op.Add(made, _column(bias, spatial))


def _ints(v: Var) -> list[int]:
    """Returns the shape of one row. Raises Refused if a size is symbolic or 0."""
    shape = v.shape or ()
    if not shape or any(not isinstance(d, int) or d == 0 for d in shape):
        raise Refused("its sizes are not known")
    return [int(str(d)) for d in shape]


def _pads(
    at: Site, image: Sequence[int], kernel: Sequence[int], out: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Returns the padding at both ends of each axis, of which the shape of the result says the sum.
    Raises Refused if the explicit one disagrees.
    """
    spatial = len(image)
    strides, dilations = (list(at.attr(k) or [1] * spatial) for k in ("strides", "dilations"))
    auto = at.attr("auto_pad", "NOTSET")
    auto = auto.decode() if isinstance(auto, bytes) else auto
    if auto in ("NOTSET", "VALID"):
        given = (
            list(at.attr("pads") or [0] * 2 * spatial) if auto == "NOTSET" else [0] * 2 * spatial
        )
        return given[:spatial], given[spatial:]
    begin, end = [], []
    for size, k, s, d, o in zip(image, kernel, strides, dilations, out, strict=True):
        total = max((o - 1) * s + (k - 1) * d + 1 - size, 0)
        less, more = total // 2, total - total // 2
        begin.append(less if auto == "SAME_UPPER" else more)
        end.append(more if auto == "SAME_UPPER" else less)
    return begin, end


def _patches(at: Site, padded: Sequence[int], kernel: Sequence[int], out: Sequence[int]) -> Array:
    """Returns the places in the flat image of each element of the kernel at each of the result."""
    spatial = len(padded)
    strides, dilations = (list(at.attr(k) or [1] * spatial) for k in ("strides", "dilations"))
    if math.prod(kernel) * math.prod(out) > _MOST:
        raise Refused("its patches have too many elements")
    places: Array = np.zeros([1] * 2 * spatial, np.int64)
    for i in range(spatial):
        shape = [1] * 2 * spatial
        shape[i] = kernel[i]
        steps = np.arange(kernel[i]).reshape(shape) * dilations[i]
        shape[i], shape[spatial + i] = 1, out[i]
        steps = steps + np.arange(out[i]).reshape(shape) * strides[i]
        places = places * padded[i] + steps
    return places


def _cut(at: Site, whole: Sequence[int], out: Sequence[int]) -> tuple[list[int], list[int]]:
    """Returns the elements that a transposed convolution loses at both ends of each axis; negative
    ones at an end are zeros that the result has more.
    """
    spatial = len(whole)
    lost = [w - o for w, o in zip(whole, out, strict=True)]
    auto = at.attr("auto_pad", "NOTSET")
    auto = auto.decode() if isinstance(auto, bytes) else auto
    pads = list(at.attr("pads") or [0] * 2 * spatial)
    if auto not in ("NOTSET", "VALID") or at.attr("output_shape"):
        raise Refused("its padding follows from its result")
    begin = pads[:spatial] if auto == "NOTSET" else [0] * spatial
    return begin, [sum_ - b for sum_, b in zip(lost, begin, strict=True)]
