"""Combines parallel MatMuls into one."""

from __future__ import annotations

from collections.abc import Hashable
from functools import cache
from typing import Any

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var
from onnxgrad.laws.combine_parallel.merging import (
    INT8,
    concat,
    is_int8,
    is_narrow,
    known_size,
    reason_not_to_merge,
    reason_not_to_split,
    reason_of_weights,
    rows,
    split,
)
from onnxgrad.rewrite.combine import Family, Shared, combine
from onnxgrad.rewrite.pattern import P, capture
from onnxgrad.rewrite.trace import Decline, decline, decline_if
from onnxgrad.rewrite.worklist import count

x, w = capture("x w")


def _shares_left(x: Var, w: Var, root: Binding) -> Hashable | Decline:
    """The key of a MatMul: branches with equal keys may be combined. They share the left operand
    and the dtype, and their right operands differ in the last size only. May decline.
    """
    decline_if(is_int8(root), INT8)
    if w.shape is None or not w.dtype:
        return decline("the right operand's rank is unknown")
    decline_if(len(w.shape) < 2, "the right operand has rank 1")
    if any(d is None for d in w.shape[:-1]):
        return decline("a batch or inner size of the right operand is unknown")
    return (x, w.dtype, w.shape[:-1])


def _shares_right(x: Var, w: Var, root: Binding) -> Hashable | Decline:
    """The key of a MatMul: branches with equal keys may be combined. They share the right operand
    and the dtype, and their left operands differ in the last size but one only. May decline.
    """
    decline_if(is_int8(root), INT8)
    if x.shape is None or not x.dtype:
        return decline("the left operand's rank is unknown")
    if len(x.shape) < 2 or w.rank is None or w.rank < 2:
        return decline("an operand has rank 1 or unknown rank")
    if any(d is None for d in (*x.shape[:-2], x.shape[-1])):
        return decline("a batch or inner size of the left operand is unknown")
    return (w, x.dtype, x.shape[:-2], x.shape[-1])


def _has_bias(product: Binding) -> bool:
    user = product.out.sole_user()
    return user is not None and user.is_op("Add") and any(v.is_constant for v in user.reads())


@cache
def products_of_one_left(merge: str, provider: str) -> Family:
    """x @ w1, x @ w2, ... = split(x @ concat(w1, w2, ...))"""

    @combine(
        P.MatMul(x.shared, w),
        by=_shares_left,
        shrinks=count("MatMul"),
        shared=Shared("x", "the right operands' dtypes, batch or inner sizes differ"),
    )
    def combine_parallel_matmul(x: list[Var], w: list[Var], roots: list[Binding]) -> Any:
        k, sizes = known_size(w[0], -2), [known_size(v, -1) for v in w]
        narrow = is_narrow(sizes, k, biased=all(map(_has_bias, roots)))
        reason = reason_not_to_merge(merge, provider, len(x), rows(x[0]), k, narrow=narrow)
        if reason is None and merge == "auto":
            reason = reason_of_weights(w, provider)
        reason = reason or reason_not_to_split(x[0].rank, sizes, roots[0].version)
        if reason is not None:
            return decline(reason)
        return split(x[0] @ concat(w, axis=-1), sizes, w, source_axis=-1, axis=-1)

    return combine_parallel_matmul


@cache
def products_of_one_right() -> Family:
    """x1 @ w, x2 @ w, ... = split(concat(x1, x2, ...) @ w) along the rows"""

    @combine(
        P.MatMul(x, w.shared),
        by=_shares_right,
        shrinks=count("MatMul"),
        shared=Shared("w", "the left operands' dtypes, batch or inner sizes differ"),
    )
    def combine_parallel_matmul_right(x: list[Var], w: list[Var], roots: list[Binding]) -> Any:
        sizes = [known_size(v, -2) for v in x]
        reason = reason_not_to_split(w[0].rank, sizes, roots[0].version)
        if reason is not None:
            return decline(reason)
        product = op.MatMul(concat(x, axis=-2), w[0])
        return split(product, sizes, x, source_axis=-2, axis=-2)

    return combine_parallel_matmul_right
