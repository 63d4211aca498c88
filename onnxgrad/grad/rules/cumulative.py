"""CumSum, CumProd and Range."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto

from onnxgrad.grad.registry import vjp
from onnxgrad.grad.rules._common import where
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var

vjp(
    "CumSum",
    lambda g, y, x, axis, exclusive, reverse, binding: op.CumSum(
        g, binding.inputs[1], exclusive=exclusive, reverse=1 - reverse
    ),
)


def _cum_prod(
    g: Var, y: Var, x: Var, axis: Any, exclusive: int, reverse: int, binding: Binding
) -> Var:
    """dx_j = sum over the products that hold x_j of g_i times the product of the others, zeros
    counted apart.

    With P_i the product of the nonzero factors of y_i and z_i the number of its zeros: a nonzero
    x_j takes part where z_i = 0 (the others' product is P_i / x_j), a zero x_j where it is the only
    zero, z_i = 1 (it is P_i).
    """
    along = binding.inputs[1]
    is_zero = op.Equal(x, 0.0)
    nonzero = where(is_zero, 1.0, x)
    products = op.CumProd(nonzero, along, exclusive=exclusive, reverse=reverse)
    zeros = op.CumSum(
        op.Cast(is_zero, to=TensorProto.INT32), along, exclusive=exclusive, reverse=reverse
    )

    def gathered(count: int) -> Var:
        taking_part = where(op.Equal(zeros, count), g * products, 0.0)
        return op.CumSum(taking_part, along, exclusive=exclusive, reverse=1 - reverse)

    return where(is_zero, gathered(1), gathered(0) / nonzero)


vjp("CumProd", _cum_prod, notes="zeros: the exact product of the others")


def _range_step(g: Var, y: Var, start: Var, limit: Var, delta: Var) -> Var:
    """y_i = start + i delta"""
    numbers = op.Cast(op.Range(np.int64(0), op.Size(y), np.int64(1)), to=y.dtype)
    return op.ReduceSum(g * numbers, keepdims=0)


vjp("Range", lambda g, y, start, limit, delta: op.ReduceSum(g, keepdims=0), None, _range_step)
