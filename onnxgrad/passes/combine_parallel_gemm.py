"""Parallel Gemms into one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from onnxgrad.ir.binding import Binding
from onnxgrad.laws.parallel.gemm import gemms_of_one_left
from onnxgrad.laws.parallel.splits import lift_above_split
from onnxgrad.passes.base import FamilyPass, Merge, Provider, register
from onnxgrad.rewrite.combine import Family
from onnxgrad.rewrite.trace import Trace


@register
@dataclass(frozen=True)
class CombineParallelGemm(FamilyPass):
    """Gemm(x, w1, c1), Gemm(x, w2, c2), ... = split(Gemm(x, concat(w1, w2, ...), concat(c1, c2,
    ...))).

    Options as for combine-parallel-matmul. A branch without bias gets one of -0.0, so that all can
    be one Gemm.
    """

    name: ClassVar[str] = "combine-parallel-gemm"
    merge: Merge = "auto"
    provider: Provider = "cpu"

    @property
    def family(self) -> Family:
        """See `laws.parallel`."""
        return gemms_of_one_left(self.merge, self.provider)

    def follow(self, emitted: Sequence[Binding], trace: Trace) -> None:
        """Biases, scales and activations move above the Split."""
        lift_above_split(emitted, trace)
