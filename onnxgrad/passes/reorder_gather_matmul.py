"""Gathers in front of products or behind them (TVM's ReorderTakeAfterMatmul and its way back)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from onnxgrad.laws.gathered_products import (
    gathers_of_columns,
    gathers_of_rows,
    product_of_gathered_matrices,
)
from onnxgrad.passes.base import Count, RulePass, register
from onnxgrad.rewrite.worklist import Rule


@register
@dataclass(frozen=True)
class ReorderGatherMatMul(RulePass):
    """Gather(x @ w, i) = Gather(x, i) @ w or x @ Gather(w, i), whichever is cheaper.

    Along rows (the last token of a sequence, a table with a weight behind it) and along columns,
    w a matrix of known sizes; and one matrix of a table for each batch (adapters chosen by an
    index). `rows`, unless 0, is taken for an unknown number of rows; without, only what is cheaper
    for every number of them is done. Nothing is added up in another order.
    """

    name: ClassVar[str] = "reorder-gather-matmul"
    rows: Count = 0

    @property
    def laws(self) -> Sequence[Rule]:
        """See `laws.gathered_products`."""
        by_cost = [*gathers_of_rows(self.rows), *gathers_of_columns(self.rows)]
        return [*by_cost, product_of_gathered_matrices]
