"""Parallel MatMuls of one right operand into one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from onnxgrad.laws.parallel.matmul import products_of_one_right
from onnxgrad.passes.base import FamilyPass, register
from onnxgrad.rewrite.combine import Family


@register
@dataclass(frozen=True)
class CombineParallelMatMulRight(FamilyPass):
    """x1 @ w, x2 @ w, ... = split(concat(x1, x2, ...) @ w) along the rows: the mirror case. Not in
    any preset.

    The left operands are activations, so their Concat runs every time: it pays for many small ones.
    """

    name: ClassVar[str] = "combine-parallel-matmul-right"

    @property
    def family(self) -> Family:
        """See `laws.parallel`."""
        return products_of_one_right()
