"""An addend per output channel behind a product becomes its bias."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from onnxgrad.laws.bias import bias_of_product
from onnxgrad.passes.base import RulePass, register
from onnxgrad.rewrite.worklist import Rule


@register
@dataclass(frozen=True)
class FoldBias(RulePass):
    """Conv(x, w, c) + d = Conv(x, w, c + d), d constant per output channel; ConvTranspose and
    Gemm likewise.
    """

    name: ClassVar[str] = "fold-bias"
    rounds: ClassVar[bool] = True

    @property
    def laws(self) -> Sequence[Rule]:
        """See `laws.bias`."""
        return [bias_of_product]
