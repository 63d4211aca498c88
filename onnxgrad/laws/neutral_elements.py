"""Arithmetic with a number that changes nothing: exact for every value of x, NaN, infinities and
-0.0 included.

The number is of one element. A vector of ones is left to stand: it may be the scale of a
normalisation, and a runtime that fuses normalisations looks for the product.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import FLOAT_DTYPES, same_shape
from onnxgrad.ir.var import Var
from onnxgrad.laws.noops import c, x, x_if_free
from onnxgrad.rewrite.pattern import P
from onnxgrad.rewrite.worklist import count, rewrite

number = c.where(lambda v: v.is_constant and v.shape is not None and set(v.shape) <= {1})


def neutral(root: Binding, x: Var, c: Var, value: int, *, negative: bool = False) -> bool:
    """Whether `c` is the number `value`, of this sign where it is a zero, and the result has x's
    shape.
    """
    array = c.const
    if array is None or array.dtype.kind not in "iuf" or array.item() != value:
        return False
    if array.dtype.kind == "f" and bool(np.signbit(array).item()) is not negative:
        return False
    if c.rank and (x.rank is None or x.rank < c.rank):
        return False  # (1,) + () has an axis
    # before opset 7 attributes say what is broadcast
    return root.version >= 7 or same_shape(x.shape, root.out.shape)


@rewrite(P.Mul(x, number), shrinks=count())
def times_one(x: Var, c: Var, root: Binding) -> Any:
    """x 1 = x"""
    return x_if_free(root, x) if neutral(root, x, c, 1) else None


@rewrite(P.Div(x, number), shrinks=count())
def over_one(x: Var, c: Var, root: Binding) -> Any:
    """x / 1 = x"""
    return x_if_free(root, x) if neutral(root, x, c, 1) else None


@rewrite(P.Sub(x, number), shrinks=count())
def minus_zero(x: Var, c: Var, root: Binding) -> Any:
    """x - 0 = x; the zero is +0.0, for -0.0 - -0.0 is +0.0"""
    return x_if_free(root, x) if neutral(root, x, c, 0) else None


@rewrite(P.Add(x, number), shrinks=count())
def plus_zero(x: Var, c: Var, root: Binding) -> Any:
    """x + 0 = x for integers, x + -0.0 = x for floats: -0.0 + 0.0 is +0.0, so a positive zero
    stays
    """
    return x_if_free(root, x) if neutral(root, x, c, 0, negative=c.dtype in FLOAT_DTYPES) else None


@rewrite(P.Pow(x, number), shrinks=count())
def power_of_one(x: Var, c: Var, root: Binding) -> Any:
    """x ^ 1 = x for floats; onnxruntime raises integers as doubles, which does not keep every
    int64
    """
    return x_if_free(root, x) if x.dtype in FLOAT_DTYPES and neutral(root, x, c, 1) else None


@rewrite(P.any_of("And", "Or")(x, number), shrinks=count())
def and_true(x: Var, c: Var, root: Binding) -> Any:
    """x and true = x or false = x"""
    array = c.const
    fits = array is not None and bool(array.all()) is (root.op == "And")
    return x_if_free(root, x) if fits and same_shape(x.shape, root.out.shape) else None


@rewrite(P.Softmax(P.Add(x, c).only), shrinks=count())
def softmax_of_plus_zero(x: Var, c: Var, root: Binding) -> Any:
    """softmax(x + 0) = softmax(x) for zeros of either sign: exp(-0.0) is exp(0.0)

    Exporters write a mask of zeros where nothing is masked.
    """
    total = root.inputs[0]
    if c.dtype not in FLOAT_DTYPES or total is None or not same_shape(x.shape, total.shape):
        return None
    array: Any = c.const
    return None if array is None or array.any() else op.Softmax(x, **root.attrs)


NEUTRAL_ELEMENTS = [
    times_one,
    over_one,
    minus_zero,
    plus_zero,
    power_of_one,
    and_true,
    softmax_of_plus_zero,
]
