"""Products of sums of matrices, by cost (TVM's ExpandMatmulOfSum, and the way back): low-rank
adapters (LoRA) beside a weight, or merged into it.

s is a number, which adapters scale their product by. As in `laws.adjust_matmul_order`, both
forms are equal up to rounding.
"""

from __future__ import annotations

from typing import Any

from onnx import TensorProto

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.types import is_static
from onnxgrad.ir.var import Var
from onnxgrad.laws.product_costs import CLEARLY, MOVED, Cost, cost_of_products, fixed, rows_of
from onnxgrad.rewrite.pattern import P, capture
from onnxgrad.rewrite.trace import decline, decline_if
from onnxgrad.rewrite.worklist import Rule, rewrite

x, w, p, q, c = capture("x w p q c")
s = capture("s").where(lambda v: v.is_constant and v.shape in ((), (1,)))

_HALF = (TensorProto.FLOAT16, TensorProto.BFLOAT16)


def _check(x: Var) -> None:
    decline_if(x.dtype in _HALF, "half precision: the product of the right operands may overflow")
    decline_if(fixed(x), "the left operand is constant")


def _costs(w: Var, p: Var, q: Var) -> tuple[Cost, Cost]:
    """x @ (w + p @ q) and x @ w + (x @ p) @ q. Raises Decline where the shapes do not tell, or
    something is broadcast.
    """
    if not (is_static(w.shape) and is_static(p.shape) and is_static(q.shape)):
        raise decline("a size of the matrices is unknown")
    decline_if(
        len(w.shape) != 2 or len(p.shape) != 2 or w.shape != (p.shape[0], q.shape[-1]),
        "the matrices are not of one shape",
    )
    (k, r), n = p.shape, w.shape[1]
    of_pq = 0 if fixed(p) and fixed(q) else k * r * n
    once = 0 if fixed(w) and not of_pq else of_pq + MOVED * k * n
    return Cost(once, k * n), Cost(0, k * n + k * r + r * n + MOVED * n)


def _scaled(v: Var, s: Var | None) -> Var:
    return v if s is None else v * s


def expanded(rows: int) -> list[Rule]:
    """x @ (w + p @ q) = x @ w + (x @ p) @ q where that is cheaper; `rows`, unless 0, stands for an
    unknown number of them.
    """

    def build(x: Var, w: Var, p: Var, q: Var, s: Var | None) -> Any:
        _check(x)
        together, apart = _costs(w, p, q)
        decline_if(
            not apart.below(together, rows_of(x, rows)),
            "one product with the sum is not clearly dearer",
        )
        return x @ w + _scaled((x @ p) @ q, s)

    measure = cost_of_products(rows)
    product = P.MatMul(p, q).only

    @rewrite(P.MatMul(x, P.Add(w, product).only), shrinks=measure)
    def product_of_sum(x: Var, w: Var, p: Var, q: Var) -> Any:
        """x @ (w + p @ q) = x @ w + (x @ p) @ q"""
        return build(x, w, p, q, None)

    @rewrite(P.MatMul(x, P.Add(w, P.Mul(product, s).only).only), shrinks=measure)
    def product_of_scaled_sum(x: Var, w: Var, p: Var, q: Var, s: Var) -> Any:
        """x @ (w + s (p @ q)) = x @ w + s ((x @ p) @ q)"""
        return build(x, w, p, q, s)

    return [product_of_sum, product_of_scaled_sum]


def contracted(rows: int) -> list[Rule]:
    """x @ w + (x @ p) @ q = x @ (w + p @ q) where that is cheaper: always for constants."""
    measure = cost_of_products(rows)
    beside, plain = P.MatMul(P.MatMul(x, p).only, q).only, P.MatMul(x, w).only

    def build(x: Var, w: Var, p: Var, q: Var, s: Var | None = None, c: Var | None = None) -> Any:
        _check(x)
        together, apart = _costs(w, p, q)
        # constants become one weight: fewer nodes, and a smaller file
        enough = CLEARLY if together.once else 10
        decline_if(
            not together.below(apart, rows_of(x, rows), enough),
            "two products beside each other are not clearly dearer",
        )
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

    return [
        sum_of_products,
        sum_of_scaled_products,
        sum_of_biased_products,
        sum_of_scaled_biased_products,
    ]
