"""Simplifies arithmetic: Neg, constant numbers, numbers that move into an exponent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import FLOAT_DTYPES, Array, broadcast_shapes, same_shape
from onnxgrad.ir.var import Var
from onnxgrad.rewrite.pattern import P, capture
from onnxgrad.rewrite.worklist import count, rewrite

a, b, c, d, s, x = capture("a b c d s x")
p, q = (n.const.where(lambda v: v.shape in ((), (1,))) for n in capture("p q"))


@rewrite(P.Mul(a, P.Div(c, b).only), shrinks=count())
def times_reciprocal(a: Var, b: Var, c: Var, root: Binding) -> Any:
    """a (1 / b) = a / b"""
    if a.dtype not in FLOAT_DTYPES or number(c) != 1:
        return None
    return a / b if same_shape(broadcast_shapes([a.shape, b.shape]), root.out.shape) else None


@rewrite(P.Mul(a, P.Div(1.0, b).only | P.Reciprocal(b).only), shrinks=count())
def times_reciprocal_of_equal_shape(a: Var, b: Var, root: Binding) -> Any:
    """a (1 / b) = a / b, where b has the shape of the result: as many divisions as before"""
    fits = a.dtype in FLOAT_DTYPES and same_shape(b.shape, root.out.shape)
    return a / b if fits else None


@rewrite(P.Add(a, P.Neg(b).only), shrinks=count())
def add_of_neg(a: Var, b: Var, root: Binding) -> Any:
    """a + -b = a - b"""
    return a - b if _broadcasts(root, a, b) else None


@rewrite(P.Sub(a, P.Neg(b).only), shrinks=count())
def sub_of_neg(a: Var, b: Var, root: Binding) -> Any:
    """a - -b = a + b"""
    return a + b if _broadcasts(root, a, b) else None


def _broadcasts(root: Binding, a: Var, b: Var) -> bool:
    """Whether operands of any shapes may be used. Before opset 7, broadcasting depends on an
    attribute.
    """
    return root.version >= 7 or same_shape(a.shape, b.shape)


@rewrite(P.Neg(P.Neg(a).only), shrinks=count())
def neg_of_neg(a: Var) -> Var:
    """--a = a"""
    return a


@rewrite(P.Neg(P.Sub(a, b).only), shrinks=count())
def neg_of_sub(a: Var, b: Var) -> Var:
    """-(a - b) = b - a"""
    return b - a


def number(v: Var) -> Any:
    """The value of a constant of one element that never widens a result by broadcasting; None for
    anything else.
    """
    if v.shape not in ((), (1,)) or not v.is_constant:
        return None
    array = v.const
    return None if array is None else array.reshape(())


def _one_number(compute: Callable[[Any, Any], Any], c: Var, d: Var) -> Array | None:
    """Combines two numbers into one. None if one is not a number, or if the result is too large or
    too small for its dtype to have the same effect.
    """
    p, q = number(c), number(d)
    if p is None or q is None:
        return None
    with np.errstate(all="ignore"):
        array = np.asarray(compute(p, q))
    if array.dtype.kind in "iu":
        return array
    smallest = 1e-4 if array.dtype.itemsize == 2 else 1e-30
    return array if smallest <= abs(float(array)) < np.inf else None


@rewrite(P.Mul(P.Mul(a, p).only, q), shrinks=count())
def mul_by_two_numbers(a: Var, p: Var, q: Var) -> Any:
    """(a p) q = a (p q) for numbers p and q"""
    product = _one_number(np.multiply, p, q)
    return None if product is None or not a.rank else a * product


@rewrite(P.Mul(P.Mul(a, p).only, P.Mul(b, q).only), shrinks=count())
def numbers_of_a_product(a: Var, b: Var, p: Var, q: Var) -> Any:
    """(a p) (b q) = (a b) (p q) for numbers p and q"""
    product = _one_number(np.multiply, p, q)
    return None if product is None or not a.rank or not b.rank else (a * b) * product


@rewrite(P.Mul(a, P.Neg(b).only), shrinks=count("Neg"))
def mul_of_neg_number(a: Var, b: Var) -> Any:
    """a (-b) = a c, where b is a number and c the opposite number"""
    p = number(b)
    return None if p is None or not a.rank else a * np.asarray(-p)


@rewrite(P.Mul(P.Neg(a).only, c), shrinks=count("Neg"))
def neg_times_number(a: Var, c: Var) -> Any:
    """(-a) c = a (-c) for a number c"""
    p = number(c)
    return None if p is None or not a.rank else a * np.asarray(-p)


@rewrite(P.Neg(P.Mul(a, c).only), shrinks=count("Neg"))
def neg_of_product_with_number(a: Var, c: Var) -> Any:
    """-(a c) = a (-c) for a number c"""
    p = number(c)
    return None if p is None or not a.rank else a * np.asarray(-p)


@rewrite(P.Div(P.Mul(a, c).only, d), shrinks=count())
def product_over_number(a: Var, c: Var, d: Var) -> Any:
    """(a c) / d = a (c / d) for numbers c and d"""
    quotient = _one_number(np.divide, c, d) if a.rank and a.dtype in FLOAT_DTYPES else None
    return None if quotient is None else a * quotient


@rewrite(P.Add(P.Add(a, c.const).only, d.const), shrinks=count("Add"))
def add_two_constants(a: Var, c: Var, d: Var) -> Any:
    """(a + c) + d = a + (c + d) for constants c and d, one of which has the shape of the sum"""
    if number(c) is not None and number(d) is not None:
        total = _one_number(np.add, c, d)
        return None if total is None or not a.rank else a + total
    one, other = c.const, d.const
    if one is None or other is None or c.use_count > 1 or d.use_count > 1:
        return None  # a sum with other readers would stay, so there would be one sum more
    if broadcast_shapes([c.shape, d.shape]) not in (c.shape, d.shape):
        return None
    return _sum_of_vectors(a, one, other)


def _sum_of_vectors(a: Var, c: Array, d: Array) -> Var | None:
    with np.errstate(all="ignore"):
        total = np.add(c, d)
    if total.dtype.kind not in "iu":
        size = np.abs(total.astype(np.float64))
        smallest = 1e-4 if total.dtype.itemsize == 2 else 1e-30
        if not np.all((size >= smallest) | ((c == 0) & (d == 0))) or not np.isfinite(size).all():
            return None
    return a + total


# laws that keep the bits of every value except the sign of a NaN: a sign is never rounded
SIGNS = (neg_of_neg, add_of_neg, sub_of_neg)
# laws that are equal for real numbers but round in another order
NUMBERS = (
    neg_of_sub, times_reciprocal, mul_by_two_numbers, product_over_number, numbers_of_a_product,
    mul_of_neg_number, neg_times_number, neg_of_product_with_number,
)  # fmt: skip


@rewrite(P.Mul(P.Mul(a, P.Exp(P.Neg(b).only).only).only, c), shrinks=count())
def number_into_exponent(a: Var, b: Var, c: Var) -> Any:
    """(a exp(-b)) c = a exp(ln c - b) for a number c > 0"""
    p = number(c)
    return (
        None
        if p is None or not p > 0 or not b.rank
        else a * op.Exp(np.asarray(np.log(p)).astype(p.dtype) - b)
    )


@rewrite(P.Mul(P.Mul(a, P.Exp(P.Sub(d, b).only).only).only, c), shrinks=count())
def another_number_into_exponent(a: Var, b: Var, c: Var, d: Var) -> Any:
    """(a exp(d - b)) c = a exp((d + ln c) - b) for numbers c > 0 and d"""
    p, q = number(c), number(d)
    if p is None or q is None or not p > 0 or not b.rank:
        return None
    return a * op.Exp(np.asarray(q + np.log(p)).astype(p.dtype) - b)


_PRODUCT = P.Gemm(a, b).only.named("product")


@rewrite(P.Mul(_PRODUCT | P.Reshape(_PRODUCT, d).only.named("reshape"), c), shrinks=count())
def number_into_gemm(
    a: Var, b: Var, c: Var, product: Binding, d: Var | None = None, reshape: Binding | None = None
) -> Any:
    """Gemm(a, b) c = Gemm(a, b, alpha c) for a number c, also through a Reshape"""
    p = number(c)
    if p is None or product.out.dtype not in FLOAT_DTYPES:
        return None
    alpha = float(p) * product.attr("alpha")
    if not (1e-30 <= abs(alpha) < 1e30 and float(np.float32(alpha)) == alpha):
        return None  # the attribute is a float32
    attributes = {**product.attrs, "alpha": alpha}
    scaled = op.Gemm(a, b, **attributes)
    return scaled if reshape is None else op.Reshape(scaled, d, **reshape.attrs)


@rewrite(P.Mul(x.shared, P.Sub(c.const, P.Mul(a, a).only).only), shrinks=count())
def difference_of_squares(x: Var, a: Var, c: Var) -> Any:
    """x (1 - t t) = (x (1 + t)) (1 - t), where x (1 + t) is computed already (the derivative of
    gelu by tanh)
    """
    if number(c) != 1:
        return None
    for product in x.users:
        if not product.is_op("Mul") or product.block is not x.block:
            continue
        other = product.inputs[1] if product.inputs[0] is x else product.inputs[0]
        plus = None if other is None else other.definition
        if plus is None or not plus.is_op("Add") or a not in plus.inputs:
            continue
        one = plus.inputs[1] if plus.inputs[0] is a else plus.inputs[0]
        if one is not None and number(one) == 1:
            return product.out * (c - a)
    return None
