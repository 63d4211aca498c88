"""Moves a Gather before or after a product, by cost (TVM's ReorderTakeAfterMatmul, and its
inverse).

Both forms multiply the same rows by the same columns, so no sum changes its order. W is a matrix
(k, n); Gather takes `c` of the `s` rows of x, or of the columns of W.
"""

from __future__ import annotations

from typing import Any

from onnx import TensorProto

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import element_count, is_static
from onnxgrad.ir.var import Var
from onnxgrad.laws.product_costs import MOVED, PICKED, Cost, cost_of_products, fixed, rows_of
from onnxgrad.rewrite.pattern import P, capture
from onnxgrad.rewrite.trace import decline, decline_if
from onnxgrad.rewrite.worklist import Rule, rewrite

x, w, c, i, p, axis = capture("x w c i p axis")


def _matrix(w: Var) -> tuple[int, int]:
    """The sizes (k, n) of w. Raises Decline unless it is a matrix of known sizes."""
    shape = w.shape
    if shape is None or len(shape) != 2:
        raise decline("the right operand is not a matrix")
    k, n = shape
    if not (isinstance(k, int) and isinstance(n, int)):
        raise decline("a size of the right operand is unknown")
    return k, n


def _row_axis(x: Var, axis: int, product: Var) -> int:
    """The axis of rows that is gathered, as a nonnegative number. Raises Decline if x has no such
    axis.
    """
    if x.rank is None or product.rank is None:
        raise decline("the left operand's rank is unknown")
    at = axis % product.rank
    decline_if(x.rank < 2 or at == product.rank - 1, "columns are gathered, not rows")
    return at


def _check_rows(early: bool, k: int, n: int, taken: int | None, rows: Any) -> None:
    """Raises Decline unless gathering `taken` of the `rows` early (or late) is clearly cheaper."""
    known = rows if isinstance(rows, int) else None
    if taken is None:
        raise decline("how many rows are gathered is unknown")
    # per row there is; what is taken of them
    first, last = Cost(taken * k * (n + MOVED), 0), Cost(taken * n * MOVED, k * n)
    new, old = (first, last) if early else (last, first)
    if not new.below(old, known):
        many = "any number of" if known is None else f"{known:,}"
        raise decline(f"taking {taken} of {many} rows is not clearly cheaper in the other order")


def _size(x: Var, axis: int, rows: int) -> int | None:
    size = None if x.shape is None else x.shape[axis]
    return size if isinstance(size, int) else rows or None


def _check_late(x: Var, w: Var, i: Var, at: int) -> None:
    """Raises Decline unless it pays to multiply a whole table by a weight."""
    k, n = _matrix(w)
    if fixed(x) and fixed(w):
        decline_if(fixed(i), "the product is constant")
        count = element_count(x.shape)
        decline_if(
            x.use_count > 1
            or w.use_count > 1
            or count is None
            or count // max(k, 1) * n > count + k * n,
            "the file would grow by the product of the table and the weight",
        )
        return
    size = _size(x, at, 0)
    decline_if(size is None, "how many rows there are is unknown")
    _check_rows(False, k, n, element_count(i.shape), size)


def gathers_of_rows(rows: int) -> list[Rule]:
    """Gather(x @ w, i) along rows = Gather(x, i) @ w, whichever is cheaper."""
    measure = cost_of_products(rows)

    @rewrite(P.Gather(P.MatMul(x, w).only.named("product"), i, axis=axis), shrinks=measure)
    def gather_of_product_rows(x: Var, w: Var, i: Var, axis: int, product: Binding) -> Any:
        """Gather(x @ w, i) = Gather(x, i) @ w, along an axis of rows"""
        at = _row_axis(x, axis, product.out)
        decline_if(fixed(product.out), "the product is constant")
        _check_rows(True, *_matrix(w), element_count(i.shape), _size(x, at, rows))
        return op.Gather(x, i, axis=at) @ w

    @rewrite(P.Gather(P.Gemm(x, w, c.maybe).only.named("product"), i, axis=0), shrinks=measure)
    def gather_of_gemm_rows(x: Var, w: Var, c: Var | None, i: Var, product: Binding) -> Any:
        """Gather(Gemm(x, w, c), i) = Gemm(Gather(x, i), w, c) along the rows, c one row for all"""
        k, n = _matrix(w)[:: -1 if product.attr("transB") else 1]
        decline_if(
            product.attr("transA") or product.version < 7 or i.rank != 1 or fixed(product.out),
            "the left operand is transposed, or the index is not a vector",
        )
        decline_if(
            c is not None and c.shape not in ((), (1,), (n,), (1, 1), (1, n)),
            "the bias is not one row",
        )
        _check_rows(True, k, n, element_count(i.shape), _size(x, 0, rows))
        return op.Gemm(op.Gather(x, i, axis=0), w, c, **product.attrs)

    @rewrite(P.MatMul(P.Gather(x, i, axis=axis).only, w), shrinks=measure)
    def product_of_gathered_rows(x: Var, w: Var, i: Var, axis: int) -> Any:
        """Gather(x, i) @ w = Gather(x @ w, i), along an axis of rows: a table and a weight become
        one table
        """
        at = _row_axis(x, axis, x)
        _check_late(x, w, i, at)
        return op.Gather(x @ w, i, axis=at)

    return [gather_of_product_rows, gather_of_gemm_rows, product_of_gathered_rows]


def _check_columns(early: bool, x: Var, w: Var, i: Var, rows: int) -> None:
    """Raises Decline unless taking columns of the weight (or, late, of the product) is clearly
    cheaper.
    """
    k, n = _matrix(w)
    taken = element_count(i.shape)
    if taken is None or i.rank not in (0, 1) or x.rank is None:
        raise decline("the index is neither a scalar nor a vector of known size")
    decline_if(fixed(x), "the left operand is constant")
    free = fixed(w) and fixed(i)
    decline_if(
        free and w.is_constant and w.use_count > 1,
        "the weight has another reader, so the file would hold columns twice",
    )
    first = Cost(0 if free else PICKED * k * taken, k * taken)
    last = Cost(0, k * n + PICKED * taken)
    new, old = (first, last) if early else (last, first)
    decline_if(
        not new.below(old, rows_of(x, rows)),
        f"taking {taken} of {n} columns is not clearly cheaper in the other order",
    )


def gathers_of_columns(rows: int) -> list[Rule]:
    """Gather(x @ w, i) along columns = x @ Gather(w, i), whichever is cheaper."""
    measure = cost_of_products(rows)

    @rewrite(P.Gather(P.MatMul(x, w).only.named("product"), i, axis=axis), shrinks=measure)
    def gather_of_product_columns(x: Var, w: Var, i: Var, axis: int, product: Binding) -> Any:
        """Gather(x @ w, i) = x @ Gather(w, i), along the columns"""
        if product.out.rank is None or axis % product.out.rank != product.out.rank - 1:
            return None
        _check_columns(True, x, w, i, rows)
        return x @ op.Gather(w, i, axis=1)

    @rewrite(P.MatMul(x, P.Gather(w, i, axis=axis).only), shrinks=measure)
    def product_of_gathered_columns(x: Var, w: Var, i: Var, axis: int) -> Any:
        """x @ Gather(w, i) = Gather(x @ w, i), along the columns"""
        if w.rank != 2 or axis % 2 != 1:
            return None
        _check_columns(False, x, w, i, rows)
        return op.Gather(x @ w, i, axis=(x.rank or 1) - 1)

    return [gather_of_product_columns, product_of_gathered_columns]


# from this batch size on, one product with all matrices was never slower than Gather and a product
# each; CPU time with 4 matrices of (256, 256): 1.25 for one, 0.27 for 8, 0.19 for 32 (x of one row
# each)
_BATCHES = 4


_GATHERED = P.Gather(w, i, axis=0).only


@rewrite(P.MatMul(x, _GATHERED | P.Transpose(_GATHERED, perm=p).only))
def product_of_gathered_matrices(x: Var, w: Var, i: Var, root: Binding, p: Any = None) -> Any:
    """x[b] @ w[i[b]] = (x[b] @ [w[0], w[1], ...]) at i[b]: one product with all matrices, of which
    each batch takes its own; w[i[b]] transposed or not
    """
    if w.rank != 3 or not is_static(x.shape) or not is_static(w.shape) or i.shape != x.shape[:1]:
        return decline("not one matrix for each batch, of known sizes")
    decline_if(root.version < 12, "a GatherND for each batch needs opset 12")
    decline_if(not w.is_constant, "the table is not a constant: every run would transpose it")
    decline_if(p is not None and tuple(p) != (0, 2, 1), "the slices are not transposed matrices")
    decline_if(
        len(x.shape) != 3 or w.use_count > 1,
        "the table has another reader, or the batch has more than one axis",
    )
    (batch, m, _), (e, k, n) = x.shape, w.shape
    if p is not None:
        k, n = n, k
    gathered, together = (
        Cost(0, k * n * (m + MOVED)),
        Cost(0, m * (e * (k + 2 * MOVED) + MOVED) * n),
    )
    decline_if(
        batch < _BATCHES or not together.below(gathered, batch),
        f"one product with all {e} matrices is not clearly cheaper",
    )
    order = [1, 0, 2] if p is None else [2, 0, 1]
    columns = op.Reshape(op.Transpose(w, perm=order), [k, e * n])
    each = op.Transpose(op.Reshape(x @ columns, [batch, m, e, n]), perm=[0, 2, 1, 3])
    whole = i if i.dtype == TensorProto.INT64 else op.Cast(i, to=TensorProto.INT64)
    return op.GatherND(each, op.Unsqueeze(whole, [1]), batch_dims=1)
