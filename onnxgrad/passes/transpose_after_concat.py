"""Transposes in front of a Concat become one behind it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from onnxgrad.ir.block import Binding, Var
from onnxgrad.ir.ops import op
from onnxgrad.ir.program import Program
from onnxgrad.passes.base import Pass, register, roots
from onnxgrad.rewrite.engine import apply_rules, count, rewrite
from onnxgrad.rewrite.pattern import Each, P, capture
from onnxgrad.rewrite.trace import Trace, decline

x, p, axis = capture("x p axis")


@rewrite(P.Concat(Each(P.Transpose(x, perm=p)), axis=axis), shrinks=count("Transpose"))
def transpose_after_concat(x: list[Var], p: list[Any], axis: int, root: Binding) -> Any:
    """Concat(T(a), T(b), ..., axis=k) = T(Concat(a, b, ..., axis=perm[k])), one perm for all, any number of operands"""
    perm = p[0]
    if perm is None or any(q != perm for q in p):
        return decline("the permutations differ")
    # in a nested block (a loop's body, say) the Concat may run often, and the transposes outside of it once
    dying = sum(v is not None and v.sole_user() is root and v.block is root.block for v in root.inputs)
    if dying < 2:
        return decline("the transposes have other readers and would stay")
    return op.Transpose(op.Concat(*x, axis=perm[axis % len(perm)]), perm=list(perm))


@register
@dataclass(frozen=True)
class TransposeAfterConcat(Pass):
    """Concat(T(a), T(b), ...) along k = T(Concat(a, b, ...)) along perm[k]."""

    name: ClassVar[str] = "transpose-after-concat"

    def run(self, program: Program, trace: Trace) -> None:
        """Apply the law in every block until it matches nowhere."""
        for block in roots(program):
            apply_rules(block, [transpose_after_concat], trace)
