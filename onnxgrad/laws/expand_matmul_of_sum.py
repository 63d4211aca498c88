"""Products of sums of matrices, by cost (TVM's ExpandMatmulOfSum, and the way back): low-rank
adapters (LoRA) beside a weight, or merged into it.

s is the number by which adapters scale their product. As in `laws.adjust_matmul_order`, both forms
are equal up to rounding.
"""

from __future__ import annotations

from typing import Any

from onnx import TensorProto

from onnxgrad.frozen import frozen
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import Shape, is_static, same_shape
from onnxgrad.ir.var import Var
from onnxgrad.laws.adjust_matmul_order import NO_BIAS, times
from onnxgrad.laws.product_costs import CLEARLY, MOVED, Cost, cost_of_products, fixed, rows_of
from onnxgrad.laws.simplify_transpose import is_matrix_transpose, transposed
from onnxgrad.rewrite.pattern import P, capture
from onnxgrad.rewrite.trace import decline, decline_if
from onnxgrad.rewrite.worklist import Rule, rewrite

x, w, p, q, c, t = capture("x w p q c t")
s = capture("s").const.where(lambda v: v.shape in ((), (1,)))

_HALF = (TensorProto.FLOAT16, TensorProto.BFLOAT16)


def _check(x: Var) -> None:
    decline_if(x.dtype in _HALF, "half precision: the product of the right operands may overflow")
    decline_if(fixed(x), "the left operand is constant")


@frozen
class _Choice:
    """The costs of x @ (w + p @ q) and x @ w + (x @ p) @ q, and the rows of x in each batch."""

    together: Cost
    apart: Cost
    rows: int | None


def _costs(
    x: Var, shape: Shape | None, w: Var, p: Var, q: Var, rows: int, turned: int = 0
) -> _Choice:
    """The costs of both forms. `shape`: of w, which is added to p @ q. `turned`: their transposes
    are multiplied. Raises Decline if shapes are unknown or an operand is broadcast.
    """
    if shape is None or p.shape is None or q.shape is None or x.shape is None:
        raise decline("the rank of a matrix is unknown")
    sizes = shape[-2:], p.shape[-2:], q.shape[-2:]
    if not all(is_static(found) for found in sizes):
        raise decline("a size of the matrices is unknown")
    batch = p.shape[:-2]
    decline_if(
        any(len(found) != 2 for found in sizes)
        or shape[-2:] != (p.shape[-2], q.shape[-1])
        or p.shape[-1] != q.shape[-2]
        or not same_shape(q.shape[:-2], batch)
        or (shape[:-2] != () and not same_shape(shape[:-2], batch))
        or (batch != () and not same_shape(x.shape[:-2], batch)),
        "the matrices are not of one shape",
    )
    (k, n), r = (int(d or 0) for d in shape[-2:]), int(p.shape[-1] or 0)
    of_pq = 0 if fixed(p) and fixed(q) else k * r * n
    once = 0 if fixed(w) and not of_pq else of_pq + MOVED * k * n
    together = Cost(once, k * n)
    apart = Cost(0, k * n + k * r + r * n + MOVED * (k if turned else n))
    if not batch:
        return _Choice(together, apart, rows_of(x, rows))
    each = x.shape[-2]
    return _Choice(together, apart, each if isinstance(each, int) else rows or None)


def _scaled(v: Var, s: Var | None) -> Var:
    return v if s is None else v * s


def expanded(rows: int) -> list[Rule]:
    """x @ (w + p @ q) = x @ w + (x @ p) @ q if that is cheaper; `rows`, unless 0, replaces an
    unknown number of rows.
    """

    def parts(
        x: Var, w: Var, p: Var, q: Var, inner: list[Binding], root: Binding, turned: int
    ) -> tuple[Var, Var]:
        """The factors of the low-rank product in their order. Raises Decline."""
        for b in inner:
            decline_if(
                b.out.sole_user() is None or b.block is not root.block,
                f"{b.out.name} is read elsewhere as well, or computed in an outer block",
            )
            decline_if(
                b.op == "Transpose" and not is_matrix_transpose(b.attr("perm")),
                "it is not the transpose of a matrix",
            )
        _check(x)
        found = _costs(x, w.shape, w, p, q, rows, turned)
        decline_if(
            not found.apart.below(found.together, found.rows),
            "one product with the sum is not clearly dearer",
        )
        return (q, p) if turned else (p, q)

    measure = cost_of_products(rows)
    product = P.MatMul(p, q).named("product")
    total = P.Add(w, product | P.Mul(product, s).named("scaling")).named("total")
    matrix = total | P.Transpose(total, perm=t).named("turn")

    @rewrite(P.MatMul(x, matrix), shrinks=measure)
    def product_of_sum(
        x: Var, w: Var, p: Var, q: Var, product: Binding, total: Binding, root: Binding,
        s: Var | None = None, scaling: Binding | None = None, turn: Binding | None = None,
    ) -> Any:  # fmt: skip
        """x @ (w + s (p @ q)) = x @ w + s ((x @ p) @ q), and so for the transpose of the sum"""
        turned = int(turn is not None)
        inner = [b for b in (product, scaling, total, turn) if b is not None]
        first, second = parts(x, w, p, q, inner, root, turned)
        plain = times(x, w, turned, root)
        return plain + _scaled(times(times(x, first, turned, root), second, turned, root), s)

    @rewrite(P.Gemm(x, matrix, c.maybe), shrinks=measure)
    def gemm_of_sum(
        x: Var, w: Var, p: Var, q: Var, c: Var | None, product: Binding, total: Binding,
        root: Binding, s: Var | None = None, scaling: Binding | None = None,
        turn: Binding | None = None,
    ) -> Any:  # fmt: skip
        """Gemm(x, w + s (p @ q), c) = Gemm(x, w, c) + s Gemm(Gemm(x, p), q), transposed or not"""
        decline_if(root.version < NO_BIAS, "before opset 11 a Gemm needs a bias")
        decline_if(root.attr("transA"), "the left operand is transposed")
        turned = int(bool(root.attr("transB"))) ^ int(turn is not None)
        inner = [b for b in (product, scaling, total, turn) if b is not None]
        first, second = parts(x, w, p, q, inner, root, turned)
        alpha, beta = root.attr("alpha"), root.attr("beta")
        plain = op.Gemm(x, w, c, alpha=alpha, beta=beta, transB=turned)
        low = op.Gemm(op.Gemm(x, first, transB=turned), second, alpha=alpha, transB=turned)
        return plain + _scaled(low, s)

    return [product_of_sum, gemm_of_sum]


def contracted(rows: int) -> list[Rule]:
    """x @ w + (x @ p) @ q = x @ (w + p @ q) if that is cheaper, as it always is for constants."""
    measure = cost_of_products(rows)
    beside, plain = P.MatMul(P.MatMul(x, p).only, q).only, P.MatMul(x, w).only

    def check(x: Var, w: Var, p: Var, q: Var, turned: int = 0) -> None:
        """Raises Decline unless one product is cheaper."""
        _check(x)
        found = _costs(x, w.shape[::-1] if turned and w.shape else w.shape, w, p, q, rows)
        # constants become one weight: fewer nodes, and a smaller file
        enough = CLEARLY if found.together.once else 10
        decline_if(
            not found.together.below(found.apart, found.rows, enough),
            "two products beside each other are not clearly dearer",
        )

    def build(x: Var, w: Var, p: Var, q: Var, s: Var | None = None, c: Var | None = None) -> Any:
        check(x, w, p, q)
        y = x @ (w + _scaled(p @ q, s))
        return y if c is None else y + c

    @rewrite(P.Add(plain, beside), shrinks=measure)
    def sum_of_products(x: Var, w: Var, p: Var, q: Var) -> Any:
        """x @ w + (x @ p) @ q = x @ (w + p @ q)"""
        return build(x, w, p, q)

    @rewrite(P.Add(plain, P.Mul(beside, s).only), shrinks=measure)
    def sum_of_scaled_products(x: Var, w: Var, p: Var, q: Var, s: Var) -> Any:
        """x @ w + s ((x @ p) @ q) = x @ (w + s (p @ q))"""
        return build(x, w, p, q, s)

    @rewrite(P.Add(P.Add(plain, c).only, beside), shrinks=measure)
    def sum_of_biased_products(x: Var, w: Var, p: Var, q: Var, c: Var, root: Binding) -> Any:
        """(x @ w + c) + (x @ p) @ q = x @ (w + p @ q) + c"""
        return build(x, w, p, q, c=c)

    @rewrite(P.Add(P.Add(plain, c).only, P.Mul(beside, s).only), shrinks=measure)
    def sum_of_scaled_biased_products(x: Var, w: Var, p: Var, q: Var, c: Var, s: Var) -> Any:
        """(x @ w + c) + s ((x @ p) @ q) = x @ (w + s (p @ q)) + c"""
        return build(x, w, p, q, s, c)

    @rewrite(
        P.Add(P.Gemm(x, w, c.maybe).only.named("plain"), beside | P.Mul(beside, s).only),
        shrinks=measure,
    )
    def sum_of_gemm_and_products(
        x: Var, w: Var, p: Var, q: Var, c: Var | None, plain: Binding, s: Var | None = None
    ) -> Any:
        """Gemm(x, w, c) + s ((x @ p) @ q) = Gemm(x, w + s (p @ q), c), transposed or not"""
        decline_if(
            plain.version < 7 or plain.attr("transA") or plain.attr("alpha") != 1.0,
            "the left operand is transposed, or the product is scaled",
        )
        turned = int(bool(plain.attr("transB")))
        check(x, w, p, q, turned)
        low = transposed(q) @ transposed(p) if turned else p @ q
        return op.Gemm(x, w + _scaled(low, s), c, beta=plain.attr("beta"), transB=turned)

    return [
        sum_of_products,
        sum_of_scaled_products,
        sum_of_biased_products,
        sum_of_scaled_biased_products,
        sum_of_gemm_and_products,
    ]
