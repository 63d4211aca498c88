"""MatMul and Add of a batch as one Gemm of all its rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from onnxgrad.laws.flattening import elementwise_of_rows, gemm_of_rows, rows_of_rows
from onnxgrad.laws.noops import reshape_of_reshape
from onnxgrad.passes.base import RulePass, register
from onnxgrad.rewrite.worklist import Rule


@register
@dataclass(frozen=True)
class FlattenProducts(RulePass):
    """x @ w + c = reshape(Gemm(rows of x, w, c)): one Gemm of all rows, whose Reshapes meet those
    beside it.

    onnxruntime makes the same Gemm, but after it has looked for Reshapes that meet: two of them
    stay at each product. Only where at most one size is unknown; others it leaves alone as well.
    """

    name: ClassVar[str] = "flatten-products"

    @property
    def laws(self) -> Sequence[Rule]:
        """See `laws.flattening`."""
        return [gemm_of_rows, reshape_of_reshape, rows_of_rows, elementwise_of_rows]
