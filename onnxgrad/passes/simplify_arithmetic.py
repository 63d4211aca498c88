"""Sums, products and signs in their shortest form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from onnxgrad.laws.arithmetic import (
    add_of_neg,
    add_two_numbers,
    mul_by_two_numbers,
    mul_of_neg_number,
    neg_of_neg,
    neg_of_product_with_number,
    neg_of_sub,
    neg_times_number,
    numbers_of_a_product,
    product_over_number,
    sub_of_neg,
    times_reciprocal,
)
from onnxgrad.laws.sums import common_factor, sum_of_sums
from onnxgrad.passes.base import RulePass, register
from onnxgrad.rewrite.worklist import Rule

# of the same value for every value: signs are never rounded
_SIGNS = [neg_of_neg, add_of_neg, sub_of_neg]
_ROUNDING = [
    neg_of_sub,
    times_reciprocal,
    mul_by_two_numbers,
    product_over_number,
    numbers_of_a_product,
    mul_of_neg_number,
    neg_times_number,
    neg_of_product_with_number,
    add_two_numbers,
    common_factor,
    sum_of_sums,
]


@register
@dataclass(frozen=True)
class SimplifyArithmetic(RulePass):
    """-(-x) = x, x + -z = x - z; with exact=false also (x 2) 3 = x 6, a b + a c = a (b + c), Sum of Sum.

    `exact`: only the laws that give the same value for every value. The others hold for numbers, and round in another
    order.
    """

    name: ClassVar[str] = "simplify-arithmetic"
    rounds: ClassVar[bool] = True
    exact: bool = True

    @property
    def laws(self) -> Sequence[Rule]:
        """See `laws.arithmetic` and `laws.sums`."""
        return _SIGNS if self.exact else [*_SIGNS, *_ROUNDING]
