"""Low-rank adapters beside their weight, or in it (TVM's ExpandMatmulOfSum and its way back)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from onnxgrad.laws.products_of_sums import contracted, expanded
from onnxgrad.passes.base import Count, RulePass, register
from onnxgrad.rewrite.worklist import Rule


@register
@dataclass(frozen=True)
class ExpandMatMulOfSum(RulePass):
    """x @ (w + p @ q) = x @ w + (x @ p) @ q, whichever is cheaper.

    Merged where all are constants, apart for few rows where p and q are not. p @ q may be scaled by
    a number, and a bias may stand between the sums. Matrices without batch axes, of known sizes.
    With an unknown number of rows only what is cheaper for every number of them is done; `rows`,
    unless 0, is taken for it. Both forms round differently, so no preset has this pass.
    """

    name: ClassVar[str] = "expand-matmul-of-sum"
    rows: Count = 0

    @property
    def laws(self) -> Sequence[Rule]:
        """See `laws.products_of_sums`."""
        return [*expanded(self.rows), *contracted(self.rows)]
