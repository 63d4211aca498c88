"""Laws of Expand in front of operators that broadcast by themselves."""

from __future__ import annotations

from typing import Any

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import broadcast_shapes, same_shape
from onnxgrad.ir.var import Var
from onnxgrad.rewrite.pattern import P, capture
from onnxgrad.rewrite.worklist import Measure, rewrite

a, b, c, s, d, x = capture("a b c s d x")


def _reads_of_expand(block: BindingBlock) -> int:
    return sum(b.op == "Expand" and b.out.use_count for b in block.walk())


READS_OF_EXPAND = Measure("operands that are Expands", _reads_of_expand)


def _fills(out: Var, *operands: Var) -> bool:
    """The operands broadcast to the shape of `out` among themselves."""
    return same_shape(broadcast_shapes([v.shape for v in operands]), out.shape)


@rewrite(P.any_of("Add", "Mul")(P.Expand(a, s), b), shrinks=READS_OF_EXPAND)
def commuting_with_expand(a: Var, b: Var, root: Binding) -> Any:
    """f(Expand(a, s), b) = f(a, b), f broadcasting, where b has the shape already"""
    return getattr(op, root.op)(a, b) if _fills(root.out, a, b) else None


@rewrite(P.any_of("Sub", "Div")(P.Expand(a, s), b), shrinks=READS_OF_EXPAND)
def left_of_expand(a: Var, b: Var, root: Binding) -> Any:
    """Expand(a, s) - b = a - b, where b has the shape already"""
    return getattr(op, root.op)(a, b) if _fills(root.out, a, b) else None


@rewrite(P.any_of("Sub", "Div")(a, P.Expand(b, s)), shrinks=READS_OF_EXPAND)
def right_of_expand(a: Var, b: Var, root: Binding) -> Any:
    """a - Expand(b, s) = a - b, where a has the shape already"""
    return getattr(op, root.op)(a, b) if _fills(root.out, a, b) else None


@rewrite(P.Where(c, P.Expand(a, s), b), shrinks=READS_OF_EXPAND)
def where_of_expand(a: Var, b: Var, c: Var, root: Binding) -> Any:
    """Where(c, Expand(a, s), b) = Where(c, a, b), where c and b have the shape already"""
    return op.Where(c, a, b) if _fills(root.out, a, b, c) else None
