"""Chains and operators into what only onnxruntime has, where that is faster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from onnxgrad.laws.composites.onnxruntime import (
    fast_gelu,
    multi_head_attention,
    multi_head_attention_of_attention,
)
from onnxgrad.passes.base import Provider, RulePass, register
from onnxgrad.rewrite.worklist import Rule

_LAWS = [fast_gelu, multi_head_attention, multi_head_attention_of_attention]


@register
@dataclass(frozen=True)
class RaiseForOnnxruntime(RulePass):
    """softmax(q k^T) v = MultiHeadAttention(q, k, v) of com.microsoft, for onnxruntime on the CPU.

    FastGelu as well, for models below opset 20, which have no Gelu. No preset has this pass:
    `--for onnxruntime` adds it. The other forms of com.microsoft are made by
    onnxruntime itself when it loads a model (SkipLayerNormalization, BiasGelu, QuickGelu,
    FusedConv, FusedMatMul), so writing them gains nothing; `provider=cuda`: none.
    """

    name: ClassVar[str] = "raise-for-onnxruntime"
    # a file's scale is rounded, and the sum is in another order
    rounds: ClassVar[bool] = True
    provider: Provider = "cpu"

    @property
    def laws(self) -> Sequence[Rule]:
        """See `laws.composites.onnxruntime`."""
        return _LAWS if self.provider == "cpu" else []
