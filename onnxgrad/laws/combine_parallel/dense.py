"""Parallel products of equal shapes into one batched product (Relay's CombineParallelDense)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import cache
from typing import Any

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import Shape
from onnxgrad.ir.var import Var
from onnxgrad.laws.combine_parallel.gemm import row
from onnxgrad.laws.combine_parallel.merging import stack
from onnxgrad.rewrite.combine import Family, Shared, combine
from onnxgrad.rewrite.pattern import P, capture
from onnxgrad.rewrite.trace import decline, decline_if
from onnxgrad.rewrite.worklist import count

a, b, c = capture("a b c")


def _known(shape: Shape | None) -> bool:
    """Whether every size is a number or a symbol, so that equal shapes are provably equal."""
    return shape is not None and len(shape) >= 2 and all(d is not None for d in shape)


def _of_equal_shapes(a: Var, b: Var, root: Binding) -> Hashable:
    """The key of a product: branches with equal keys may be combined. They share the operator, the
    scalars and the operands' shapes; all biases are rows, or none exists. Raises Decline.
    """
    decline_if(
        not (_known(a.shape) and _known(b.shape)) or not a.dtype, "an operand's shape is unknown"
    )
    decline_if(root.has_refs, "an attribute is that of the enclosing function")
    decline_if(a.rank != b.rank, "the operands have different ranks")
    bias = root.operand(2)
    columns = root.out.shape[-1] if root.out.shape else None
    decline_if(
        bias is not None and bias.shape not in ((), (1,), (columns,), (1, columns), (1, 1)),
        "the bias is not one row of N values",
    )
    scalars = (root.attr("alpha"), root.attr("beta"), root.attr("transA"), root.attr("transB"))
    return (root.op, a.dtype, a.shape, b.shape, scalars, bias is not None)


def _gemm(root: Binding, left: Var, right: Var, biases: Sequence[Var | None]) -> Var | None:
    """alpha * a' @ b' + beta * c for stacked operands; None if a bias cannot become a row."""
    y = (left.mT if root.attr("transA") else left) @ (right.mT if root.attr("transB") else right)
    if root.attr("alpha") != 1.0:
        y = y * float(root.attr("alpha"))
    if any(v is None for v in biases):
        return y
    columns = root.out.shape[-1] if root.out.shape else None
    rows = [row(v, columns, root.out.dtype) for v in biases]
    found = [v for v in rows if v is not None]
    if len(found) < len(rows):
        return None
    bias = op.Unsqueeze(stack(found, 1), [1])
    return y + (bias if root.attr("beta") == 1.0 else bias * float(root.attr("beta")))


@cache
def products_of_equal_shapes(share_left: bool) -> Family:
    """x @ w1, x @ w2, ... = the rows of stack(x, x, ...) @ stack(w1, w2, ...)"""

    @combine(
        P.any_of("MatMul", "Gemm")(a.shared if share_left else a, b, c.maybe),
        by=(lambda a, b, root: (a, _of_equal_shapes(a, b, root)))
        if share_left
        else _of_equal_shapes,
        shrinks=count("MatMul", "Gemm"),
        shared=Shared("a", "their operators, dtypes, shapes, scalars or biases differ"),
    )
    def combine_parallel_dense(
        a: list[Var], b: list[Var], c: list[Var | None], roots: list[Binding]
    ) -> Any:
        rank = a[0].rank or 2  # of both operands
        first, left, right = roots[0], stack(a, rank), stack(b, rank)
        if first.is_op("MatMul"):
            y = op.MatMul(left, right)
        else:
            product = _gemm(first, left, right, c)
            if product is None:
                return decline("a bias has an unknown number of columns")
            y = product
        parts = op.Split(y, [1] * len(roots), axis=0, outputs=len(roots))
        return tuple(op.Squeeze(part, [0]) for part in parts)

    return combine_parallel_dense
