"""Two bindings in a row that are one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from onnxgrad.laws.arithmetic import SIGNS
from onnxgrad.laws.clipping import clip_of_clip, clip_of_relu, relu_of_clip
from onnxgrad.laws.padding import pad_into_average, pad_into_conv
from onnxgrad.laws.selection import concat_of_concat, gather_of_gather
from onnxgrad.passes.base import RulePass, register
from onnxgrad.rewrite.worklist import Rule


@register
@dataclass(frozen=True)
class MergeConsecutive(RulePass):
    """-(-x) = x, x + -z = x - z, Clip(Relu(x)) = Clip(x), Clip, Concat, Gather twice as one, Conv
    of Pad.

    Exact: the same bits for every value, but for the sign of a NaN.
    """

    name: ClassVar[str] = "merge-consecutive"

    @property
    def laws(self) -> Sequence[Rule]:
        """See `laws.arithmetic`, `laws.clipping`, `laws.selection` and `laws.padding`."""
        clips = [clip_of_clip, clip_of_relu, relu_of_clip]
        return [*SIGNS, *clips, concat_of_concat, gather_of_gather, pad_into_conv, pad_into_average]
