"""Clean-up of a gradient graph: double transposes go, and what else the walk leaves behind."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager

from onnxgrad.grad.bodies import fold
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.program import Program
from onnxgrad.ir.var import Var
from onnxgrad.laws.arithmetic import (
    add_of_neg,
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
from onnxgrad.laws.broadcasting import commuting_with_expand, left_of_expand, right_of_expand, where_of_expand
from onnxgrad.laws.exponents import another_number_into_exponent, difference_of_squares, number_into_exponent
from onnxgrad.laws.neutral_elements import times_one
from onnxgrad.laws.noops import NOOPS, transpose_in_order
from onnxgrad.laws.reshapes import concat_of_reshapes, reshape_around_product, reshape_back, squeeze_of_sum, stack
from onnxgrad.laws.sums import (
    add_of_tiles,
    common_factor,
    sum_of_reshapes,
    sum_of_sums,
    sum_of_tiles,
    sum_with_scattered,
)
from onnxgrad.laws.transposes import (
    GEMM_RULES,
    concat_of_transposes,
    transpose_of_matmul,
    transpose_of_product_of_transpose,
    transpose_of_transpose,
)
from onnxgrad.passes.base import nested, roots
from onnxgrad.passes.merge_equal import merge_bindings
from onnxgrad.rewrite.trace import Trace
from onnxgrad.rewrite.worklist import apply_rules

TRANSPOSES = [transpose_in_order, transpose_of_transpose, transpose_of_matmul, *GEMM_RULES]
ARITHMETIC = [
    times_reciprocal,
    number_into_exponent,
    another_number_into_exponent,
    difference_of_squares,
    commuting_with_expand,
    left_of_expand,
    right_of_expand,
    where_of_expand,
    add_of_neg,
    sub_of_neg,
    neg_of_neg,
    neg_of_sub,
    times_one,
    mul_by_two_numbers,
    product_over_number,
    common_factor,
    numbers_of_a_product,
    mul_of_neg_number,
    neg_times_number,
    neg_of_product_with_number,
    sum_of_sums,
]
LAYOUT = [
    sum_with_scattered,
    sum_of_reshapes,
    reshape_back,
    reshape_around_product,
    squeeze_of_sum,
    concat_of_reshapes,
    stack,
    transpose_of_product_of_transpose,
    concat_of_transposes,
    sum_of_tiles,
    add_of_tiles,
]
RULES = [*ARITHMETIC, *LAYOUT]


def simplify(
    program: Program, variables: Iterable[Var], forward: Collection[Binding], trace: Trace | None = None
) -> None:
    """Simplify in place what the backward walk added; the bindings in `forward` stay as they are.

    `variables`, the requested initializers, are never folded: their values will be replaced.
    """
    trace = trace or Trace()
    with _variable(variables):
        for block in roots(program):
            apply_rules(block, [*TRANSPOSES, *RULES, *NOOPS], trace, where=lambda b: b not in forward)
            _fold_constants(block, forward)
            apply_rules(block, NOOPS, trace, where=lambda b: b not in forward)
            merge_bindings(block, trace, where=lambda b: b not in forward)
    for block in reversed([program.main, *nested(program.main)]):
        block.remove_unused()


def _fold_constants(block: BindingBlock, forward: Collection[Binding]) -> None:
    """Evaluate what depends on small constants and known sizes only."""
    block.schedule()
    with emitting(block, share=True):
        for b in [b for b in block.bindings if b not in forward and len(b.outputs) == 1]:
            value = fold(b)
            if value is not None:
                block.replace(b.out, value)
                block.remove(b)


@contextmanager
def _variable(values: Iterable[Var]) -> Iterator[None]:
    """While this lasts, initializers among `values` are no constants."""
    weights = [v for v in values if v.initializer is not None]
    for v in weights:
        v.variable = True
    try:
        yield
    finally:
        for v in weights:
            v.variable = False
