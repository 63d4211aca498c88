"""Operators whose kernel is slower than the chain that they stand for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from onnxgrad.laws.composites.lowered import (
    group_normalization,
    skip_layer_normalization,
    skip_simplified_layer_normalization,
    sum_before_normalization,
    swish,
)
from onnxgrad.passes.base import Provider, RulePass, register
from onnxgrad.rewrite.worklist import Rule

_LAWS = [
    group_normalization,
    swish,
    skip_layer_normalization,
    skip_simplified_layer_normalization,
    sum_before_normalization,
]


@register
@dataclass(frozen=True)
class LowerComposites(RulePass):
    """Swish(x) = x sigmoid(x), and so on: one operator into the chain that is faster on `provider`.

    GroupNormalization, Swish and com.microsoft's SkipLayerNormalization and
    SkipSimplifiedLayerNormalization on the CPU, and a sum of which onnxruntime would make such a
    one; `provider=cuda`: none.
    """

    name: ClassVar[str] = "lower-composites"
    # an attribute of another default, and ones, are constants of a chain
    rounds: ClassVar[bool] = True
    provider: Provider = "cpu"

    @property
    def laws(self) -> Sequence[Rule]:
        """See `laws.composites.lowered`."""
        return _LAWS if self.provider == "cpu" else []
