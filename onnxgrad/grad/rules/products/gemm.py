"""Gemm."""

from __future__ import annotations

from onnxgrad.grad.registry import vjp
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var


def _scaled(v: Var, factor: float) -> Var:
    return v if factor == 1.0 else v * factor


def _gemm_a(g: Var, y: Var, a: Var, b: Var, alpha: float, transA: int, transB: int) -> Var:
    if transA:
        return op.Gemm(b, g, alpha=_attribute(alpha), transA=transB or None, transB=1)
    return op.Gemm(g, b, alpha=_attribute(alpha), transB=None if transB else 1)


def _gemm_b(g: Var, y: Var, a: Var, b: Var, alpha: float, transA: int, transB: int) -> Var:
    if transB:
        return op.Gemm(g, a, alpha=_attribute(alpha), transA=1, transB=transA or None)
    return op.Gemm(a, g, alpha=_attribute(alpha), transA=None if transA else 1)


def _attribute(alpha: float) -> float | None:
    return None if alpha == 1.0 else alpha


vjp("Gemm", _gemm_a, _gemm_b, lambda g, y, a, b, c, beta: _scaled(g, beta))
