"""Folds what is added to a product into its bias: an addend per output channel, or another Gemm."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission.emit import constant
from onnxgrad.ir.types import Array, same_shape
from onnxgrad.ir.var import Var
from onnxgrad.laws.flatten_products import GEMM_DTYPES
from onnxgrad.laws.fold_scale_axis.scale import again, channel_vector
from onnxgrad.rewrite.pattern import P, capture
from onnxgrad.rewrite.trace import decline, decline_if
from onnxgrad.rewrite.worklist import count, rewrite

x, d, p, q = capture("x d p q")

_BIASED = frozenset({"Conv", "ConvTranspose", "Gemm"})

product = x.where(lambda v: v.definition is not None and v.definition.op in _BIASED)


@rewrite(
    P.any_of("Add", "Sub")(product, d), shrinks=count("Conv", "ConvTranspose", "Gemm", "Add", "Sub")
)
def bias_of_product(x: Var, d: Var, root: Binding) -> Any:
    """Conv(x, w, c) + d = Conv(x, w, c + d), d constant per output channel; ConvTranspose and
    Gemm likewise
    """
    b, found = x.definition, channel_vector(d, x)
    if b is None or b.domain != "" or b.op not in _BIASED or found is None:
        return None
    decline_if(
        x.sole_user() is not root or x.block is not root.block,
        f"{x.name} is read elsewhere as well, or is an output",
    )
    channels = x.shape[1] if x.shape is not None and len(x.shape) > 1 else None
    if found[1] not in (None, 1) or not isinstance(channels, int):
        return decline("the addend is not one value per output channel")
    bias = b.operand(2)
    if bias is not None and (b.attr("beta", 1.0) != 1.0 or bias.const is None):
        return decline("the bias has a factor or is not constant")
    row = np.broadcast_to(found[0], (channels,))
    if root.op == "Sub":
        row = np.negative(row)  # exact, so c - d = c + (-d)
    # added here, not by fold-constant: it is one vector, and the number of bindings falls at once
    total = finite_sum(row, None if bias is None else bias.const)
    if total is None:
        return decline("the sum of the addends is not finite")
    merged = constant(total, name="bias")
    beta: dict[str, Any] = {"beta": 1.0} if b.op == "Gemm" else {}
    return again(b, [*b.inputs[:2], merged], beta)


def finite_sum(row: Array, other: Array | None) -> Array | None:
    """The sum; None if it is too large for the dtype."""
    if other is None:
        return row
    with np.errstate(over="ignore"):
        total: Array = np.add(row, other)
    return None if np.isfinite(row).all() and not np.isfinite(total).all() else total


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
