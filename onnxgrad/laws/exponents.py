"""Numbers that move into an exponent, and a difference of squares that is half computed already."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var
from onnxgrad.laws.arithmetic import a, b, c, d, number, x
from onnxgrad.rewrite.pattern import P
from onnxgrad.rewrite.worklist import count, rewrite


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


@rewrite(P.Mul(x, P.Sub(c, P.Mul(a, a).only).only), shrinks=count())
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
