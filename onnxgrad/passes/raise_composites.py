"""Chains into the operator that the runtime has a fast kernel for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from onnxgrad.laws.composites.activations import (
    gelu,
    gelu_by_tanh,
    hard_sigmoid,
    hard_swish,
    softmax,
)
from onnxgrad.laws.composites.attention import (
    attention,
    attention_of_groups,
    attention_of_rows,
    attention_without_nan,
)
from onnxgrad.laws.composites.normalization import (
    bias_of_layer_normalization,
    layer_normalization,
    rms_normalization,
    rms_normalization_in_float,
)
from onnxgrad.laws.composites.rotary import rotary_embedding
from onnxgrad.passes.base import RulePass, register
from onnxgrad.rewrite.worklist import Rule

_LAWS = [
    layer_normalization,
    bias_of_layer_normalization,
    rms_normalization,
    rms_normalization_in_float,
    gelu,
    gelu_by_tanh,
    hard_sigmoid,
    hard_swish,
    softmax,
    rotary_embedding,
    attention,
    attention_without_nan,
    attention_of_groups,
    attention_of_rows,
]


@register
@dataclass(frozen=True)
class RaiseComposites(RulePass):
    """softmax(q k^T) v = Attention(q, k, v), and so on: exporters' chains into one operator each.

    RMSNormalization, RotaryEmbedding, LayerNormalization, Gelu, HardSigmoid, HardSwish and Softmax
    as well, where the model's opset has them and onnxruntime a kernel for the dtype. Not raised,
    because the kernel is slower or no faster than the chain: GroupNormalization, Swish, Mish.
    onnxruntime's Attention (1.31.1) refuses a size of 0, which the chain takes.
    """

    name: ClassVar[str] = "raise-composites"
    # a file's constants are rounded, those of an operator are not
    rounds: ClassVar[bool] = True

    @property
    def laws(self) -> Sequence[Rule]:
        """See `laws.composites`."""
        return _LAWS
