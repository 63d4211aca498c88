"""Sums, products and signs in their shortest form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from onnxgrad.laws.arithmetic import NUMBERS, SIGNS, add_two_constants
from onnxgrad.laws.sums import common_factor, sum_of_sums
from onnxgrad.passes.base import RulePass, register
from onnxgrad.rewrite.worklist import Rule


@register
@dataclass(frozen=True)
class SimplifyArithmetic(RulePass):
    """-(-x) = x, x + -z = x - z; with exact=false also (x 2) 3 = x 6, a b + a c = a (b + c), Sum of
    Sum.

    `exact`: only the laws that give the same value for every value. The others hold for numbers,
    and round in another order.
    """

    name: ClassVar[str] = "simplify-arithmetic"
    rounds: ClassVar[bool] = True
    exact: bool = True

    @property
    def laws(self) -> Sequence[Rule]:
        """See `laws.arithmetic` and `laws.sums`."""
        return (
            SIGNS
            if self.exact
            else (*SIGNS, *NUMBERS, add_two_constants, common_factor, sum_of_sums)
        )
