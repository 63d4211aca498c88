"""Sums, products, quotients, powers and exponentials."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import reduce
from math import isqrt
from typing import Any, cast

import numpy as np
from onnx import NodeProto

from onnxgrad.verify.exact.field import Array, Undecided, ZeroDivisor
from onnxgrad.verify.exact.kernels.registry import Operands, both_known, given, kernel
from onnxgrad.verify.exact.rational import Rationals
from onnxgrad.verify.exact.side import Attributes, Side, function_name
from onnxgrad.verify.exact.values import BITS, Known, Num, Value


def knowns(x: Operands) -> list[Known]:
    """Returns operands that are all known."""
    return [cast("Known", o) for o in x if o is not None]


def whole_numbers(side: Side, name: str, x: Operands, f: Callable[..., Any]) -> list[Value]:
    """Returns a ring operation on known integers, which wrap."""
    operands = knowns(x)
    with np.errstate(all="ignore"):
        found = reduce(f, [o.array for o in operands])
    free = any(o.free for o in operands)
    return [Known(np.asarray(found, operands[0].array.dtype), operands[0].dtype, free)]


@kernel("Add", "Sub", "Mul", "Sum")
def ring_operation(side: Side, node: NodeProto, x: Operands, a: Attributes) -> list[Value]:
    if a.get("broadcast") or (side.opset < 7 and a.get("axis") is not None):
        raise Undecided(f"{node.op_type} with the broadcasting of old opsets")
    if both_known(x):
        integer = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Sum": np.add}
        return whole_numbers(side, node.op_type, x, integer[node.op_type])
    f = {"Add": side.add, "Sub": side.sub, "Mul": side.mul, "Sum": side.add}[node.op_type]
    found = reduce(f, [side.lift(o) for o in x])
    return [replace(found, image=found.dtype if len(x) > 1 else found.image)]


@kernel("Mean")
def mean(side: Side, node: NodeProto, x: Operands, a: Attributes) -> list[Value]:
    total = reduce(side.add, [side.lift(o) for o in x])
    return [side.mul(total, side.constant(Fraction(1, len(x)), total.dtype))]


@kernel("Neg")
def neg(side: Side, node: NodeProto, x: Operands, a: Attributes) -> list[Value]:
    value = given(x, 0)
    if isinstance(value, Known):
        with np.errstate(all="ignore"):
            return [replace(value, array=np.asarray(-value.array))]
    image = value.image if value.image in BITS else 0  # -(-128) is no int8
    return [replace(side.neg(value), image=image)]


@kernel("Div", "Mod", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot")
def quotient(side: Side, node: NodeProto, x: Operands, a: Attributes) -> list[Value]:
    name = node.op_type
    if not both_known(x):
        if name == "Div":
            divisor = side.lift(x[1])
            if not divisor.is_float:
                raise Undecided("Div of integers that depend on values")
            side.note_partial("divisor", divisor)
            found = side.div(side.lift(x[0]), divisor)
            return [replace(found, image=found.dtype)]
        return _modulo(side, node, x, a)
    operands = knowns(x)
    arrays = [o.array for o in operands]
    if name in ("Div", "Mod") and np.any(arrays[1] == 0):
        if operands[1].free:
            raise ZeroDivisor
        raise Undecided(f"{name} by zero")
    free = side.chosen(function_name(node, a, operands[0].dtype), *operands)
    with np.errstate(all="ignore"):
        whole = _WHOLE[name](a, *arrays)
    return [Known(np.asarray(whole, arrays[0].dtype), operands[0].dtype, free)]


def _truncated(a: Attributes, x: Array, y: Array) -> Array:
    found = np.floor_divide(x, y)
    inexact = (np.mod(x, y) != 0) & ((x < 0) != (y < 0))
    return np.asarray(found + inexact.astype(found.dtype))


def _shifted(a: Attributes, x: Array, y: Array) -> Array:
    return np.asarray(np.left_shift(x, y) if a["direction"] == "LEFT" else np.right_shift(x, y))


_WHOLE: dict[str, Callable[..., Any]] = {
    "Div": _truncated,
    "Mod": lambda a, x, y: np.fmod(x, y) if a.get("fmod") else np.mod(x, y),
    "BitShift": _shifted,
    "BitwiseAnd": lambda a, x, y: np.bitwise_and(x, y),
    "BitwiseOr": lambda a, x, y: np.bitwise_or(x, y),
    "BitwiseXor": lambda a, x, y: np.bitwise_xor(x, y),
    "BitwiseNot": lambda a, x: np.invert(x),
}


def _modulo(side: Side, node: NodeProto, x: Operands, a: Attributes) -> list[Value]:
    nums = [side.lift(o) for o in x]
    if node.op_type != "Mod" or not isinstance(side.ring, Rationals):
        return [side.call(function_name(node, a, nums[0].dtype), *nums, dtype=nums[0].dtype)]
    if any(v == 0 for v in nums[1].parts[0].reshape(-1)):
        raise ZeroDivisor

    def fmod(u: Fraction, v: Fraction) -> Fraction:
        return u - v * int(u / v)

    remainder = fmod if a.get("fmod") else operator.mod
    parts = (side.ring.elementwise(remainder, *(n.parts[0] for n in nums)),)
    return [Num(parts, nums[0].dtype)]


@kernel("Reciprocal")
def reciprocal(side: Side, node: NodeProto, x: Operands, a: Attributes) -> list[Value]:
    value = side.lift(x[0])
    side.note_partial("divisor", value)
    return [side.inverse(value)]


@kernel("Pow")
def pow_(side: Side, node: NodeProto, x: Operands, a: Attributes) -> list[Value]:
    base, exponent = given(x, 0), given(x, 1)
    if isinstance(base, Known):
        if isinstance(exponent, Known) and not np.any(exponent.array < 0):
            free = side.chosen(function_name(node, a, base.dtype), base, exponent)
            with np.errstate(all="ignore"):
                found = np.power(base.array, exponent.array.astype(base.array.dtype))
            return [Known(np.asarray(found, base.array.dtype), base.dtype, free)]
        raise Undecided("Pow of integers")
    raw = exponent.array if isinstance(exponent, Known) else exponent.raw
    if raw is not None and raw.size and np.all(raw == raw.reshape(-1)[0]):
        e = float(raw.reshape(-1)[0])
        shape = np.broadcast_shapes(base.shape, raw.shape)
        wide = base.map(lambda v: np.broadcast_to(v, shape))
        if e.is_integer() and abs(e) <= 64:
            found = side.power(wide, int(abs(e)))
            found = found.map(lambda v: np.broadcast_to(v, shape))
            if e < 0:
                side.note_partial("divisor", base)
                found = side.inverse(found)
            return [replace(found, dtype=base.dtype, image=base.dtype, raw=None)]
        if e in (0.5, -0.5, 1.5):
            root = square_root(side, wide)
            if e == 1.5:
                return [side.mul(wide, root)]
            return [root if e > 0 else side.inverse(root)]
    nums = [base, replace(side.lift(exponent), raw=None)]
    side.note_partial("power", base)
    return [side.call(f"Pow {base.dtype}", *nums, dtype=base.dtype)]


def square_root(side: Side, x: Num) -> Num:
    """Returns Sqrt(x): exact for squares of constants, else an uninterpreted function."""
    side.note_partial("root", x)
    if x.raw is not None and x.raw.size:
        first = float(x.raw.reshape(-1)[0])
        root = _exact_root(Fraction(first)) if np.isfinite(first) and first >= 0 else None
        if root is not None and np.all(x.raw == first):
            shape = x.shape
            return side.constant(root, x.dtype).map(lambda v: np.broadcast_to(v, shape))
    return side.call("Sqrt", x, dtype=x.dtype)


def _exact_root(x: Fraction) -> Fraction | None:
    top, bottom = isqrt(x.numerator), isqrt(x.denominator)
    return Fraction(top, bottom) if Fraction(top, bottom) ** 2 == x else None


def merged(side: Side, where: Array, x: Num, y: Num) -> Num:
    """Returns x where a condition holds, else y."""
    parts = tuple(np.where(where, p, q) for p, q in zip(x.parts, y.parts, strict=True))
    return Num(parts, y.dtype, max(x.degree, y.degree), atoms=x.atoms | y.atoms)


def is_zero(x: Num) -> Array:
    """Returns where a tensor is zero."""
    return np.asarray(np.all([np.asarray(p == 0, bool) for p in x.parts], axis=0))


def exponential(side: Side, x: Num) -> Num:
    """Returns Exp(x), with Exp(0) = 1."""
    found = side.call("Exp", replace(x, raw=None), dtype=x.dtype)
    return found if x.infinite else merged(side, is_zero(x), side.constant(1, x.dtype), found)
