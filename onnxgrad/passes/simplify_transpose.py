"""Fewer and lower transposes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from onnxgrad.laws.noops import transpose_in_order
from onnxgrad.laws.transposed_products import (
    GEMM_RULES,
    transpose_of_matmul,
    transpose_of_matmul_if_free,
)
from onnxgrad.laws.transposes import (
    transpose_of_transpose,
    transpose_through_constant,
    transpose_through_elementwise,
    transpose_through_two,
)
from onnxgrad.passes.base import RulePass, register
from onnxgrad.rewrite.worklist import Rule


@register
@dataclass(frozen=True)
class SimplifyTranspose(RulePass):
    """T(T(x)) = x, T(f(T(x))) = f(x), T(a @ b) = T(b) @ T(a), Gemm(T(a), b) = Gemm(a, b, transA).

    `always`: push a transpose below a product even when neither operand's transpose cancels or
    folds, which is what a gradient graph wants; without, only when one of them costs nothing.
    `floats=false` transposes no constant: it may be a weight to be trained.
    """

    name: ClassVar[str] = "simplify-transpose"
    always: bool = False
    floats: bool = True

    @property
    def laws(self) -> Sequence[Rule]:
        """See `laws.transposes` and `laws.transposed_products`."""
        of_matmul = transpose_of_matmul if self.always else transpose_of_matmul_if_free
        two = transpose_through_constant if self.floats else transpose_through_two
        through = [transpose_through_elementwise, two]
        return [transpose_in_order, transpose_of_transpose, *through, of_matmul, *GEMM_RULES]
