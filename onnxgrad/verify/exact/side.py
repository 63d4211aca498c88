"""One side of a window under evaluation: its arithmetic, its opset, and what it has called."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

from onnxgrad.verify.exact.field import Array, Field, Parts, Undecided, ZeroDivisor
from onnxgrad.verify.exact.rational import Rationals
from onnxgrad.verify.exact.values import BITS, BOOL, Known, Num, Value, widens

Attributes: TypeAlias = dict[str, Any]
# numbers that formulas mean where a file has the nearest float
SYMBOLS = {
    "sqrt(2)": math.sqrt(2), "sqrt(1/2)": math.sqrt(0.5), "sqrt(2/pi)": math.sqrt(2 / math.pi),
    "sqrt(pi)": math.sqrt(math.pi), "sqrt(1/pi)": math.sqrt(1 / math.pi), "0.044715": 0.044715,
    "1/6": 1 / 6,
}  # fmt: skip


@dataclass
class Side:
    """The evaluation of one graph. `calls`: operators on integers that the caller chooses and that
    follow no law here, with their operands. `functions`: names of uninterpreted functions.
    `partial`: the operands of divisors, roots, logarithms and exponentials. `degree`: the largest
    one of a function's operand. `quotients`: the degrees of all divisors, by number.
    """

    ring: Field | Rationals
    opset: int = 0
    has_exp: bool = True  # whether Sigmoid is a formula of Exp
    symbols: bool = False  # whether a constant next to a number of SYMBOLS is that number
    rounded: dict[str, None] = field(default_factory=dict)  # the names of these constants
    calls: set[tuple[str, bytes]] = field(default_factory=set)
    tables: set[bytes] = field(default_factory=set)
    functions: dict[str, None] = field(default_factory=dict)
    partial: dict[str, list[Array]] = field(default_factory=dict)
    degree: int = 1
    quotients: list[int] = field(default_factory=list)

    # ---- arithmetic

    def lift(self, value: Value | None) -> Num:
        """Returns the value as exact numbers."""
        if isinstance(value, Num):
            return value
        if value is None or value.array.dtype.kind not in "iub":
            raise Undecided("strings" if value is not None else "an operand is missing")
        return Num(self.ring.embed(value.array), value.dtype)

    def each(self, f: Callable[..., Any], *operands: Num, degree: int, dtype: int) -> Num:
        """Returns a polynomial function of the operands' elements, in a part at a time."""
        self._finite(operands)
        parts = tuple(
            self.ring.reduce(i, f(*part))
            for i, part in enumerate(zip(*(o.parts for o in operands), strict=True))
        )
        return Num(parts, dtype, degree, atoms=atoms_of(operands))

    def add(self, x: Num, y: Num) -> Num:
        if x.infinite and y.infinite:
            raise Undecided("a sum of two infinite constants")
        infinite = x.infinite or y.infinite
        x, y = replace(x, infinite=False), replace(y, infinite=False)
        found = self.each(np.add, x, y, degree=max(x.degree, y.degree), dtype=x.dtype)
        return replace(found, infinite=infinite)

    def sub(self, x: Num, y: Num) -> Num:
        return self.add(x, self.neg(y))

    def mul(self, x: Num, y: Num) -> Num:
        return self.each(np.multiply, x, y, degree=x.degree + y.degree, dtype=x.dtype)

    def neg(self, x: Num) -> Num:
        found = self.each(np.negative, replace(x, infinite=False), degree=x.degree, dtype=x.dtype)
        return replace(found, infinite=x.infinite)

    def div(self, x: Num, y: Num) -> Num:
        return self.mul(x, self.inverse(y))

    def inverse(self, x: Num) -> Num:
        """Returns 1 / x, a new variable for the count of degrees."""
        self._finite((x,))
        try:
            parts = tuple(self.ring.inverse(i, p) for i, p in enumerate(x.parts))
        except ZeroDivisor:
            if x.raw is not None:
                raise Undecided("a division by a constant zero") from None
            raise
        if x.raw is not None:
            return Num(parts, x.dtype, 1)
        self.quotients.append(x.parts[0].size * self.whole_degree(x))
        return Num(parts, x.dtype, 1, atoms=x.atoms | {len(self.quotients) - 1})

    def whole_degree(self, x: Num) -> int:
        """Returns the degree of the numerators of x's elements over a common denominator."""
        return x.degree * (1 + sum(self.quotients[i] for i in x.atoms))

    def power(self, x: Num, exponent: int) -> Num:
        """Returns x to the power of a natural number."""
        result = self.constant(1, x.dtype)
        base = x
        while exponent:
            result = self.mul(result, base) if exponent & 1 else result
            exponent >>= 1
            base = self.mul(base, base) if exponent else base
        return result

    def matmul(self, x: Num, y: Num) -> Num:
        self._finite((x, y))
        parts = tuple(
            self.ring.matmul(i, a, b) for i, (a, b) in enumerate(zip(x.parts, y.parts, strict=True))
        )
        return Num(parts, x.dtype, x.degree + y.degree, atoms=x.atoms | y.atoms)

    def sum(self, x: Num, axes: Sequence[int], keepdims: bool = True) -> Num:
        found = self.each(
            lambda a: a.sum(axis=tuple(axes), keepdims=keepdims) if axes else a,
            x, degree=x.degree, dtype=x.dtype,
        )  # fmt: skip
        return found

    def constant(self, value: Any, dtype: int = TensorProto.FLOAT) -> Num:
        """Returns an exact constant: a Fraction, an int or a float."""
        top, bottom = value.as_integer_ratio()
        raw = np.array(float(value)) if Fraction(float(value)) == value else None
        return Num(self._quotient(top, bottom), dtype, 1, raw=raw)

    def symbol(self, name: str, dtype: int) -> Num:
        """Returns a number that no float is, by name, with its law: a root modulo each prime, a
        rational, or a symbol without a law.
        """
        if name[0].isdigit():
            return self.constant(Fraction(name), dtype)
        top, _, bottom = name.removeprefix("sqrt(").rstrip(")").partition("/")
        if not name.startswith("sqrt("):
            return self.call(name, dtype=dtype)
        factors = [self._root(top, dtype), self._root(bottom or "1", dtype)]
        return self.div(*factors)

    def _root(self, name: str, dtype: int) -> Num:
        if name == "1":
            return self.constant(1, dtype)
        root = self.ring.root(int(name)) if name.isdigit() else None
        return self.call(f"sqrt({name})", dtype=dtype) if root is None else Num(root, dtype)

    def tensor(self, tensor: TensorProto, name: str = "") -> Value:
        """Returns a constant of the file."""
        array = numpy_helper.to_array(tensor)
        symbol = symbol_of(tensor) if self.symbols else ""
        if symbol:
            self.rounded.setdefault(name or tensor.name)
            return self.symbol(symbol, tensor.data_type).map(lambda v: v.reshape(array.shape))
        return self.stored(array, tensor.data_type)

    def attribute(self, value: float, name: str, dtype: int) -> Num:
        """Returns a number of a node's attributes; `name` is of the attribute."""
        symbol = symbol_near(np.float32(value)) if self.symbols else ""
        if not symbol:
            return self.constant(value, dtype)
        self.rounded.setdefault(name)
        return self.symbol(symbol, dtype)

    def stored(self, array: Array, dtype: int) -> Value:
        """Returns the exact numbers of a constant; infinite ones and NaN are symbols."""
        if dtype not in BITS:
            wide = array if array.dtype.kind in "iubOUS" else array.astype(np.int8)
            if wide.dtype.kind in "US":
                wide = wide.astype(object)
            return Known(wide, dtype)
        numbers = array.astype(np.float64)
        finite = np.isfinite(numbers)
        if finite.all():
            return Num(self.ring.embed(numbers), dtype, 1, dtype, numbers)
        parts = list(self.ring.embed(np.where(finite, numbers, 0.0)))
        for name, at in (("inf", np.isposinf(numbers)), ("-inf", np.isneginf(numbers)),
                         ("nan", np.isnan(numbers))):  # fmt: skip
            symbol = self.ring.function(f"constant {name}", [])
            parts = [np.where(at, s, p) for s, p in zip(symbol, parts, strict=True)]
        return Num(tuple(parts), dtype, 1, dtype, numbers, infinite=True)

    def cast_known(self, value: Known, dtype: int) -> Value:
        """Returns integers or booleans in another dtype; integers wrap."""
        if dtype in BITS:
            found = self.lift(value)
            largest = np.abs(value.array.astype(np.float64)).max(initial=0)
            if largest > 2.0 ** BITS[dtype]:
                return replace(self.call(f"Cast {dtype}", found, dtype=dtype), image=dtype)
            image = value.dtype if widens(value.dtype, dtype) else dtype
            return replace(found, dtype=dtype, image=image)
        if value.array.dtype.kind not in "iub" or dtype == TensorProto.STRING:
            raise Undecided("Cast of strings")
        with np.errstate(all="ignore"):
            target = helper.tensor_dtype_to_np_dtype(dtype)
            if target.kind not in "iub":
                raise Undecided(f"Cast to dtype {dtype}")
            if dtype == BOOL:
                self.chosen("Cast to bool", value)
            return Known(value.array.astype(target), dtype, value.free)

    def _quotient(self, top: int, bottom: int) -> Parts:
        ring = self.ring
        if isinstance(ring, Rationals):
            out = np.empty((), object)
            out[()] = Fraction(top, bottom)
            return (out,)
        return tuple(np.array(top * pow(bottom, -1, p) % p, np.int64) for p in ring.primes)

    def ordered(self, x: Num) -> None:
        """Raises Undecided if the order of x is unknown: its symbols for inf are no numbers."""
        if x.infinite:
            raise Undecided("the order of an infinite constant")

    def _finite(self, operands: Sequence[Num]) -> None:
        if any(o.infinite for o in operands):
            raise Undecided("arithmetic with an infinite constant")

    # ---- uninterpreted functions

    def call(self, name: str, *operands: Num, dtype: int) -> Num:
        """Returns an uninterpreted function of the elements."""
        self.functions.setdefault(name)
        self.degree = max([self.degree, *(self.whole_degree(o) for o in operands)])
        return Num(self.ring.function(name, [o.parts for o in operands]), dtype)

    def rows(self, name: str, x: Num, axes: Sequence[int], *more: Num, dtype: int) -> Num:
        """Returns an uninterpreted function of whole rows along `axes`, of x's shape."""
        row = replace(x, parts=self.ring.digest(x.parts, axes), raw=None)
        sizes = [x.shape[k] if k in axes else 1 for k in range(x.ndim)]
        at = np.arange(int(np.prod(sizes)), dtype=np.int64).reshape(sizes)
        return self.call(name, row, Num(self.ring.embed(at), TensorProto.INT64), *more, dtype=dtype)

    def opaque(self, name: str, operands: Sequence[Value | None], shape: Sequence[int],
               dtype: int) -> Num:  # fmt: skip
        """Returns an uninterpreted function of all elements of all operands, in any shape."""
        digests = [_scalar(self, o) for o in operands if o is not None]
        kinds = " ".join("-" if o is None else str(o.shape) for o in operands)
        at = np.arange(int(np.prod(tuple(shape))), dtype=np.int64).reshape(tuple(shape))
        place = Num(self.ring.embed(at), TensorProto.INT64)
        return self.call(f"{name} {kinds} -> {tuple(shape)}", place, *digests, dtype=dtype)

    def chosen(self, name: str, *operands: Known) -> bool:
        """Whether operands are integers that the caller chooses; notes the call if so."""
        if not any(o.free for o in operands):
            return False
        digest = hashlib.blake2b(digest_size=16)
        for o in operands:
            digest.update(repr((o.shape, o.dtype)).encode() + o.array.tobytes())
        self.calls.add((name, digest.digest()))
        return True

    def note_partial(self, kind: str, operand: Num) -> None:
        """Notes an operation that is not defined for all numbers, and may overflow."""
        if operand.raw is None:
            self.partial.setdefault(kind, []).append(operand.parts[0].reshape(-1))


def _scalar(side: Side, operand: Value) -> Num:
    if isinstance(operand, Known) and operand.array.dtype.kind not in "iub":
        text = hashlib.blake2b(repr(operand.array.tolist()).encode(), digest_size=7).digest()
        return Num(side.ring.embed(np.array(int.from_bytes(text, "little"))), TensorProto.INT64)
    x = side.lift(operand)
    flat = replace(x.map(lambda a: a.reshape(-1)), raw=None)
    return replace(flat, parts=tuple(
        p.reshape(()) for p in side.ring.digest(flat.parts, (0,))))  # fmt: skip


def symbol_of(tensor: TensorProto) -> str:
    """Returns the number of SYMBOLS that a constant is nearest to in its dtype, or ""."""
    if tensor.data_type not in BITS or math.prod(tensor.dims) != 1:
        return ""
    return symbol_near(numpy_helper.to_array(tensor))


def symbol_near(array: Any) -> str:
    """Returns the number of SYMBOLS that an array of one number is nearest to, or ""."""
    near = (s for s, v in SYMBOLS.items() if np.all(array == np.asarray(v).astype(array.dtype)))
    return next(near, "")


def function_name(node: NodeProto, attributes: Attributes, dtype: int) -> str:
    """Returns the name of the uninterpreted function of a node: its operator, the dtype of its
    operand, and all attributes, with their defaults.
    """

    def text(value: Any) -> str:
        if isinstance(value, TensorProto):
            return str(value.SerializeToString().hex())
        return str(value)

    names = " ".join(f"{k}={text(v)}" for k, v in sorted(attributes.items()))
    label = str(helper.tensor_dtype_to_string(dtype)).rpartition(".")[2] if dtype else ""
    return f"{node.domain}::{node.op_type} {label} {names}" if node.domain else (
        f"{node.op_type} {label} {names}"
    )  # fmt: skip


def select(side: Side, condition: Value, x: Value, y: Value) -> Value:
    """Returns Where(condition, x, y)."""
    if isinstance(condition, Known):
        side.chosen("Where", condition)
        c = condition.array.astype(bool)
        if isinstance(x, Known) and isinstance(y, Known):
            return Known(np.where(c, x.array, y.array), x.dtype, x.free or y.free or condition.free)
        a, b = side.lift(x), side.lift(y)
        parts = tuple(np.where(c, p, q) for p, q in zip(a.parts, b.parts, strict=True))
        return Num(parts, a.dtype, max(a.degree, b.degree), min_image(a, b),
                   infinite=a.infinite or b.infinite, atoms=atoms_of((a, b)))  # fmt: skip
    a, b = side.lift(x), side.lift(y)
    infinite = a.infinite or b.infinite
    a, b = replace(a, infinite=False), replace(b, infinite=False)
    one = side.constant(1, BOOL)
    found = side.add(side.mul(condition, a), side.mul(side.sub(one, condition), b))
    return replace(found, dtype=a.dtype, infinite=infinite)


def atoms_of(operands: Sequence[Num]) -> frozenset[int]:
    """Returns the quotients that any operand is made of."""
    return frozenset().union(*(o.atoms for o in operands))


def min_image(*operands: Num) -> int:
    """Returns the dtype whose numbers all operands are known to be, or 0. A constant is of every
    dtype that holds its numbers.
    """
    images = {o.image for o in operands if o.raw is None}
    image = images.pop() if len(images) == 1 else 0
    return image if image and all(o.raw is None or _holds(image, o.raw) for o in operands) else 0


def _holds(dtype: int, numbers: Array) -> bool:
    with np.errstate(all="ignore"):
        rounded = numbers.astype(helper.tensor_dtype_to_np_dtype(dtype)).astype(np.float64)
    return bool(np.all(rounded == numbers))
