"""Comparisons, casts, and functions that follow the order of numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any, cast

import numpy as np
from onnx import NodeProto, TensorProto, helper

from onnxgrad.verify.exact.field import Array, Undecided
from onnxgrad.verify.exact.kernels.arithmetic import exponential, knowns, whole_numbers
from onnxgrad.verify.exact.kernels.registry import Operands, both_known, get, given, kernel
from onnxgrad.verify.exact.rational import Rationals
from onnxgrad.verify.exact.side import Attributes, Side, function_name, min_image, select
from onnxgrad.verify.exact.values import BITS, BOOL, Known, Num, Value, known, number, widens

_END = 3.4e38
# narrow dtypes to which a cast of a constant rounds once, in numpy as in every runtime
_ROUNDED = (TensorProto.FLOAT16, TensorProto.BFLOAT16)


def positive(side: Side, d: Num, *, name: str = "positive") -> Value:
    """Returns d > 0 as booleans: uninterpreted in a field."""
    if isinstance(side.ring, Rationals):
        side.ordered(d)
        return known(np.asarray(d.parts[0] > 0, bool))
    return side.call(name, replace(d, raw=None), dtype=BOOL)


def zero(side: Side, d: Num) -> Value:
    """Returns d == 0, which is the same for d and -d."""
    if isinstance(side.ring, Rationals):
        side.ordered(d)
        return known(np.asarray(d.parts[0] == 0, bool))
    return side.call("zero", unsigned(side, d)[0], dtype=BOOL)


def unsigned(side: Side, d: Num) -> tuple[Num, Array]:
    """Returns d or -d, the same for both, and where it is -d."""
    flip = side.ring.is_negative(d.parts)
    minus = side.neg(d)
    parts = tuple(np.where(flip, m, p) for m, p in zip(minus.parts, d.parts, strict=True))
    return replace(d, parts=parts, raw=None), flip


def larger(side: Side, d: Num) -> Value:
    """Returns a condition that is d > 0, or anything if d is 0: for continuous functions. Not of
    it is the condition of -d.
    """
    if isinstance(side.ring, Rationals):
        return positive(side, d)
    folded, flip = unsigned(side, d)
    found = side.call("larger", folded, dtype=BOOL)
    other = side.sub(side.constant(1, BOOL), found)
    parts = tuple(np.where(flip, m, p) for m, p in zip(other.parts, found.parts, strict=True))
    return replace(found, parts=parts)


def negated(side: Side, c: Value) -> Value:
    """Returns Not(c)."""
    if isinstance(c, Known):
        return replace(c, array=~c.array.astype(bool))
    return replace(side.sub(side.constant(1, BOOL), c), dtype=BOOL)


def maximum(side: Side, x: Num, y: Num) -> Num:
    """Returns Max(x, y)."""
    return side.lift(select(side, larger(side, side.sub(x, y)), x, y))


def minimum(side: Side, x: Num, y: Num) -> Num:
    """Returns Min(x, y)."""
    return side.lift(select(side, larger(side, side.sub(x, y)), y, x))


_COMPARE = {
    "Less": np.less, "LessOrEqual": np.less_equal, "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal, "Equal": np.equal,
}  # fmt: skip


@kernel(*_COMPARE)
def compare(side: Side, node: NodeProto, x: Operands, a: Attributes) -> list[Value]:
    if both_known(x):
        left, right = knowns(x)
        free = side.chosen(function_name(node, {}, left.dtype), left, right)
        return [known(_COMPARE[node.op_type](left.array, right.array), BOOL, free)]
    left_, right_ = side.lift(x[0]), side.lift(x[1])
    if left_.infinite or right_.infinite:
        name = f"{node.op_type} with an infinite constant"
        operands = [replace(o, infinite=False, raw=None) for o in (left_, right_)]
        return [side.call(name, *operands, dtype=BOOL)]
    d = side.sub(left_, right_)
    if node.op_type == "Equal":
        return [zero(side, d)]
    if node.op_type in ("Greater", "LessOrEqual"):
        found = positive(side, d)
        return [found if node.op_type == "Greater" else negated(side, found)]
    found = positive(side, side.neg(d))
    return [found if node.op_type == "Less" else negated(side, found)]


@kernel("And", "Or", "Xor", "Not")
def logic(side: Side, node: NodeProto, x: Operands, a: Attributes) -> list[Value]:
    if node.op_type == "Not":
        return [negated(side, given(x, 0))]
    f = {"And": np.logical_and, "Or": np.logical_or, "Xor": np.logical_xor}[node.op_type]
    if both_known(x):
        left, right = knowns(x)
        free = side.chosen(node.op_type, left, right)
        return [known(f(left.array, right.array), BOOL, free)]
    p, q = side.lift(x[0]), side.lift(x[1])
    shape = np.broadcast_shapes(p.shape, q.shape)
    same = all(
        np.array_equal(np.broadcast_to(u, shape), np.broadcast_to(v, shape))
        for u, v in zip(p.parts, q.parts, strict=True)
    )
    if same and node.op_type != "Xor":
        return [p.map(lambda v: np.broadcast_to(v, shape))]
    both = side.mul(p, q)
    if node.op_type == "And":
        return [replace(both, dtype=BOOL)]
    times = 1 if node.op_type == "Or" else 2
    twice = side.mul(both, side.constant(times, BOOL))
    return [replace(side.sub(side.add(p, q), twice), dtype=BOOL)]


@kernel("Where")
def where(side: Side, node: NodeProto, x: Operands, a: Attributes) -> list[Value]:
    return [select(side, given(x, 0), given(x, 1), given(x, 2))]


@kernel("Max", "Min")
def extreme(side: Side, node: NodeProto, x: Operands, a: Attributes) -> list[Value]:
    if both_known(x):
        side.chosen(function_name(node, {}, given(x, 0).dtype), *knowns(x))
        return whole_numbers(
            side, node.op_type, x, np.maximum if node.op_type == "Max" else np.minimum
        )
    f = maximum if node.op_type == "Max" else minimum
    found = side.lift(x[0])
    for o in x[1:]:
        found = f(side, found, side.lift(o))
    return [replace(found, image=min_image(*(side.lift(o) for o in x)))]


@kernel("Clip")
def clip(side: Side, node: NodeProto, x: Operands, a: Attributes) -> list[Value]:
    value = given(x, 0)
    low, high = get(x, 1), get(x, 2)
    if isinstance(value, Known):
        bounds = knowns([low, high])
        free = side.chosen(f"Clip {value.dtype}", value, *bounds)
        array = value.array if low is None else np.maximum(value.array, cast("Known", low).array)
        array = array if high is None else np.minimum(array, cast("Known", high).array)
        return [Known(array, value.dtype, free)]
    if "min" in a and side.opset < 11:
        low = side.constant(a["min"], value.dtype)
    if "max" in a and side.opset < 11:
        high = side.constant(a["max"], value.dtype)
    found = value if low is None else _bounded(side, value, low, maximum)
    return [found if high is None else _bounded(side, found, high, minimum)]


def _bounded(side: Side, x: Num, bound: Value, f: Callable[[Side, Num, Num], Num]) -> Num:
    limit = side.lift(bound)
    if limit.raw is not None and limit.raw.size == 1:
        value = number(limit, "a bound")
        if value < -_END if f is maximum else value > _END:
            return x  # the ends of float32 bound nothing among finite numbers
    found = f(side, x, limit.map(lambda v: v.reshape(())))
    return replace(found, image=min_image(x, limit))


_OF_INTEGERS: dict[str, Callable[..., Any]] = {
    "Relu": lambda v: np.maximum(v, 0), "Abs": np.abs, "Sign": np.sign,
}  # fmt: skip


@kernel("Relu", "LeakyRelu", "PRelu", "Abs", "Sign", "ThresholdedRelu", "HardSigmoid", "HardSwish",
        "Elu", "Selu", "Celu", "Shrink")  # fmt: skip
def piecewise(side: Side, node: NodeProto, operands: Operands, a: Attributes) -> list[Value]:
    name, first = node.op_type, given(operands, 0)
    if isinstance(first, Known):
        free = side.chosen(function_name(node, a, first.dtype), first)
        if name not in _OF_INTEGERS:
            raise Undecided(f"{name} of integers")
        return [replace(first, array=np.asarray(_OF_INTEGERS[name](first.array)), free=free)]
    x, dtype = first, first.dtype

    def constant(value: Any) -> Num:
        return side.constant(value, dtype)

    if name == "Sign":
        up, down = positive(side, x), positive(side, side.neg(x))
        return [replace(side.sub(side.lift(up), side.lift(down)), dtype=dtype)]
    if name == "ThresholdedRelu":
        over = positive(side, side.sub(x, constant(a["alpha"])))
        return [select(side, over, x, side.mul(x, constant(0)))]
    if name == "Shrink":
        over = positive(side, side.sub(x, constant(a["lambd"])))
        under = positive(side, side.sub(constant(-a["lambd"]), x))
        inner = select(side, under, side.add(x, constant(a["bias"])), side.mul(x, constant(0)))
        return [select(side, over, side.sub(x, constant(a["bias"])), inner)]
    if name == "HardSigmoid":
        slope, offset = (side.attribute(a[k], f"{k} of {node.output[0]}", dtype)
                         for k in ("alpha", "beta"))  # fmt: skip
        return [_hard(side, x, slope, offset)]
    if name == "HardSwish":
        slope, offset = constant(Fraction(1, 6)), constant(Fraction(1, 2))
        return [side.mul(x, _hard(side, x, slope, offset))]
    return [_two_pieces(side, node.op_type, x, get(operands, 1), a)]


def _hard(side: Side, x: Num, slope: Num, offset: Num) -> Num:
    """Returns Clip(slope * x + offset, 0, 1)."""
    zero_, one = (side.constant(v, x.dtype) for v in (0, 1))
    line = side.add(side.mul(x, slope), offset)
    return minimum(side, maximum(side, line, zero_), one)


def _two_pieces(side: Side, name: str, x: Num, slopes: Value | None, a: Attributes) -> Value:
    """Returns x where it is positive, and another continuous function below."""

    def constant(value: Any) -> Num:
        return side.constant(value, x.dtype)

    up = larger(side, x)
    if name == "PRelu":
        return select(side, up, x, side.mul(x, side.lift(slopes)))
    if name in ("Relu", "Abs", "LeakyRelu"):
        slope = {"Relu": 0, "Abs": -1}.get(name, a.get("alpha"))
        found = side.lift(select(side, up, x, side.mul(x, constant(slope))))
        keeps = name == "Relu" or (name == "Abs" and x.image in BITS)  # |-128| is no int8
        return replace(found, image=x.image) if keeps else found
    alpha = a.get("alpha", 1.0)
    inner = side.mul(x, constant(1 / Fraction(alpha))) if name == "Celu" else x
    exponent = exponential(side, inner)
    low = side.mul(side.sub(exponent, constant(1)), constant(alpha))
    found = side.lift(select(side, up, x, low))
    return side.mul(found, constant(a["gamma"])) if name == "Selu" else found


@kernel("IsNaN", "IsInf")
def is_special(side: Side, node: NodeProto, x: Operands, a: Attributes) -> list[Value]:
    value = side.lift(x[0])
    if isinstance(side.ring, Rationals) and not value.infinite:
        return [known(np.zeros(value.shape, bool))]
    return [side.call(function_name(node, a, value.dtype), replace(value, infinite=False, raw=None),
                      dtype=BOOL)]  # fmt: skip


@kernel("Cast", "CastLike")
def cast_(side: Side, node: NodeProto, x: Operands, a: Attributes) -> list[Value]:
    value = given(x, 0)
    to = int(a["to"]) if node.op_type == "Cast" else given(x, 1).dtype
    if value.dtype == to:
        return [value]
    if isinstance(value, Known):
        return [side.cast_known(value, to)]
    return [_converted(side, value, to)]


def _converted(side: Side, value: Num, to: int) -> Value:
    if to in BITS:
        if value.dtype == BOOL or (value.is_float and widens(value.dtype, to)):
            own = value.dtype if value.is_float else to
            return replace(value, dtype=to, image=value.image or own)
        if value.image and widens(value.image, to):
            return replace(value, dtype=to)
        if value.raw is not None and to in _ROUNDED and value.dtype != TensorProto.DOUBLE:
            return side.stored(value.raw.astype(helper.tensor_dtype_to_np_dtype(to)), to)
        found = replace(value, raw=None)
        return replace(side.call(f"Cast {to}", found, dtype=to), image=to)
    if to == BOOL:
        return negated(side, zero(side, value))
    if value.dtype == BOOL:
        return replace(value, dtype=to)
    if isinstance(side.ring, Rationals) and value.is_float:
        return _truncated(side, side.ring, value, to)
    if value.image == to:
        return replace(value, dtype=to)
    image = to if widens(to, TensorProto.DOUBLE) else 0
    found = side.call(f"Cast {value.dtype} {to}", replace(value, raw=None), dtype=to)
    return replace(found, image=image)


def _truncated(side: Side, ring: Rationals, value: Num, to: int) -> Value:
    """Returns rationals as integers. Those outside the dtype become any numbers: ONNX does not say
    which.
    """
    limits = np.iinfo(helper.tensor_dtype_to_np_dtype(to))
    low, high = int(limits.min), int(limits.max)
    whole = ring.elementwise(int, value.parts[0])
    outside = np.array([not low <= int(v) <= high for v in whole.reshape(-1)], bool)
    if outside.any():
        side.ordered(value)
        found = side.call(f"Cast {value.dtype} {to}", replace(value, raw=None), dtype=to)
        span = high - low + 1

        def inside(v: Fraction) -> int:
            return low + (v.numerator * 1_000_003 + v.denominator) % span

        any_ = ring.elementwise(inside, found.parts[0])
        whole = np.where(outside.reshape(whole.shape), any_, whole)
    numbers = np.array([int(v) for v in whole.reshape(-1)], limits.dtype)
    return Known(numbers.reshape(whole.shape), to)
