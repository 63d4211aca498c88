"""The order of a chain of products, by cost (TVM's AdjustMatmulOrder).

For real numbers both orders are equal. In floating point they round differently, and a @ b may
overflow in half precision although x @ a does not. So no preset has these laws.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnx import TensorProto

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import Shape
from onnxgrad.ir.var import Var
from onnxgrad.laws.flatten_products import GEMM_DTYPES
from onnxgrad.laws.product_costs import chain, cost_of_products, fixed
from onnxgrad.laws.simplify_transpose import is_matrix_transpose, transposed
from onnxgrad.rewrite.pattern import P, capture
from onnxgrad.rewrite.trace import decline, decline_if
from onnxgrad.rewrite.worklist import Rule, rewrite

x, a, b, c, t = capture("x a b c t")

# an operand, and whether its transpose is multiplied
_Turned = tuple[Var, int]

_HALF = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
# the first opset whose Gemm needs no bias
NO_BIAS = 11


def _check(to_left: bool, values: Sequence[Var], shapes: Sequence[Shape | None], rows: int) -> None:
    """Raises Decline unless the other order is clearly cheaper."""
    decline_if(
        values[0].dtype in _HALF, "half precision: the product of the right operands may overflow"
    )
    free = all(map(fixed, values[1:]))
    decline_if(free and fixed(values[0]), "all operands are constant, and so is the product")
    x, a, b = shapes
    costs = chain(x, a, b, free=free, rows=rows)
    new, old = (costs.left, costs.right) if to_left else (costs.right, costs.left)
    if not new.below(old, costs.rows):
        many = "any number of" if costs.rows is None else f"{costs.rows:,}"
        raise decline(f"the other order is not clearly cheaper for {many} rows")


def _turned(v: Var, turn: int) -> Shape | None:
    """The shape of a Gemm's operand as it is multiplied."""
    return None if v.shape is None else v.shape[::-1] if turn else v.shape


def times(x: Var, m: Var, turned: int, root: Binding) -> Var:
    """x @ m or x @ T(m), for two matrices as a Gemm, which needs no Transpose."""
    if not turned:
        return x @ m
    plain = x.rank == m.rank == 2 and x.dtype in GEMM_DTYPES
    if plain and root.version >= (13 if root.op == "MatMul" else NO_BIAS):
        return op.Gemm(x, m, transB=1)
    return x @ transposed(m)


def order_of_products(rows: int) -> list[Rule]:
    """(x @ a) @ b and x @ (a @ b), whichever is cheaper; `rows`, unless 0, stands for an unknown
    number of rows.
    """
    measure = cost_of_products(rows)

    @rewrite(P.MatMul(P.MatMul(x, a).only, b), shrinks=measure)
    def product_of_product_left(x: Var, a: Var, b: Var) -> Any:
        """(x @ a) @ b = x @ (a @ b)"""
        _check(False, [x, a, b], [x.shape, a.shape, b.shape], rows)
        return x @ (a @ b)

    @rewrite(P.MatMul(x, P.MatMul(a, b).only), shrinks=measure)
    def product_of_product_right(x: Var, a: Var, b: Var) -> Any:
        """x @ (a @ b) = (x @ a) @ b"""
        _check(True, [x, a, b], [x.shape, a.shape, b.shape], rows)
        return (x @ a) @ b

    @rewrite(P.Gemm(P.Gemm(x, a).only.named("inner"), b, c.maybe), shrinks=measure)
    def gemm_of_gemm_left(
        x: Var, a: Var, b: Var, c: Var | None, inner: Binding, root: Binding
    ) -> Any:
        """Gemm(Gemm(x, a), b, c) = Gemm(x, Gemm(a, b), c), alphas multiplied, transA and transB
        with their operands
        """
        decline_if(
            root.attr("transA") or root.version < 7,
            "the inner product is transposed, or broadcast by an attribute",
        )
        t = inner.attr("transA"), inner.attr("transB"), root.attr("transB")
        _check(False, [x, a, b], [_turned(v, i) for v, i in zip((x, a, b), t)], rows)
        right = op.Gemm(a, b, transA=t[1], transB=t[2])
        return op.Gemm(x, right, c, **_scalars(root, inner), transA=t[0])

    @rewrite(P.Gemm(x, P.Gemm(a, b).only.named("inner"), c.maybe), shrinks=measure)
    def gemm_of_gemm_right(
        x: Var, a: Var, b: Var, c: Var | None, inner: Binding, root: Binding
    ) -> Any:
        """Gemm(x, Gemm(a, b), c) = Gemm(Gemm(x, a), b, c), alphas multiplied, transA and transB
        with their operands
        """
        turns = inner.attr("transA"), inner.attr("transB")
        return gemm_right(root, x, (a, turns[0]), (b, turns[1]), c, inner.attr("alpha"))

    @rewrite(P.Gemm(x, P.MatMul(a, b).only, c.maybe), shrinks=measure)
    def gemm_of_product_right(x: Var, a: Var, b: Var, c: Var | None, root: Binding) -> Any:
        """Gemm(x, a @ b, c) = Gemm(Gemm(x, a), b, c), transB with its operands"""
        decline_if(root.version < NO_BIAS, "before opset 11 a Gemm needs a bias")
        decline_if(a.rank != 2 or b.rank != 2, "an operand of the inner product is not a matrix")
        return gemm_right(root, x, (a, 0), (b, 0), c, 1.0)

    def gemm_right(
        root: Binding, x: Var, a: _Turned, b: _Turned, c: Var | None, alpha: float
    ) -> Any:
        decline_if(root.version < 7, "before opset 7 Gemm broadcasts by an attribute")
        if root.attr("transB"):
            a, b = (b[0], 1 - b[1]), (a[0], 1 - a[1])
        operands = (x, root.attr("transA")), a, b
        _check(True, [v for v, _ in operands], [_turned(*operand) for operand in operands], rows)
        left = op.Gemm(x, a[0], transA=root.attr("transA"), transB=a[1])
        both = alpha * root.attr("alpha")
        return op.Gemm(left, b[0], c, alpha=both, beta=root.attr("beta"), transB=b[1])

    @rewrite(P.MatMul(x, P.Transpose(P.MatMul(a, b).only, perm=t).only), shrinks=measure)
    def product_of_transposed_product(x: Var, a: Var, b: Var, t: Any, root: Binding) -> Any:
        """x @ T(a @ b) = (x @ T(b)) @ T(a)"""
        decline_if(
            not is_matrix_transpose(t) or a.rank != len(t) or b.rank != len(t),
            "it is not the transpose of matrices of equal rank",
        )
        turned = [(*(v.shape or ())[:-2], *(v.shape or ())[:-3:-1]) for v in (b, a)]
        _check(True, [x, b, a], [x.shape, *turned], rows)
        return times(times(x, b, 1, root), a, 1, root)

    return [
        product_of_product_left,
        product_of_product_right,
        gemm_of_gemm_left,
        gemm_of_gemm_right,
        gemm_of_product_right,
        product_of_transposed_product,
    ]


def _scalars(root: Binding, inner: Binding) -> dict[str, Any]:
    return {"alpha": root.attr("alpha") * inner.attr("alpha"), "beta": root.attr("beta")}
