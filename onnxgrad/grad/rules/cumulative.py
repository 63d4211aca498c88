"""CumSum, CumProd and Range."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxgrad.grad.registry import vjp
from onnxgrad.grad.rules._common import ZEROS, beside_zeros, where
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
    """dx_j = sum over the products that hold x_j of g_i times the product of the others.

    That is y_i / x_j, and at a zero the product of the rest.
    """
    along = binding.inputs[1]
    is_zero = op.Equal(x, 0.0)
    nonzero = where(is_zero, 1.0, x)
    products = op.CumProd(nonzero, along, exclusive=exclusive, reverse=reverse)
    zeros = op.CumSum(nonzero - x, along, exclusive=exclusive, reverse=reverse)

    def gathered(v: Var) -> Var:
        return op.CumSum(v, along, exclusive=exclusive, reverse=1 - reverse)

    a, b = beside_zeros(g * products, zeros)
    return where(is_zero, gathered(a * b) - gathered(a) * x, gathered(g * y) / nonzero)


vjp("CumProd", _cum_prod, notes=ZEROS)


def _range_step(g: Var, y: Var, start: Var, limit: Var, delta: Var) -> Var:
    """y_i = start + i delta"""
    numbers = op.Cast(op.Range(np.int64(0), op.Size(y), np.int64(1)), to=y.dtype)
    return op.ReduceSum(g * numbers, keepdims=0)


vjp("Range", lambda g, y, start, limit, delta: op.ReduceSum(g, keepdims=0), None, _range_step)
