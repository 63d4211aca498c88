"""Parallel products of equal shapes into one batched product (Relay's CombineParallelDense)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from onnxgrad.ir.binding import Binding
from onnxgrad.laws.parallel.dense import products_of_equal_shapes
from onnxgrad.laws.parallel.splits import lift_above_split
from onnxgrad.passes.base import FamilyPass, register
from onnxgrad.rewrite.combine import Family
from onnxgrad.rewrite.trace import Trace


@register
@dataclass(frozen=True)
class CombineParallelDense(FamilyPass):
    """x @ w1, x @ w2, ... of equal shapes = the rows of stack(x, x, ...) @ stack(w1, w2, ...): one
    batched product.

    MatMul of any equal rank (2 is dense, 3 is nn.batch_matmul) and Gemm, with a bias on all
    branches or on none. `share_left`: only products of one left operand; without it any independent
    products of equal shapes. In no preset.
    """

    name: ClassVar[str] = "combine-parallel-dense"
    share_left: bool = True

    @property
    def family(self) -> Family:
        """See `laws.parallel`."""
        return products_of_equal_shapes(self.share_left)

    def follow(self, emitted: Sequence[Binding], trace: Trace) -> None:
        """Biases, scales and activations behind the products become one each."""
        lift_above_split(emitted, trace)
