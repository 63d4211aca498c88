"""Bindings that return their operand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from onnxgrad.laws.noops import NOOPS
from onnxgrad.passes.base import RulePass, register
from onnxgrad.rewrite.worklist import Rule


@register
@dataclass(frozen=True)
class RemoveNoops(RulePass):
    """f(x) = x: Identity, Cast to the same type, Expand/Reshape/Slice/Transpose that change nothing, Concat of one."""

    name: ClassVar[str] = "remove-noops"

    @property
    def laws(self) -> Sequence[Rule]:
        """See `laws.noops`."""
        return NOOPS
