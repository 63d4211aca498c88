"""LpNormalization."""

from __future__ import annotations

from onnxgrad.grad.registry import vjp
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var


def _lp_normalization(g: Var, y: Var, x: Var, axis: int, p: int) -> Var:
    """y = x / |x|: what points along y goes, measured by the norm's own gradient (y for 2,
    sign(x) for 1).
    """
    norm = (op.ReduceL1 if p == 1 else op.ReduceL2)(x, [axis], keepdims=1)
    along = op.ReduceSum(g * y, [axis], keepdims=1)
    across = (g - (op.Sign(x) if p == 1 else y) * along) / norm
    return op.Where(op.Equal(norm, 0.0), 0.0, across)


vjp("LpNormalization", _lp_normalization, notes="0 where the norm is 0; sign(0) = 0 in the 1-norm")
