"""Replaces an Einsum that is a product of matrices or a transpose."""

from __future__ import annotations

from typing import Any

from onnx import TensorProto

from onnxgrad.frozen import frozen
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import FLOAT_DTYPES, same_dim
from onnxgrad.ir.var import Var
from onnxgrad.laws.remove_noops import x_or_identity
from onnxgrad.rewrite.pattern import P, capture
from onnxgrad.rewrite.trace import decline, decline_if
from onnxgrad.rewrite.worklist import count, rewrite

x, y = capture("x y")

# the dtypes for which onnxruntime has kernels of MatMul and Einsum
_DTYPES = FLOAT_DTYPES - {TensorProto.BFLOAT16} | {TensorProto.INT32, TensorProto.INT64}


@frozen
class _Equation:
    """The letters of each operand's axes, and of the result's."""

    operands: tuple[str, ...]
    result: str


def _equation(b: Binding) -> _Equation:
    """Reads the equation. Raises Decline unless each operand has a different letter per axis."""
    given, arrow, result = str(b.attr("equation")).replace(" ", "").partition("->")
    operands = tuple(given.split(","))
    letters = "".join(operands)
    if not arrow:
        result = "".join(sorted(c for c in {*letters} if letters.count(c) == 1))
    decline_if(
        not (letters + result).isalpha() or any(len({*t}) < len(t) for t in (*operands, result)),
        "the equation has an ellipsis, or a letter twice in one term",
    )
    decline_if(
        [len(t) for t in operands] != [None if v is None else v.rank for v in b.inputs],
        "an operand's rank is unknown, or not that of the equation",
    )
    return _Equation(operands, result)


@rewrite(P.Einsum(x), shrinks=count("Einsum"))
def einsum_of_one(x: Var, root: Binding) -> Any:
    """Einsum(x, "ij->ji") = Transpose(x): no axis is summed or taken twice"""
    equation = _equation(root)
    term = equation.operands[0]
    decline_if(sorted(term) != sorted(equation.result), "an axis is summed")
    if term == equation.result:
        return x_or_identity(root, x)
    return op.Transpose(x, perm=[term.index(c) for c in equation.result])


@rewrite(P.Einsum(x, y), shrinks=count("Einsum"))
def einsum_of_two(x: Var, y: Var, root: Binding) -> Any:
    """Einsum(x, y, "bij,bjk->bik") = x @ y, in either order; a constant matrix may be transposed"""
    equation = _equation(root)
    decline_if(x.dtype not in _DTYPES, "not a type that onnxruntime multiplies matrices of")
    left, right = equation.operands
    sizes = dict(zip(left, x.shape or (), strict=False))
    decline_if(
        any(c in sizes and not same_dim(sizes[c], d) for c, d in zip(right, y.shape or ())),
        "an axis of both is not known to be of one size: Einsum broadcasts 1",
    )
    for a, b, first, second in ((x, y, left, right), (y, x, right, left)):
        turned = second[:-2] + second[-1:] + second[-2:-1]
        if _is_product(first, second, equation.result):
            return a @ b
        if b.is_constant and _is_product(first, turned, equation.result):
            return a @ b.mT
    return decline("the equation is not a product of matrices in their order in memory")


def _is_product(left: str, right: str, result: str) -> bool:
    """Whether `left` is (batch, rows, k) and `right` (batch, k, column). A `right` without a batch
    is one matrix for all rows.
    """
    if len(right) < 2 or len(left) < 2 or left[-1] != right[-2]:
        return False
    batch, rows, column = right[:-2], left[:-1], right[-1]
    fits = rows.startswith(batch) and (not batch or len(rows) == len(batch) + 1)
    return fits and column not in left and left[-1] not in result and result == rows + column
