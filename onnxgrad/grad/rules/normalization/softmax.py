"""Softmax and its kin."""

from __future__ import annotations

from onnxgrad.grad.registry import vjp, zero
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var


def _softmax(g: Var, y: Var, x: Var, axis: int) -> Var:
    if _is_selected(y):
        y = op.Where(op.IsNaN(y), 0.0, y)
    return y * (g - op.ReduceSum(g * y, [axis], keepdims=1))


def _is_selected(y: Var) -> bool:
    """Whether a Where picks from `y`: a row of -inf alone is NaN, and Attention's body puts
    zeros in its place.
    """
    seen = list(y.users)
    while seen:
        user = seen.pop()
        if user.op in ("Where", "IsNaN"):
            return True
        if user.op in ("Cast", "CastLike", "Identity"):
            seen.extend(user.out.users)
    return False


vjp("Softmax", _softmax, notes="rows that are NaN and replaced by a Where pass nothing")


vjp("LogSoftmax", lambda g, y, x, axis: g - op.Exp(y) * op.ReduceSum(g, [axis], keepdims=1))


zero("Hardmax", notes="one-hot: constant almost everywhere")
