"""Operators that behave differently in training, written as what they do in inference (Relay's
SimplifyInference).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from onnxgrad.laws.batch_normalization import batch_norm, batch_norm_after_product
from onnxgrad.laws.dropout import dropout
from onnxgrad.passes.base import RulePass, register
from onnxgrad.rewrite.worklist import Rule


@register
@dataclass(frozen=True)
class SimplifyInference(RulePass):
    """BatchNormalization -> multiply and add; Dropout(x) -> x, where they do not train.

    `only_after_products`: take a BatchNormalization apart only behind a product, whose weight and
    bias can then take scale and shift; elsewhere two elementwise kernels would replace one.
    """

    name: ClassVar[str] = "simplify-inference"
    only_after_products: bool = False

    @property
    def laws(self) -> Sequence[Rule]:
        """See `laws.batch_normalization` and `laws.dropout`."""
        return [batch_norm_after_product if self.only_after_products else batch_norm, dropout]
