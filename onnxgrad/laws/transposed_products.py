"""Transposes in front of and behind MatMul and Gemm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var
from onnxgrad.laws.transposes import TRANSPOSES_ABOVE_PRODUCTS, a, b, c, d, q
from onnxgrad.rewrite.pattern import P
from onnxgrad.rewrite.trace import decline
from onnxgrad.rewrite.worklist import Measure, rewrite


def is_matrix_transpose(perm: Sequence[int] | None) -> bool:
    """The permutation swaps the last two axes and keeps the leading ones."""
    if perm is None or len(perm) < 2:
        return False
    return list(perm) == [*range(len(perm) - 2), len(perm) - 1, len(perm) - 2]


def transposed(v: Var) -> Var:
    """The matrix transpose of `v`; of a matrix transpose, its operand."""
    b = v.definition
    if (
        b is not None
        and b.is_op("Transpose")
        and b.inputs[0] is not None
        and is_matrix_transpose(b.attr("perm"))
    ):
        return b.inputs[0]
    return v.mT


def _gemm_operands(block: BindingBlock) -> int:
    """How many transposes stand right above the operands of Gemms."""
    return sum(_transposes_on(v) for b in block.walk() if b.is_op("Gemm") for v in b.inputs[:2])


def _transposes_on(v: Var | None) -> int:
    height = 0
    while v is not None and v.definition is not None and v.definition.is_op("Transpose"):
        v, height = v.definition.inputs[0], height + 1
    return height


TRANSPOSES_INTO_GEMM = Measure("number of transposed operands of Gemm", _gemm_operands)


def _transpose_of_matmul(a: Var, b: Var, q: Any) -> Any:
    if not is_matrix_transpose(q):
        return None
    if a.rank is None or b.rank is None:
        return decline("an operand's rank is unknown")
    if a.rank < 2 or b.rank < 2:
        return decline("a rank-1 operand is never transposed")
    return transposed(b) @ transposed(a)


@rewrite(P.Transpose(P.MatMul(a, b).only, perm=q), shrinks=TRANSPOSES_ABOVE_PRODUCTS)
def transpose_of_matmul(a: Var, b: Var, q: Any) -> Any:
    """T(a @ b) = T(b) @ T(a)"""
    return _transpose_of_matmul(a, b, q)


def _cheap(v: Var) -> bool:
    b = v.definition
    return v.is_constant or (
        b is not None and b.is_op("Transpose") and is_matrix_transpose(b.attr("perm"))
    )


@rewrite(P.Transpose(P.MatMul(a, b).only, perm=q), shrinks=TRANSPOSES_ABOVE_PRODUCTS)
def transpose_of_matmul_if_free(a: Var, b: Var, q: Any) -> Any:
    """T(a @ b) = T(b) @ T(a), when at least one operand's transpose costs nothing"""
    if is_matrix_transpose(q) and not (_cheap(a) or _cheap(b)):
        return decline("both operands would need a transpose of their own")
    return _transpose_of_matmul(a, b, q)


@rewrite(P.Gemm(P.Transpose(a, perm=(1, 0)), b, c.maybe), shrinks=TRANSPOSES_INTO_GEMM)
def gemm_of_transpose_left(a: Var, b: Var, c: Var | None, root: Binding) -> Any:
    """Gemm(T(a), b, c) = Gemm(a, b, c, transA flipped)"""
    return _gemm(root, a, b, c, flip_a=True)


@rewrite(P.Gemm(a, P.Transpose(b, perm=(1, 0)), c.maybe), shrinks=TRANSPOSES_INTO_GEMM)
def gemm_of_transpose_right(a: Var, b: Var, c: Var | None, root: Binding) -> Any:
    """Gemm(a, T(b), c) = Gemm(a, b, c, transB flipped)"""
    return _gemm(root, a, b, c, flip_b=True)


def _gemm(
    root: Binding, a: Var, b: Var, c: Var | None, *, flip_a: bool = False, flip_b: bool = False
) -> Any:
    if root.version < 7:
        return decline("before opset 7 Gemm broadcasts by an attribute")
    return op.Gemm(
        a,
        b,
        c,
        alpha=root.attr("alpha"),
        beta=root.attr("beta"),
        transA=root.attr("transA") ^ flip_a,
        transB=root.attr("transB") ^ flip_b,
    )


@rewrite(
    P.Transpose(P.Gemm(a, b, c.maybe).only.named("product"), perm=(1, 0)),
    shrinks=TRANSPOSES_ABOVE_PRODUCTS,
)
def transpose_of_gemm(a: Var, b: Var, c: Var | None, product: Binding) -> Any:
    """T(Gemm(a, b, c)) = Gemm(b, a, T(c)), each operand's transposition flipped; a bias (N,)
    becomes (N, 1)
    """
    if c is None:
        return _swapped(product, a, b, None)
    if c.shape is None or any(d is None for d in c.shape):
        return decline("the bias's shape is unknown")
    if len(c.shape) == 2:
        return _swapped(product, a, b, c if c.shape == (1, 1) else transposed(c))
    return _swapped(product, a, b, c if c.shape in ((), (1,)) else op.Unsqueeze(c, [1]))


def _swapped(product: Binding, a: Var, b: Var, c: Var | None) -> Any:
    if product.version < 7:
        return decline("before opset 7 Gemm broadcasts by an attribute")
    return op.Gemm(
        b,
        a,
        c,
        alpha=product.attr("alpha"),
        beta=product.attr("beta"),
        transA=1 - product.attr("transB"),
        transB=1 - product.attr("transA"),
    )


GEMM_RULES = [gemm_of_transpose_left, gemm_of_transpose_right, transpose_of_gemm]


def _last_axis_of_products(block: BindingBlock) -> int:
    transposes = (b for b in block.walk() if b.op == "Transpose" and _moves_last(b.attr("perm")))
    made = (None if b.inputs[0] is None else b.inputs[0].definition for b in transposes)
    return sum(m is not None and m.op == "MatMul" for m in made)


LAST_AXIS_OF_PRODUCTS = Measure(
    "transposes of products that move the last axis", _last_axis_of_products
)


def _moves_last(perm: Any) -> bool:
    return perm is not None and len(perm) >= 3 and perm[-1] != len(perm) - 1


@rewrite(
    P.Transpose(P.MatMul(P.Transpose(a, perm=c), b).only, perm=d), shrinks=LAST_AXIS_OF_PRODUCTS
)
def transpose_of_product_of_transpose(a: Var, b: Var, c: Any, d: Any) -> Any:
    """Transpose(T(a) @ b, p) = Transpose(T(b) @ a, p after T), where that leaves the last axis
    in place
    """
    if not is_matrix_transpose(c) or not _moves_last(d) or a.rank != b.rank or b.rank is None:
        return None
    if b.definition is not None and b.definition.is_op("MatMul"):
        return None  # its transpose would be one more of the same kind
    swapped = {b.rank - 1: b.rank - 2, b.rank - 2: b.rank - 1}
    perm = [swapped.get(i, i) for i in d]
    return None if _moves_last(perm) else op.Transpose(transposed(b) @ a, perm=perm)
