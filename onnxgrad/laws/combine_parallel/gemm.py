"""Combines parallel Gemms into one. Constant weights may differ in how the products read them: as
MatMul or Gemm, transposed, scaled by a power of two.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import cache
from math import frexp
from typing import Any

import numpy as np

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission.emit import constant
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import Dim, numpy_dtype
from onnxgrad.ir.var import Var
from onnxgrad.laws.combine_parallel.merging import (
    INT8,
    concat,
    is_int8,
    known_size,
    reason_not_to_merge,
    reason_not_to_split,
    reason_of_weights,
    split,
)
from onnxgrad.laws.flatten_products import GEMM_DTYPES
from onnxgrad.rewrite.combine import Family, Shared, combine
from onnxgrad.rewrite.pattern import P, capture
from onnxgrad.rewrite.trace import Decline, decline, decline_if
from onnxgrad.rewrite.worklist import count

x, w, c = capture("x w c")


def _product(root: Binding) -> Binding:
    """The MatMul of a sum, otherwise `root`."""
    operands = (v.definition for v in root.inputs if v is not None) if root.is_op("Add") else ()
    return next((b for b in operands if b is not None and b.is_op("MatMul")), root)


def _reads_transposed(product: Binding) -> bool:
    return product.is_op("Gemm") and bool(product.attr("transB"))


def _columns(w: Var, product: Binding) -> Dim:
    return None if w.shape is None else w.shape[0 if _reads_transposed(product) else 1]


def _shares_left(x: Var, w: Var, c: Var | None, root: Binding) -> Hashable | Decline | None:
    """The key of a Gemm: branches with equal keys may be combined. They share the left operand,
    dtype, scalars, transpositions and inner size, and their biases are rows. May decline.

    Scalars, transB and the operator may differ if all products of the left operand can be
    rewritten to one form. A MatMul belongs to a group only beside a Gemm.
    """
    product = _product(root)
    alike = _alike(x, product)
    if product.is_op("MatMul") and (not alike or (root is product and _biased(root))):
        return None  # the sum is the branch
    decline_if(is_int8(product), INT8)
    if w.shape is None or len(w.shape) != 2 or not w.dtype:
        return decline("the right operand's shape is unknown")
    k = w.shape[1 if _reads_transposed(product) else 0]
    if k is None:
        return decline("the inner size is unknown")
    if c is not None and not _is_row(c, _columns(w, product)):
        if root.is_op("Add"):
            return None
        return decline("the bias is not one row of N values")
    scalars = () if alike else _scalars(product)
    return (x, w.dtype, k, product.is_op("Gemm") and product.attr("transA"), scalars)


def _scalars(product: Binding) -> tuple[float, float, bool]:
    """alpha, beta and transB."""
    if product.is_op("MatMul"):
        return (1.0, 1.0, False)
    return (product.attr("alpha"), product.attr("beta"), bool(product.attr("transB")))


def _alike(x: Var, product: Binding) -> bool:
    """Whether all products of `x` in the block, a Gemm among them, are Gemm(x, w', c') with alpha
    = beta = 1 for constants w' and c' that no bit is lost in.
    """
    beside = [
        b
        for b in x.users
        if b.block is product.block and b.inputs[0] is x and (b.is_op("Gemm") or b.is_op("MatMul"))
    ]
    return x.rank == 2 and any(b.is_op("Gemm") for b in beside) and all(map(_is_constant, beside))


def _is_constant(product: Binding) -> bool:
    weight, bias = product.operand(1), product.operand(2)
    return (
        not product.has_refs
        and weight is not None
        and weight.is_constant
        and weight.rank == 2
        and weight.dtype in GEMM_DTYPES
        and (bias is None or bias.is_constant)
        and not (product.is_op("Gemm") and product.attr("transA"))
        and all(abs(frexp(scalar)[0]) == 0.5 for scalar in _scalars(product)[:2])
    )


def _biased(product: Binding) -> bool:
    """Whether a constant is added to the result, and nothing else reads it."""
    user = product.out.sole_user()
    return (
        user is not None
        and user.is_op("Add")
        and user.block is product.block
        and any(v.is_constant and _is_row(v, _columns_of(product)) for v in user.reads())
    )


def _columns_of(product: Binding) -> Dim:
    weight = product.operand(1)
    return None if weight is None else _columns(weight, product)


def _scaled(v: Var, factor: float) -> Var:
    """A constant times a power of two. Raises Decline if an element changes by more than that."""
    array = v.const
    if array is None or factor == 1.0:
        return v
    number = np.asarray(factor, array.dtype)
    with np.errstate(all="ignore"):
        scaled = np.multiply(array, number)
        back = np.divide(scaled, number)
    decline_if(
        not np.array_equal(back, array, equal_nan=True),
        "a weight or bias times alpha or beta leaves the range of its dtype",
    )
    return constant(scaled, name=f"{v.name}_scaled")


def _plain(w: Var, product: Binding) -> Var:
    """The constant weight (K, N) with which a product has alpha = 1. Raises Decline."""
    alpha, _, transposed = _scalars(product)
    scaled = _scaled(w, alpha)
    array = scaled.const
    return constant(array.T, name=f"{w.name}_t") if transposed and array is not None else scaled


def _is_row(bias: Var, n: Dim) -> bool:
    """Whether a bias can be expanded to (N,): it has one value, or N in the last axis."""
    shape = bias.shape
    if shape is None or len(shape) > 2 or (len(shape) == 2 and shape[0] != 1):
        return False
    return n is not None and (
        not shape or shape[-1] == n or (shape[-1] == 1 and isinstance(n, int))
    )


def row(bias: Var | None, n: Dim, dtype: int) -> Var | None:
    """The bias as (N,), or a vector of -0.0 if there is none. None if that requires an unknown
    N.
    """
    if bias is None:
        # x + (-0.0) is x for every x, -0.0 included
        return (
            constant(np.full(n, -0.0, numpy_dtype(dtype)), name="no_bias")
            if isinstance(n, int)
            else None
        )
    array = bias.const
    if array is not None and isinstance(n, int):
        return constant(np.broadcast_to(array.reshape(-1), (n,)), name=f"{bias.name}_row")
    if bias.shape == (n,):
        return bias
    flat = op.Reshape(bias, [-1])
    if bias.shape is not None and bias.shape[-1:] == (n,):
        return flat
    return op.Expand(flat, [n]) if isinstance(n, int) else None


@cache
def gemms_of_one_left(merge: str, provider: str) -> Family:
    """Gemm(x, w1, c1), Gemm(x, w2, c2), ... = split(Gemm(x, concat(w1, w2, ...), concat(c1, c2,
    ...)))
    """

    @combine(
        P.any_of("Gemm", "MatMul")(x.shared, w, c.maybe)
        | P.Add(P.MatMul(x.shared, w).only, c.const),
        by=_shares_left,
        shrinks=count("Gemm", "MatMul"),
        shared=Shared(
            "x",
            "their dtypes or inner sizes differ, or scalars or transpositions of weights that are "
            "not constant",
        ),
    )
    def combine_parallel_gemm(
        x: list[Var], w: list[Var], c: list[Var | None], roots: list[Binding]
    ) -> Any:
        products, shared = [_product(root) for root in roots], x[0]
        if all(b.is_op("MatMul") for b in products):
            return None  # the Gemm beside them belongs to no group
        alpha, beta, trans_b = _scalars(products[0])
        trans_a = bool(products[0].is_op("Gemm") and products[0].attr("transA"))
        m = known_size(shared, 1 if trans_a else 0)
        k = known_size(w[0], 1 if trans_b else 0)
        reason = reason_not_to_merge(
            merge, provider, len(roots), m if isinstance(m, int) else None, k
        )
        if reason is None and merge == "auto":
            reason = reason_of_weights(w, provider)
        sizes = [_columns(v, product) for v, product in zip(w, products, strict=True)]
        reason = reason or reason_not_to_split(2, sizes, roots[0].version)
        if reason is not None:
            return decline(reason)
        if any(_scalars(product) != (alpha, beta, trans_b) for product in products):
            betas = [_scalars(product)[1] for product in products]
            c = [v and _scaled(v, factor) for v, factor in zip(c, betas, strict=True)]
            w = [_plain(v, product) for v, product in zip(w, products, strict=True)]
            alpha, beta, trans_b = 1.0, 1.0, False
        merged = None
        if any(b is not None for b in c):
            rows = [row(b, n, w[0].dtype) for b, n in zip(c, sizes, strict=True)]
            decline_if(
                any(r is None for r in rows),
                "a branch without bias has an unknown number of columns",
            )
            merged = concat([r for r in rows if r is not None], axis=0)
        axis = 0 if trans_b else 1
        product = op.Gemm(
            shared,
            concat(w, axis=axis),
            merged,
            alpha=alpha,
            beta=beta,
            transA=int(trans_a),
            transB=int(trans_b),
        )
        return split(product, sizes, w, source_axis=axis, axis=1)

    return combine_parallel_gemm
