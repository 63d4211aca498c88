"""A per-channel multiply behind a product moves into its weight (Relay's BackwardFoldScaleAxis)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from onnxgrad.laws.scales.backward import scale_behind_product
from onnxgrad.passes.base import RulePass, register
from onnxgrad.rewrite.worklist import Rule


@register
@dataclass(frozen=True)
class BackwardFoldScaleAxis(RulePass):
    """(x @ w) * s = x @ (w * s): a constant multiply per channel moves into Conv, ConvTranspose,
    MatMul, Gemm above it.

    `scalars`: also one factor for all channels. `runtime`: also a scale known only at run time,
    unless it is a divisor: the weight is then scaled in every run.
    """

    name: ClassVar[str] = "backward-fold-scale-axis"
    rounds: ClassVar[bool] = True
    scalars: bool = False
    runtime: bool = False

    @property
    def laws(self) -> Sequence[Rule]:
        """See `laws.scales.backward`."""
        return [scale_behind_product(self.scalars, self.runtime)]
