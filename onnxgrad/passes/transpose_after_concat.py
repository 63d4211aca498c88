"""Transposes in front of a Concat become one behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from onnxgrad.laws.transposes import concat_of_transposes
from onnxgrad.passes.base import RulePass, register
from onnxgrad.rewrite.worklist import Rule


@register
@dataclass(frozen=True)
class TransposeAfterConcat(RulePass):
    """Concat(T(a), T(b), ...) along k = T(Concat(a, b, ...)) along perm[k]."""

    name: ClassVar[str] = "transpose-after-concat"

    @property
    def laws(self) -> Sequence[Rule]:
        """See `laws.transposes`."""
        return [concat_of_transposes]
