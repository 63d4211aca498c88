"""Clean-up of a gradient graph: double transposes go, and what else the walk leaves behind."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager

from onnxgrad.grad import laws_arithmetic, laws_layout
from onnxgrad.grad.bodies import fold
from onnxgrad.ir.block import Binding, BindingBlock, Var
from onnxgrad.ir.ops import emitting
from onnxgrad.ir.program import Program
from onnxgrad.passes.base import nested, roots
from onnxgrad.passes.merge_equal import merge_bindings
from onnxgrad.passes.remove_noops import RULES as NOOPS
from onnxgrad.passes.remove_noops import transpose_in_order
from onnxgrad.passes.transpose import GEMM_RULES, transpose_of_matmul, transpose_of_transpose
from onnxgrad.rewrite.engine import apply_rules
from onnxgrad.rewrite.trace import Trace

TRANSPOSES = [transpose_in_order, transpose_of_transpose, transpose_of_matmul, *GEMM_RULES]
RULES = [*laws_arithmetic.RULES, *laws_layout.RULES]


def simplify(
    program: Program, variables: Iterable[Var], forward: Collection[Binding], trace: Trace | None = None
) -> None:
    """Simplify in place what the backward walk added; the bindings in `forward` stay as they are.

    `variables`, the requested initializers, are never folded: their values will be replaced.
    """
    trace = trace or Trace()
    with _as_inputs(program, variables):
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
def _as_inputs(program: Program, variables: Iterable[Var]) -> Iterator[None]:
    """While this lasts, initializers among `variables` are no constants."""
    hidden = [v for v in variables if v.initializer is not None and not v.parameter]
    before = program.ir_version
    program.ir_version = max(before, 4)
    for v in hidden:
        v.parameter = True
    try:
        yield
    finally:
        program.ir_version = before
        for v in hidden:
            v.parameter = False
