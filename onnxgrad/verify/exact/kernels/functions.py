"""Transcendental functions, which are uninterpreted but for a few laws, and functions of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto

from onnxgrad.ir import domains
from onnxgrad.verify.exact.field import Array, Undecided
from onnxgrad.verify.exact.kernels.arithmetic import exponential, is_zero, merged, square_root
from onnxgrad.verify.exact.kernels.order import larger, maximum, unsigned
from onnxgrad.verify.exact.kernels.registry import (
    Operands,
    axes_of,
    axis_of,
    get,
    given,
    kernel,
)
from onnxgrad.verify.exact.rational import Rationals
from onnxgrad.verify.exact.side import Attributes, Side, select
from onnxgrad.verify.exact.values import Known, Num, Value, integers, known

_ODD = domains.ODD
_EVEN = ("Cos", "Cosh")


def odd_or_even(side: Side, name: str, x: Num) -> Num:
    """Returns f(x), with f(-x) = -f(x) and f(0) = 0, or f(-x) = f(x)."""
    if x.infinite:
        return side.call(name, replace(x, raw=None), dtype=x.dtype)
    folded, flip = unsigned(side, x)
    found = side.call(name, folded, dtype=x.dtype)
    if name in _EVEN:
        return found
    found = merged(side, flip, side.neg(found), found)
    return merged(side, is_zero(x), side.constant(0, x.dtype), found)


def logarithm(side: Side, x: Num) -> Num:
    """Returns Log(x)."""
    return side.call("Log", replace(x, raw=None), dtype=x.dtype)


def logistic(side: Side, x: Num) -> Num:
    """Returns Sigmoid(x) = 1 / (1 + Exp(-x)); a function of its own if the window has no Exp."""
    if not side.has_exp:
        return side.call("Sigmoid", replace(x, raw=None), dtype=x.dtype)
    return side.inverse(side.add(side.constant(1, x.dtype), exponential(side, side.neg(x))))


@kernel("Exp", "Log", "Sqrt", *_ODD, *_EVEN, "Acos", "Acosh")
def transcendental(side: Side, node: NodeProto, o: Operands, a: Attributes) -> list[Value]:
    x = side.lift(o[0])
    if node.op_type == "Exp":
        side.note_partial("exponential", x)
        return [exponential(side, x)]
    if node.op_type == "Log":
        side.note_partial("logarithm", x)
        return [logarithm(side, x)]
    if node.op_type == "Sqrt":
        return [square_root(side, x)]
    if node.op_type in (*_ODD, *_EVEN):
        return [odd_or_even(side, node.op_type, x)]
    return [side.call(node.op_type, replace(x, raw=None), dtype=x.dtype)]


@kernel("Sigmoid", "Softplus", "Softsign", "Swish", "Mish")
def smooth(side: Side, node: NodeProto, o: Operands, a: Attributes) -> list[Value]:
    x = side.lift(o[0])

    def constant(value: object) -> Num:
        return side.constant(value, x.dtype)

    def softplus(v: Num) -> Num:
        return logarithm(side, side.add(constant(1), exponential(side, v)))

    name = node.op_type
    if name == "Sigmoid":
        return [logistic(side, x)]
    if name == "Swish":
        return [side.mul(x, logistic(side, side.mul(x, constant(a.get("alpha", 1.0)))))]
    if name == "Softplus":
        return [softplus(x)]
    if name == "Mish":
        return [side.mul(x, odd_or_even(side, "Tanh", softplus(x)))]
    size = side.lift(select(side, larger(side, x), x, side.neg(x)))
    return [side.div(x, side.add(size, constant(1)))]


@kernel("Gelu", "FastGelu")
def gelu(side: Side, node: NodeProto, o: Operands, a: Attributes) -> list[Value]:
    x, bias = side.lift(o[0]), get(o, 1)
    x = x if bias is None else side.add(x, side.lift(bias))
    if node.op_type == "FastGelu" or a.get("approximate", "none") == "tanh":
        cube = side.mul(side.power(x, 3), side.symbol("0.044715", x.dtype))
        inner = side.mul(side.add(x, cube), side.symbol("sqrt(2/pi)", x.dtype))
        bell = odd_or_even(side, "Tanh", inner)
    else:
        bell = odd_or_even(side, "Erf", side.mul(x, side.symbol("sqrt(1/2)", x.dtype)))
    half = side.mul(x, side.constant(Fraction(1, 2), x.dtype))
    return [side.mul(half, side.add(bell, side.constant(1, x.dtype)))]


@kernel("Ceil", "Floor", "Round")
def rounding(side: Side, node: NodeProto, o: Operands, a: Attributes) -> list[Value]:
    x = side.lift(o[0])
    name = node.op_type
    if isinstance(side.ring, Rationals):
        side.ordered(x)
        f = {"Ceil": lambda v: Fraction(-((-v) // 1)), "Floor": lambda v: Fraction(v // 1),
             "Round": lambda v: Fraction(round(v))}[name]  # fmt: skip
        return [Num((side.ring.elementwise(f, x.parts[0]),), x.dtype)]
    if name == "Round":
        return [odd_or_even(side, name, x)]
    if name == "Ceil":
        return [side.neg(side.call("Floor", replace(side.neg(x), raw=None), dtype=x.dtype))]
    return [side.call("Floor", replace(x, raw=None), dtype=x.dtype)]


# ---- rows


@kernel("Softmax", "LogSoftmax", "Hardmax")
def softmax(side: Side, node: NodeProto, o: Operands, a: Attributes) -> list[Value]:
    x = side.lift(o[0])
    axis = axis_of(a.get("axis", -1 if side.opset >= 13 else 1), x.ndim)
    axes = [axis] if side.opset >= 13 else list(range(axis, x.ndim))
    if node.op_type == "Hardmax":
        return [side.rows(f"Hardmax {len(axes)}", replace(x, raw=None), axes, dtype=x.dtype)]
    powers = exponential(side, x)
    total = side.sum(powers, axes)
    if node.op_type == "Softmax":
        return [side.div(powers, total)]
    return [side.sub(x, logarithm(side, total))]


_REDUCTIONS = ("ReduceMax", "ReduceMin", "GlobalMaxPool")


@kernel(*_REDUCTIONS)
def reduce_extreme(side: Side, node: NodeProto, o: Operands, a: Attributes) -> list[Value]:
    x = given(o, 0)
    axes = axes_of(o, a, 1, x.ndim)
    if node.op_type == "GlobalMaxPool":
        axes = list(range(2, x.ndim))
    if axes is None or (not axes and not a.get("noop_with_empty_axes")):
        axes = list(range(x.ndim))
    keep = bool(a.get("keepdims", 1))
    largest = node.op_type != "ReduceMin"
    if isinstance(x, Known):
        free = side.chosen(f"{node.op_type} {axes} {x.dtype}", x)
        f = np.max if largest else np.min
        return [Known(np.asarray(f(x.array, axis=tuple(axes), keepdims=keep)), x.dtype, free)]
    found = extreme_of(side, x, axes, largest)
    return [found if keep else found.map(lambda v: np.squeeze(v, tuple(axes)))]


def extreme_of(side: Side, x: Num, axes: Sequence[int], largest: bool,
               inside: Array | None = None) -> Num:  # fmt: skip
    """Returns the largest (smallest) element of rows, of those `inside`; the axes stay."""
    if not axes or all(x.shape[k] == 1 for k in axes):
        return replace(x, raw=None)
    if isinstance(side.ring, Rationals):
        side.ordered(x)
        a = x.parts[0]
        if inside is not None:
            low = min(a.reshape(-1), default=Fraction(0)) - 1
            a = np.asarray(np.where(inside, a, np.array(low, object)))
        f = np.max if largest else np.min
        return Num(
            (np.asarray(f(a, axis=tuple(axes), keepdims=True), object),), x.dtype, 1, x.image
        )
    x = x if largest else side.neg(x)
    if np.prod([x.shape[k] for k in axes]) == 2 and inside is None:
        k = next(k for k in axes if x.shape[k] == 2)
        first = x.map(lambda v: np.take(v, [0], k))
        found = maximum(side, first, x.map(lambda v: np.take(v, [1], k)))
    else:
        marked = side.call("element", replace(x, raw=None), dtype=x.dtype)
        if inside is not None:
            marked = marked.map(lambda v: np.where(inside, v, v * 0))
        found = side.call("extreme", side.sum(marked, axes), dtype=x.dtype)
    return found if largest else side.neg(found)


@kernel("ArgMax", "ArgMin", "TopK")
def order(side: Side, node: NodeProto, o: Operands, a: Attributes) -> list[Value]:
    x = side.lift(o[0])
    axis = axis_of(a.get("axis", -1 if node.op_type == "TopK" else 0), x.ndim)
    first = o[0]
    if isinstance(first, Known) and node.op_type != "TopK":
        return [_arg_of_known(side, node, first, axis, a)]
    if node.op_type == "TopK":
        k = a["k"] if "k" in a else integers(get(o, 1), "k")[0]
        largest, count = bool(a.get("largest", 1)), int(k)
    else:
        largest, count = node.op_type == "ArgMax", 1
    if not a.get("sorted", 1):
        raise Undecided("TopK in no order")
    if count > x.shape[axis]:
        raise Undecided("TopK of more than there are")
    last = bool(a.get("select_last_index", 0))
    if isinstance(side.ring, Rationals):
        side.ordered(x)
        moved = np.moveaxis(x.parts[0], axis, -1)
        rows = moved.reshape(-1, moved.shape[-1])
        places = [_places(row, count, largest, last) for row in rows]
        at = np.array(places, np.int64).reshape(*moved.shape[:-1], count)

        def taken(v: Array) -> Array:
            found = np.take_along_axis(np.moveaxis(v, axis, -1), at, -1)
            return np.moveaxis(found, -1, axis)

        values = x.map(taken)
        index: Value = known(np.moveaxis(at, -1, axis))
    else:
        name = f"{node.op_type} {largest} {last}"
        row = replace(x, parts=side.ring.digest(x.parts, [axis]), raw=None)
        shape = [count if k == axis else 1 for k in range(x.ndim)]
        at = np.arange(count, dtype=np.int64).reshape(shape)
        place = Num(side.ring.embed(at), TensorProto.INT64)
        values = side.call(f"{name} values", row, place, dtype=x.dtype)
        index = side.call(f"{name} index", row, place, dtype=TensorProto.INT64)
    if node.op_type == "TopK":
        return [values, index]
    return [index if a.get("keepdims", 1) else index.map(lambda v: np.squeeze(v, axis))]


def _arg_of_known(side: Side, node: NodeProto, x: Known, axis: int, a: Attributes) -> Value:
    last, keep = bool(a.get("select_last_index", 0)), bool(a.get("keepdims", 1))
    free = side.chosen(f"{node.op_type} {axis} {last} {keep}", x)
    f = np.argmax if node.op_type == "ArgMax" else np.argmin
    array = np.flip(x.array, axis) if last else x.array
    found = np.asarray(f(array, axis=axis))
    found = x.shape[axis] - 1 - found if last else found
    return known(np.expand_dims(found, axis) if keep else found, free=free)


def _places(row: Array, count: int, largest: bool, last: bool) -> list[int]:
    """Returns the places of the first numbers of a row in order; ties go to the lower place."""

    def key(i: int) -> tuple[Any, int]:
        return -row[i] if largest else row[i], -i if last else i

    return sorted(range(len(row)), key=key)[:count]
