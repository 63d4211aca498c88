"""Products, convolutions, means, sums and normalisations as exact algebra."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
from onnx import NodeProto

from onnxgrad.ir import domains
from onnxgrad.verify.exact.field import Array, Undecided
from onnxgrad.verify.exact.kernels.arithmetic import exponential, knowns, square_root
from onnxgrad.verify.exact.kernels.functions import extreme_of, logarithm
from onnxgrad.verify.exact.kernels.order import larger
from onnxgrad.verify.exact.kernels.registry import (
    LARGEST,
    Operands,
    axes_of,
    axis_of,
    both_known,
    get,
    given,
    kernel,
)
from onnxgrad.verify.exact.side import Attributes, Side, select
from onnxgrad.verify.exact.values import Known, Num, Value, integers


@kernel("MatMul", "MatMulInteger")
def matmul(side: Side, node: NodeProto, x: Operands, a: Attributes) -> list[Value]:
    if both_known(x) and node.op_type == "MatMul":
        return [_of_integers(x, np.matmul)]
    left_, right_ = side.lift(x[0]), side.lift(x[1])
    if node.op_type == "MatMulInteger":
        for i in (2, 3):
            offset = get(x, i)
            if offset is not None:
                o = side.lift(offset)
                column = i == 2 and o.ndim == 1 and o.shape[0] > 1
                o = o.map(lambda v: v.reshape(-1, 1)) if column else o
                left_, right_ = (
                    (side.sub(left_, o), right_) if i == 2 else (left_, side.sub(right_, o))
                )
    first, last = left_.ndim == 1, right_.ndim == 1
    left_ = left_.map(lambda v: v[None, :]) if first else left_
    right_ = right_.map(lambda v: v[:, None]) if last else right_
    found_ = side.matmul(left_, right_)
    found_ = found_.map(lambda v: v[..., 0, :]) if first else found_
    found_ = found_.map(lambda v: v[..., 0]) if last else found_
    dtype = 6 if node.op_type == "MatMulInteger" else left_.dtype
    return [replace(found_, dtype=dtype, image=dtype)]


def _of_integers(x: Operands, f: Callable[..., Any]) -> Value:
    """Returns a product of known integers, which wraps."""
    operands = knowns(x)
    found = np.asarray(f(*(o.array for o in operands)), operands[0].array.dtype)
    return Known(found, operands[0].dtype, any(o.free for o in operands))


@kernel("Gemm")
def gemm(side: Side, node: NodeProto, x: Operands, a: Attributes) -> list[Value]:
    if both_known(x) and a.get("alpha", 1.0) == a.get("beta", 1.0) == 1:
        orders = [np.transpose if a.get(name) else np.asarray for name in ("transA", "transB")]
        return [_of_integers(x, lambda p, q, *c: orders[0](p) @ orders[1](q) + sum(c))]
    left, right = side.lift(x[0]), side.lift(x[1])
    left = left.map(np.transpose) if a.get("transA") else left
    right = right.map(np.transpose) if a.get("transB") else right
    found = side.matmul(left, right)
    if a.get("alpha", 1.0) != 1:
        found = side.mul(found, side.constant(a["alpha"], found.dtype))
    bias = get(x, 2)
    if bias is not None:
        c = side.lift(bias)
        if a.get("beta", 1.0) != 1:
            c = side.mul(c, side.constant(a["beta"], found.dtype))
        found = side.add(found, c)
    return [replace(found, image=found.dtype)]


@kernel("Einsum")
def einsum(side: Side, node: NodeProto, x: Operands, a: Attributes) -> list[Value]:
    equation = str(a["equation"]).replace(" ", "")
    if "." in equation:
        raise Undecided("Einsum with an ellipsis")
    terms, arrow, result = equation.partition("->")
    names = terms.split(",")
    if not arrow:
        every = "".join(names)
        result = "".join(sorted(c for c in set(every) if every.count(c) == 1))
    if both_known(x):
        return [_of_integers(x, lambda *v: np.einsum(f"{terms}->{result}", *v))]
    found: Num | None = None
    have = ""
    for i, term in enumerate(names):
        later = set("".join(names[i + 1 :])) | set(result)
        operand, labels = _diagonal(side.lift(x[i]), term)
        if found is None:
            found, have = operand, labels
        else:
            found, have = _contract(side, found, have, operand, labels, later)
        gone = [k for k, c in enumerate(have) if c not in later]
        found = side.sum(found, gone, keepdims=False)
        have = "".join(c for c in have if c in later)
    assert found is not None
    order = [have.index(c) for c in result]
    return [found.map(lambda v: np.transpose(v, order))]


def _diagonal(x: Num, labels: str) -> tuple[Num, str]:
    once = "".join(dict.fromkeys(labels))
    if len(once) == len(labels):
        return x, labels
    return x.map(lambda v: np.einsum(f"{labels}->{once}", v)), once


def _contract(side: Side, x: Num, p: str, y: Num, q: str, later: set[str]) -> tuple[Num, str]:
    """Returns the product of two operands over their labels, as a batched matrix product."""
    size = dict(zip(p + q, x.shape + y.shape, strict=True))
    gone = [c for c in p if c in q and c not in later]
    batch = [c for c in p if c in q and c in later]
    rows, columns = [c for c in p if c not in q], [c for c in q if c not in p]

    def shaped(v: Num, labels: str, groups: Sequence[Sequence[str]]) -> Num:
        order = [labels.index(c) for group in groups for c in group]
        shape = [size[c] for c in groups[0]]
        shape += [int(np.prod([size[c] for c in group])) for group in groups[1:]]
        return v.map(lambda u: np.transpose(u, order).reshape(shape))

    found = side.matmul(shaped(x, p, (batch, rows, gone)), shaped(y, q, (batch, gone, columns)))
    labels = [*batch, *rows, *columns]
    return found.map(lambda v: v.reshape([size[c] for c in labels])), "".join(labels)


_SUMS = (
    *(op for op in domains.REDUCTIONS if op not in ("ReduceMax", "ReduceMin")), "GlobalAveragePool",
)  # fmt: skip


@kernel(*_SUMS)
def reduction(side: Side, node: NodeProto, o: Operands, a: Attributes) -> list[Value]:
    value, name = given(o, 0), node.op_type
    axes = axes_of(o, a, 1, value.ndim)
    if name == "GlobalAveragePool":
        axes, name = list(range(2, value.ndim)), "ReduceMean"
    if axes == [] and a.get("noop_with_empty_axes"):
        if name not in ("ReduceSum", "ReduceMean", "ReduceProd"):
            raise Undecided(f"{name} without axes")
        return [value]
    axes = axes or list(range(value.ndim))
    if isinstance(value, Known):
        if name not in ("ReduceSum", "ReduceProd"):
            raise Undecided(f"{name} of integers")
        f = np.sum if name == "ReduceSum" else np.prod
        with np.errstate(all="ignore"):
            whole = f(value.array, axis=tuple(axes), keepdims=True, dtype=value.array.dtype)
        found: Value = replace(value, array=np.asarray(whole))
    else:
        found = _reduced(side, name, value, axes)
        found = replace(found, dtype=value.dtype, image=value.dtype)
    keep = bool(a.get("keepdims", 1))
    return [found if keep else found.map(lambda v: np.squeeze(v, tuple(axes)))]


def _reduced(side: Side, name: str, x: Num, axes: Sequence[int]) -> Num:
    """Returns a reduction whose axes stay with size 1."""
    if name == "ReduceProd":
        return _product(side, x, axes)
    if name in ("ReduceSumSquare", "ReduceL2"):
        x = side.mul(x, x)
    elif name == "ReduceL1":
        x = side.lift(select(side, larger(side, x), x, side.neg(x)))
    elif name == "ReduceLogSumExp":
        x = exponential(side, x)
    found = side.sum(x, axes)
    if name == "ReduceMean":
        count = int(np.prod([x.shape[k] for k in axes]))
        if not count:
            raise Undecided("a mean of nothing")
        return side.mul(found, side.constant(Fraction(1, count), x.dtype))
    if name in ("ReduceLogSum", "ReduceLogSumExp"):
        return logarithm(side, found)
    return square_root(side, found) if name == "ReduceL2" else found


def _taken(x: Num, i: int, axis: int) -> Num:
    return x.map(lambda v: np.take(v, [i], axis))


def _product(side: Side, x: Num, axes: Sequence[int]) -> Num:
    for k in axes:
        if not x.shape[k]:
            raise Undecided("a product of nothing")
        found = _taken(x, 0, k)
        for i in range(1, x.shape[k]):
            found = side.mul(found, _taken(x, i, k))
        x = found
    return x


@kernel("CumSum")
def cumsum(side: Side, node: NodeProto, o: Operands, a: Attributes) -> list[Value]:
    value = given(o, 0)
    axis = axis_of(integers(get(o, 1), "an axis")[0], value.ndim)
    exclusive, backwards = bool(a.get("exclusive")), bool(a.get("reverse"))

    def total(v: Array) -> Array:
        v = np.flip(v, axis) if backwards else v
        found = np.cumsum(v, axis, dtype=v.dtype)
        found = found - v if exclusive else found
        return np.flip(found, axis) if backwards else found

    if isinstance(value, Known):
        with np.errstate(all="ignore"):
            return [value.map(total)]
    return [side.each(total, value, degree=value.degree, dtype=value.dtype)]


# ---- windows over images


def _window(a: Attributes, x: Value, kernel_shape: Sequence[int]) -> tuple[Any, ...]:
    """Returns strides, dilations and pads of each spatial axis."""
    n = len(kernel_shape)
    strides = list(a.get("strides") or [1] * n)
    dilations = list(a.get("dilations") or [1] * n)
    pads = list(a.get("pads") or [0] * (2 * n))
    auto = a.get("auto_pad", "NOTSET")
    if auto == "VALID":
        pads = [0] * (2 * n)
    elif auto != "NOTSET":
        for k in range(n):
            size, span = x.shape[2 + k], (kernel_shape[k] - 1) * dilations[k] + 1
            total = max((-(-size // strides[k]) - 1) * strides[k] + span - size, 0)
            low = total // 2 if auto == "SAME_UPPER" else -(-total // 2)
            pads[k], pads[n + k] = low, total - low
    return strides, dilations, pads


def _patches(v: Array, shape: Sequence[int], strides: Any, dilations: Any) -> Array:
    """Returns [N, C, *sizes of the result, *kernel] of padded images."""
    n = len(shape)
    spans = [(k - 1) * d + 1 for k, d in zip(shape, dilations, strict=True)]
    if any(s < span for s, span in zip(v.shape[2:], spans, strict=True)):
        raise Undecided("a window larger than its image")
    found = np.lib.stride_tricks.sliding_window_view(v, spans, tuple(range(2, 2 + n)))
    index = (slice(None), slice(None), *(slice(None, None, s) for s in strides),
             *(slice(None, None, d) for d in dilations))  # fmt: skip
    return found[index]


def _padded(v: Array, pads: Sequence[int]) -> Array:
    n = len(pads) // 2
    return np.pad(v, [(0, 0), (0, 0), *((pads[k], pads[n + k]) for k in range(n))])


@kernel("Conv", "ConvInteger")
def conv(side: Side, node: NodeProto, o: Operands, a: Attributes) -> list[Value]:
    x, w = side.lift(o[0]), side.lift(o[1])
    bias = get(o, 2)
    if node.op_type == "ConvInteger":
        for i in (2, 3):
            zero = get(o, i)
            if zero is not None and zero.ndim and zero.shape != (1,):
                raise Undecided("ConvInteger with zero points by channel")
            if zero is not None:
                x, w = (side.sub(x, side.lift(zero)), w) if i == 2 else (
                    x, side.sub(w, side.lift(zero)))  # fmt: skip
        bias = None
    shape, groups = w.shape[2:], a.get("group", 1)
    strides, dilations, pads = _window(a, x, shape)
    n, c, m = x.shape[0], x.shape[1], w.shape[0]
    if c != w.shape[1] * groups or m % groups:
        raise Undecided("Conv of channels that do not fit")

    def unrolled(v: Array) -> Array:
        found = _patches(_padded(v, pads), shape, strides, dilations)
        d = len(shape)
        if found.size > LARGEST:
            raise Undecided("an image of this size")
        split = found.reshape(n, groups, c // groups, *found.shape[2:])
        order = (0, 1, *range(3, 3 + d), 2, *range(3 + d, 3 + 2 * d))
        rows = np.transpose(split, order)
        return rows.reshape(n, groups, int(np.prod(rows.shape[2 : 2 + d])), -1)

    size = _patches(_padded(np.zeros(x.shape, bool), pads), shape, strides, dilations).shape
    kernels = w.map(lambda v: np.swapaxes(v.reshape(groups, m // groups, -1), 1, 2))
    found = side.matmul(x.map(unrolled), kernels)
    found = found.map(lambda v: np.swapaxes(v, 2, 3).reshape(n, m, *size[2 : 2 + len(shape)]))
    found = _biased(side, found, bias)
    dtype = 6 if node.op_type == "ConvInteger" else found.dtype
    return [replace(found, dtype=dtype, image=dtype)]


def _biased(side: Side, x: Num, bias: Value | None) -> Num:
    return x if bias is None else side.add(x, _channels(side.lift(bias), x.ndim))


def _channels(v: Num, rank: int) -> Num:
    """Returns a vector over channels, in the shape that broadcasts with images."""
    return v.map(lambda u: u.reshape(-1, *([1] * (rank - 2))))


@kernel("ConvTranspose")
def conv_transpose(side: Side, node: NodeProto, o: Operands, a: Attributes) -> list[Value]:
    x, w = side.lift(o[0]), side.lift(o[1])
    if a.get("output_shape") or a.get("auto_pad", "NOTSET") != "NOTSET":
        raise Undecided("ConvTranspose with an output shape")
    shape, groups = w.shape[2:], a.get("group", 1)
    strides, dilations, pads = _window(a, x, shape)
    d = len(shape)
    more = list(a.get("output_padding") or [0] * d)
    n, c, m = x.shape[0], x.shape[1], w.shape[1]
    full = [
        (x.shape[2 + k] - 1) * strides[k] + (shape[k] - 1) * dilations[k] + 1 + more[k]
        for k in range(d)
    ]
    rows = x.map(lambda v: np.swapaxes(v.reshape(n, groups, c // groups, -1), 2, 3))
    kernels = w.map(lambda v: v.reshape(groups, c // groups, -1))
    spread = side.matmul(rows, kernels)  # [n, groups, pixels, m * kernel]

    def gathered(v: Array) -> Array:
        pixels = v.reshape(n, groups, *x.shape[2:], m, *shape)
        out = np.zeros((n, groups, m, *full), v.dtype)
        order = (0, 1, 2 + d, *range(2, 2 + d))
        for at in product(*(range(k) for k in shape)):
            chosen: Any = (..., *at)
            piece = np.transpose(pixels[chosen], order)
            place = tuple(
                slice(i * dl, i * dl + (size - 1) * s + 1, s)
                for i, dl, s, size in zip(at, dilations, strides, x.shape[2:], strict=True)
            )
            out[(slice(None), slice(None), slice(None), *place)] += piece
        out = out.reshape(n, groups * m, *full)
        cut = tuple(slice(pads[k], full[k] - pads[d + k]) for k in range(d))
        return out[(slice(None), slice(None), *cut)]

    found = side.each(gathered, spread, degree=spread.degree, dtype=x.dtype)
    return [_biased(side, found, get(o, 2))]


@kernel("AveragePool", "MaxPool", "LpPool")
def pool(side: Side, node: NodeProto, o: Operands, a: Attributes) -> list[Value]:
    x, shape = side.lift(o[0]), list(a["kernel_shape"])
    if node.op_type == "LpPool" or a.get("ceil_mode") or len(node.output) > 1:
        raise Undecided(f"{node.op_type} with these attributes")
    strides, dilations, pads = _window(a, x, shape)
    d = len(shape)

    def patches(v: Array) -> Array:
        found = _patches(_padded(v, pads), shape, strides, dilations)
        if found.size > LARGEST:
            raise Undecided("an image of this size")
        return np.ascontiguousarray(found).reshape(*found.shape[: 2 + d], -1)

    inside = patches(np.ones(x.shape, bool))
    rows = x.map(patches)
    if node.op_type == "MaxPool":
        found = extreme_of(side, rows, [2 + d], True, None if inside.all() else inside)
        return [found.map(lambda v: v[..., 0])]
    count = inside.sum(-1) if not a.get("count_include_pad") else np.full(
        inside.shape[:-1], inside.shape[-1])  # fmt: skip
    total = side.sum(rows, [2 + d], keepdims=False)
    share = side.inverse(replace(side.lift(Known(count.astype(np.int64), 7)), raw=count))
    return [replace(side.mul(total, share), dtype=x.dtype, image=x.dtype)]


# ---- normalisations


def _scaled(side: Side, x: Num, centred: Num, square: Num, epsilon: Any) -> Num:
    root = square_root(side, side.add(square, side.constant(epsilon, x.dtype)))
    return side.div(centred, root)


def _normal(side: Side, x: Num, axes: Sequence[int], epsilon: Any, centre: bool = True) -> Num:
    share = Fraction(1, int(np.prod([x.shape[k] for k in axes])) or 1)
    each = side.constant(share, x.dtype)
    centred = side.sub(x, side.mul(side.sum(x, axes), each)) if centre else x
    return _scaled(side, x, centred, side.mul(side.sum(side.mul(centred, centred), axes), each),
                   epsilon)  # fmt: skip


@kernel("BatchNormalization")
def batch_normalization(side: Side, node: NodeProto, o: Operands, a: Attributes) -> list[Value]:
    if a.get("training_mode") or len(node.output) > 1 or a.get("spatial") == 0:
        raise Undecided("BatchNormalization in training")
    x = side.lift(o[0])
    scale, bias, mean, var = (_channels(side.lift(v), max(x.ndim, 2)) for v in o[1:5])
    found = _scaled(side, x, side.sub(x, mean), var, a.get("epsilon", 1e-5))
    return [side.add(side.mul(found, scale), bias)]


@kernel("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization")
def layer_normalization(side: Side, node: NodeProto, o: Operands, a: Attributes) -> list[Value]:
    x = side.lift(o[0])
    if len(node.output) > 1:
        raise Undecided(f"{node.op_type} with several outputs")
    axes = list(range(axis_of(a.get("axis", -1), x.ndim), x.ndim))
    centre = node.op_type == "LayerNormalization"
    return [_of_rows(side, x, axes, a.get("epsilon", 1e-5), centre, o[1], get(o, 2))]


def _of_rows(side: Side, x: Num, axes: Sequence[int], epsilon: float, centre: bool,
             scale: Value | None, bias: Value | None) -> Num:  # fmt: skip
    found = side.mul(_normal(side, x, axes, epsilon, centre), side.lift(scale))
    return found if bias is None else side.add(found, side.lift(bias))


@kernel("SkipLayerNormalization", "SkipSimplifiedLayerNormalization")
def skip_normalization(side: Side, node: NodeProto, o: Operands, a: Attributes) -> list[Value]:
    centre = node.op_type == "SkipLayerNormalization"
    if any(node.output[1:3]):
        raise Undecided(f"{node.op_type} with statistics")
    total, more = side.add(side.lift(o[0]), side.lift(o[1])), get(o, 4 if centre else 3)
    total = total if more is None else side.add(total, side.lift(more))
    bias = get(o, 3) if centre else None
    epsilon = float(np.float32(a.get("epsilon", 1e-12)))
    found = _of_rows(side, total, [total.ndim - 1], epsilon, centre, o[2], bias)
    return [found, found, found, total]  # the statistics have no reader


@kernel("InstanceNormalization", "GroupNormalization")
def instance_normalization(side: Side, node: NodeProto, o: Operands, a: Attributes) -> list[Value]:
    x = side.lift(o[0])
    groups = a.get("num_groups", x.shape[1])
    shape = (x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])
    split = x.map(lambda v: v.reshape(shape))
    found = _normal(side, split, list(range(2, len(shape))), a.get("epsilon", 1e-5))
    found = found.map(lambda v: v.reshape(x.shape))
    if node.op_type == "GroupNormalization" and side.opset < 21:
        raise Undecided("GroupNormalization below opset 21")
    scale, bias = (_channels(side.lift(v), x.ndim) for v in o[1:3])
    return [side.add(side.mul(found, scale), bias)]
