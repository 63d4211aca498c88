"""TopK."""

from __future__ import annotations

from typing import Any

from onnxgrad.grad.registry import vjp
from onnxgrad.ir.like import zeros_like
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var


def _top_k(g: Any, y: Any, x: Var, axis: int) -> Any:
    """Each value's adjoint goes to where it came from."""
    return None if g[0] is None else op.ScatterElements(zeros_like(x), y[1], g[0], axis=axis)


vjp("TopK", _top_k, notes="ties: the index that the forward returned")
