"""The root mean square normalisation by a division."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from onnxgrad.laws.root_mean_square import over_root_mean_square
from onnxgrad.passes.base import RulePass, register
from onnxgrad.rewrite.worklist import Rule


@register
@dataclass(frozen=True)
class DivideByRoot(RulePass):
    """x (1 / sqrt(mean(x^2) + e)) = x / sqrt(mean(x^2) + e), which onnxruntime fuses with the scale
    behind it.
    """

    name: ClassVar[str] = "divide-by-root"

    @property
    def laws(self) -> Sequence[Rule]:
        """See `laws.root_mean_square`."""
        return [over_root_mean_square]
