"""Turns a sum of Gemms into a chain of Gemms, each of which adds the previous one."""

from __future__ import annotations

from typing import Any

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission.emit import constant
from onnxgrad.ir.types import same_shape
from onnxgrad.ir.var import Var
from onnxgrad.laws.flatten_products import GEMM_DTYPES
from onnxgrad.laws.fold_bias import finite_sum
from onnxgrad.laws.fold_scale_axis.scale import again
from onnxgrad.rewrite.pattern import P, capture
from onnxgrad.rewrite.trace import decline, decline_if
from onnxgrad.rewrite.worklist import count, rewrite

p, q = capture("p q")
_ONCE = {"beta": 1.0}

_first, _second = (
    v.where(lambda v: v.definition is not None and v.definition.is_op("Gemm")) for v in (p, q)
)


@rewrite(P.Add(_first, _second), shrinks=count("Add"))
def sum_of_gemms(p: Var, q: Var, root: Binding) -> Any:
    """Gemm(a, v, c) + Gemm(b, w, d) = Gemm(a, v, Gemm(b, w, c + d))

    A recurrent cell, for example, adds one product of its input and one of its state.
    """
    outer, inner = p.definition, q.definition
    if outer is None or inner is None or root.out.dtype not in GEMM_DTYPES:
        return None
    decline_if(
        any(v.sole_user() is not root or v.block is not root.block for v in (p, q)),
        "a product is read elsewhere as well, or is an output",
    )
    decline_if(not same_shape(p.shape, q.shape), "the products are not known to have one shape")
    c, d = outer.operand(2), inner.operand(2)
    if any(g.operand(2) is not None and g.attr("beta", 1.0) != 1.0 for g in (outer, inner)):
        return decline("a bias has a factor")
    if c is not None and d is not None:
        if c.const is None or d.const is None:
            return decline("a bias is not constant")
        total = finite_sum(c.const, d.const)
        if total is None or total.shape not in (c.shape, d.shape):
            return decline("the sum of the biases is not finite, or larger than they are")
        d = constant(total, name="bias")
    operands = [*inner.inputs[:2], c if d is None else d]
    return again(outer, [*outer.inputs[:2], again(inner, operands, _ONCE)], _ONCE)
