"""If with a constant condition, opened into the enclosing block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from onnxgrad.laws.branches import if_of_constant
from onnxgrad.passes.base import RulePass, register
from onnxgrad.rewrite.worklist import Rule


@register
@dataclass(frozen=True)
class OpenIf(RulePass):
    """If(true, f, g) = f, If(false, f, g) = g: the branch that is always taken stands in the
    enclosing block.
    """

    name: ClassVar[str] = "open-if"

    @property
    def laws(self) -> Sequence[Rule]:
        """See `laws.branches`."""
        return [if_of_constant]
