"""Parallel MatMuls into one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from onnxgrad.ir.binding import Binding
from onnxgrad.laws.parallel.matmul import products_of_one_left
from onnxgrad.laws.parallel.splits import lift_above_split
from onnxgrad.passes.base import FamilyPass, Merge, Provider, register
from onnxgrad.rewrite.combine import Family
from onnxgrad.rewrite.trace import Trace


@register
@dataclass(frozen=True)
class CombineParallelMatMul(FamilyPass):
    """x @ w1, x @ w2, ... = split(x @ concat(w1, w2, ...)), biases and a common activation
    included.

    `merge`: always, auto (a static rule for `provider`, see `laws.parallel.when_merging_pays`) or
    never. `check` may refuse a group of branches (Python only).
    """

    name: ClassVar[str] = "combine-parallel-matmul"
    merge: Merge = "auto"
    provider: Provider = "cpu"

    @property
    def family(self) -> Family:
        """See `laws.parallel`."""
        return products_of_one_left(self.merge, self.provider)

    def follow(self, emitted: Sequence[Binding], trace: Trace) -> None:
        """Biases, scales and activations move above the Split."""
        lift_above_split(emitted, trace)
