"""A per-channel multiply in front of a product moves into its weight (Relay's
ForwardFoldScaleAxis).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from onnxgrad.laws.scales.forward import scale_in_front_of_product
from onnxgrad.passes.base import RulePass, register
from onnxgrad.rewrite.worklist import Rule


@register
@dataclass(frozen=True)
class ForwardFoldScaleAxis(RulePass):
    """(x * s) @ w = x @ (s * w): a constant multiply per channel moves into the products that read
    it, if all can.

    `scalars`: also one factor for all channels. `runtime`: also a scale known only at run time,
    unless it is a divisor: the weight is then scaled in every run.
    """

    name: ClassVar[str] = "forward-fold-scale-axis"
    rounds: ClassVar[bool] = True
    scalars: bool = False
    runtime: bool = False

    @property
    def laws(self) -> Sequence[Rule]:
        """See `laws.scales.forward`."""
        return [scale_in_front_of_product(self.scalars, self.runtime)]
