"""Bindings that return their operand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from onnxgrad.laws.axes import (
    squeeze_of_unsqueeze,
    unsqueeze_of_squeeze,
    unsqueeze_of_unsqueeze,
)
from onnxgrad.laws.clipping import relu_of_relu
from onnxgrad.laws.neutral_elements import NEUTRAL_ELEMENTS
from onnxgrad.laws.noops import NOOPS
from onnxgrad.laws.recurrent import initial_state_of_zeros
from onnxgrad.laws.selection import where_of_constant
from onnxgrad.passes.base import RulePass, register
from onnxgrad.rewrite.worklist import Rule

_EXACT = [
    *NOOPS,
    squeeze_of_unsqueeze,
    unsqueeze_of_squeeze,
    unsqueeze_of_unsqueeze,
    relu_of_relu,
]


@register
@dataclass(frozen=True)
class RemoveNoops(RulePass):
    """f(x) = x: Identity, Cast to the same type, Expand, Reshape, Slice that change nothing, Concat
    of one, x - 0, x 1, an initial state of zeros.

    Exact for every value. `floats=false` keeps what only a constant makes a no-op (x 1, x - 0,
    Where): the constant may be a weight to be trained.
    """

    name: ClassVar[str] = "remove-noops"
    floats: bool = True

    @property
    def laws(self) -> Sequence[Rule]:
        """See `laws.noops`, `laws.axes`, `laws.clipping` and, of constants,
        `laws.neutral_elements` and `laws.recurrent`.
        """
        if not self.floats:
            return _EXACT
        return [*_EXACT, where_of_constant, initial_state_of_zeros, *NEUTRAL_ELEMENTS]
