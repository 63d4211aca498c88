"""Folds an addend per output channel into the bias of the product before it."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission.emit import constant
from onnxgrad.ir.types import Array
from onnxgrad.ir.var import Var
from onnxgrad.laws.fold_scale_axis.scale import again, channel_vector
from onnxgrad.rewrite.pattern import P, capture
from onnxgrad.rewrite.trace import decline, decline_if
from onnxgrad.rewrite.worklist import count, rewrite

x, d = capture("x d")

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
