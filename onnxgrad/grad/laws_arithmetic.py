"""Laws of arithmetic for gradient graphs: Expand, Neg, numbers, common factors, nested sums."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from onnxgrad.ir.block import Binding, BindingBlock, Var
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import FLOAT_DTYPES, broadcast_shapes, same_shape
from onnxgrad.rewrite.engine import Measure, count, rewrite
from onnxgrad.rewrite.pattern import Each, P, capture

a, b, c, d, s, x = capture("a b c d s x")


def _reads_of_expand(block: BindingBlock) -> int:
    return sum(b.op == "Expand" and b.out.use_count for b in block.walk())


READS_OF_EXPAND = Measure("operands that are Expands", _reads_of_expand)


def _fills(out: Var, *operands: Var) -> bool:
    """The operands broadcast to the shape of `out` among themselves."""
    return same_shape(broadcast_shapes([v.shape for v in operands]), out.shape)


@rewrite(P.any_of("Add", "Mul")(P.Expand(a, s), b), shrinks=READS_OF_EXPAND)
def commuting_with_expand(a: Var, b: Var, root: Binding) -> Any:
    """f(Expand(a, s), b) = f(a, b), f broadcasting, where b has the shape already"""
    return getattr(op, root.op)(a, b) if _fills(root.out, a, b) else None


@rewrite(P.any_of("Sub", "Div")(P.Expand(a, s), b), shrinks=READS_OF_EXPAND)
def left_of_expand(a: Var, b: Var, root: Binding) -> Any:
    """Expand(a, s) - b = a - b, where b has the shape already"""
    return getattr(op, root.op)(a, b) if _fills(root.out, a, b) else None


@rewrite(P.any_of("Sub", "Div")(a, P.Expand(b, s)), shrinks=READS_OF_EXPAND)
def right_of_expand(a: Var, b: Var, root: Binding) -> Any:
    """a - Expand(b, s) = a - b, where a has the shape already"""
    return getattr(op, root.op)(a, b) if _fills(root.out, a, b) else None


@rewrite(P.Where(c, P.Expand(a, s), b), shrinks=READS_OF_EXPAND)
def where_of_expand(a: Var, b: Var, c: Var, root: Binding) -> Any:
    """Where(c, Expand(a, s), b) = Where(c, a, b), where c and b have the shape already"""
    return op.Where(c, a, b) if _fills(root.out, a, b, c) else None


@rewrite(P.Mul(a, P.Div(c, b).only), shrinks=count())
def times_reciprocal(a: Var, b: Var, c: Var, root: Binding) -> Any:
    """a (1 / b) = a / b"""
    return a / b if _scalar(c) == 1 and same_shape(broadcast_shapes([a.shape, b.shape]), root.out.shape) else None


@rewrite(P.Add(a, P.Neg(b).only), shrinks=count())
def add_of_neg(a: Var, b: Var) -> Any:
    """a + -b = a - b"""
    return a - b


@rewrite(P.Sub(a, P.Neg(b).only), shrinks=count())
def sub_of_neg(a: Var, b: Var) -> Any:
    """a - -b = a + b"""
    return a + b


@rewrite(P.Neg(P.Neg(a).only), shrinks=count())
def neg_of_neg(a: Var) -> Any:
    """--a = a"""
    return a


@rewrite(P.Neg(P.Sub(a, b).only), shrinks=count())
def neg_of_sub(a: Var, b: Var) -> Any:
    """-(a - b) = b - a"""
    return b - a


def _scalar(v: Var) -> Any:
    """The value of a constant of one element that broadcasting cannot widen by; None for anything else."""
    if v.shape not in ((), (1,)) or not v.is_constant:
        return None
    array = v.const
    return None if array is None else array.reshape(())


@rewrite(P.Mul(P.Mul(a, c).only, d), shrinks=count())
def mul_by_two_numbers(a: Var, c: Var, d: Var) -> Any:
    """(a c) d = a (c d) for numbers c and d"""
    p, q = _scalar(c), _scalar(d)
    return None if p is None or q is None or not a.rank else a * np.asarray(p * q)


@rewrite(P.Mul(P.Mul(a, c).only, P.Mul(b, d).only), shrinks=count())
def numbers_of_a_product(a: Var, b: Var, c: Var, d: Var) -> Any:
    """(a c) (b d) = (a b) (c d) for numbers c and d"""
    p, q = _scalar(c), _scalar(d)
    if p is None or q is None or not a.rank or not b.rank:
        return None
    return (a * b) * np.asarray(p * q)


@rewrite(P.Mul(a, c.where(lambda v: v.is_constant and v.shape == ())), shrinks=count())
def times_one(a: Var, c: Var, root: Binding) -> Any:
    """a 1 = a"""
    return a if _scalar(c) == 1 and not root.out.returned else None


@rewrite(P.Mul(a, P.Neg(b).only), shrinks=count("Neg"))
def mul_of_neg_number(a: Var, b: Var) -> Any:
    """a (-b) = a c, where b is a number and c the opposite number"""
    p = _scalar(b)
    return None if p is None else a * np.asarray(-p)


@rewrite(P.Mul(P.Neg(a).only, c), shrinks=count("Neg"))
def neg_times_number(a: Var, c: Var) -> Any:
    """(-a) c = a (-c) for a number c"""
    p = _scalar(c)
    return None if p is None else a * np.asarray(-p)


@rewrite(P.Neg(P.Mul(a, c).only), shrinks=count("Neg"))
def neg_of_product_with_number(a: Var, c: Var) -> Any:
    """-(a c) = a (-c) for a number c"""
    p = _scalar(c)
    return None if p is None else a * np.asarray(-p)


@rewrite(P.Div(P.Mul(a, c).only, d), shrinks=count())
def product_over_number(a: Var, c: Var, d: Var) -> Any:
    """(a c) / d = a (c / d) for numbers c and d"""
    p, q = _scalar(c), _scalar(d)
    return None if p is None or not q or not a.rank else a * np.asarray(p / q)


@rewrite(P.any_of("Sum", "Add")(Each(x)), shrinks=count("Mul"))
def common_factor(x: list[Var], root: Binding) -> Any:
    """a b + (a c) d = a (b + c d): one product less for each further factor a"""
    products = _products(x, root)
    times: dict[Var, int] = {}
    for m in products:
        for v in m.inputs:
            if v is not None and same_shape(v.shape, root.out.shape) and v.definition not in products:
                times[v] = times.get(v, 0) + 1
    for factor, n in times.items():
        if n < 2:
            continue
        stripped: dict[Var, Var] = {}
        if all(_strip(v, factor, products, stripped) for v in x):
            terms = [stripped[v] for v in x]
            return factor * (op.Sum(*terms) if root.op == "Sum" else terms[0] + terms[1])
    return None


def _products(terms: list[Var], root: Binding) -> dict[Binding, None]:
    """The Muls below `root` that nothing outside reads and that have its shape, in reach through such Muls; in an
    order that only the graph decides.
    """
    found: dict[Binding, None] = {}
    work = list(terms)
    while work:
        m = work.pop().definition
        fits = m is not None and m.is_op("Mul") and not m.out.returned and same_shape(m.out.shape, root.out.shape)
        if m is not None and fits and m not in found and len(found) < _LONGEST:
            found[m] = None
            work += [v for v in m.inputs if v is not None]
    while outside := [m for m in found if any(u is not root and u not in found for u in m.out.users)]:
        for m in outside:
            del found[m]
    return found


# Muls looked at for one sum
_LONGEST = 24


def _strip(v: Var, factor: Var, products: Collection[Binding], stripped: dict[Var, Var]) -> bool:
    """Put v / factor into `stripped`; False when `factor` is not exactly once in v, or is v."""
    if v in stripped:
        return True
    m = v.definition
    if m is None or m not in products:
        return False
    p, q = m.inputs[0], m.inputs[1]
    if p is None or q is None:
        return False
    for one, other in ((p, q), (q, p)):
        if one is factor:
            stripped[v] = other
            return other is not factor
        if _strip(one, factor, products, stripped):
            stripped[v] = stripped[one] * other
            return True
    return False


@rewrite(P.any_of("Sum", "Add")(Each(x)), shrinks=count("Sum", "Add"))
def sum_of_sums(x: list[Var], root: Binding) -> Any:
    """Sum(Sum(a, b), c) = Sum(a, b, c): the inner one with no other reader, equal shapes"""
    if root.out.dtype not in FLOAT_DTYPES:
        return None  # Sum, unlike Add, takes no integers
    flat: list[Var] = []
    for v in x:
        inner = v.definition
        opened = inner is not None and inner.op in ("Sum", "Add") and v.use_count == 1 and inner.domain == ""
        if inner is not None and opened and all(u is not None and same_shape(u.shape, v.shape) for u in inner.inputs):
            flat += [u for u in inner.inputs if u is not None]
        else:
            flat.append(v)
    if len(flat) == len(x) or not all(same_shape(v.shape, root.out.shape) for v in flat):
        return None
    return op.Sum(*flat)


@rewrite(P.Mul(P.Mul(a, P.Exp(P.Neg(b).only).only).only, c), shrinks=count())
def number_into_exponent(a: Var, b: Var, c: Var) -> Any:
    """(a exp(-b)) c = a exp(ln c - b) for a number c > 0"""
    p = _scalar(c)
    return None if p is None or not p > 0 or not b.rank else a * op.Exp(np.asarray(np.log(p)).astype(p.dtype) - b)


@rewrite(P.Mul(P.Mul(a, P.Exp(P.Sub(d, b).only).only).only, c), shrinks=count())
def another_number_into_exponent(a: Var, b: Var, c: Var, d: Var) -> Any:
    """(a exp(d - b)) c = a exp((d + ln c) - b) for numbers c > 0 and d"""
    p, q = _scalar(c), _scalar(d)
    if p is None or q is None or not p > 0 or not b.rank:
        return None
    return a * op.Exp(np.asarray(q + np.log(p)).astype(p.dtype) - b)


@rewrite(P.Mul(x, P.Sub(c, P.Mul(a, a).only).only), shrinks=count())
def difference_of_squares(x: Var, a: Var, c: Var) -> Any:
    """x (1 - t t) = (x (1 + t)) (1 - t), where x (1 + t) is computed already (the derivative of gelu by tanh)"""
    if _scalar(c) != 1:
        return None
    for product in x.users:
        if not product.is_op("Mul") or product.block is not x.block:
            continue
        other = product.inputs[1] if product.inputs[0] is x else product.inputs[0]
        plus = None if other is None else other.definition
        if plus is None or not plus.is_op("Add") or a not in plus.inputs:
            continue
        one = plus.inputs[1] if plus.inputs[0] is a else plus.inputs[0]
        if one is not None and _scalar(one) == 1:
            return product.out * (c - a)
    return None


RULES = [
    times_reciprocal,
    number_into_exponent,
    another_number_into_exponent,
    difference_of_squares,
    commuting_with_expand,
    left_of_expand,
    right_of_expand,
    where_of_expand,
    add_of_neg,
    sub_of_neg,
    neg_of_neg,
    neg_of_sub,
    times_one,
    mul_by_two_numbers,
    product_over_number,
    common_factor,
    numbers_of_a_product,
    mul_of_neg_number,
    neg_times_number,
    neg_of_product_with_number,
    sum_of_sums,
]
