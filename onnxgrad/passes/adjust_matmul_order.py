"""Chains of products in the cheaper order (TVM's AdjustMatmulOrder)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from onnxgrad.laws.association import order_of_products
from onnxgrad.passes.base import Count, RulePass, register
from onnxgrad.rewrite.worklist import Rule


@register
@dataclass(frozen=True)
class AdjustMatMulOrder(RulePass):
    """(x @ a) @ b = x @ (a @ b), whichever takes fewer multiplications for the shapes at hand.

    MatMul with batch axes, and Gemm with transA and transB. What depends on constants only is free:
    `fold-constant` computes it. With an unknown number of rows only what is cheaper for every
    number of them is done; `rows`, unless 0, is taken for it. A long chain goes one exchange at a
    time, each of them for the better. Both orders round differently, so no preset has this pass.
    """

    name: ClassVar[str] = "adjust-matmul-order"
    rows: Count = 0

    @property
    def laws(self) -> Sequence[Rule]:
        """See `laws.association`."""
        return order_of_products(self.rows)
