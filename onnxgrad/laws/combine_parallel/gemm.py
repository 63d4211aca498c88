"""Combines parallel Gemms into one."""

from __future__ import annotations

from collections.abc import Hashable
from functools import cache
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
from onnxgrad.rewrite.combine import Family, Shared, combine
from onnxgrad.rewrite.pattern import P, capture
from onnxgrad.rewrite.trace import Decline, decline, decline_if
from onnxgrad.rewrite.worklist import count

x, w, c = capture("x w c")


def _columns(w: Var, root: Binding) -> Dim:
    return None if w.shape is None else w.shape[0 if root.attr("transB") else 1]


def _shares_left(x: Var, w: Var, root: Binding) -> Hashable | Decline:
    """The key of a Gemm: branches with equal keys may be combined. They share the left operand,
    dtype, scalars, transpositions and inner size, and their biases are rows. May decline.
    """
    decline_if(is_int8(root), INT8)
    if w.shape is None or len(w.shape) != 2 or not w.dtype:
        return decline("the right operand's shape is unknown")
    k = w.shape[1 if root.attr("transB") else 0]
    if k is None:
        return decline("the inner size is unknown")
    bias = root.operand(2)
    if bias is not None and not _is_row(bias, _columns(w, root)):
        return decline("the bias is not one row of N values")
    scalars = (root.attr("alpha"), root.attr("beta"), root.attr("transA"), root.attr("transB"))
    return (x, w.dtype, k, scalars)


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
        P.Gemm(x.shared, w, c.maybe),
        by=_shares_left,
        shrinks=count("Gemm"),
        shared=Shared("x", "their dtypes, inner sizes, scalars or transpositions differ"),
    )
    def combine_parallel_gemm(
        x: list[Var], w: list[Var], c: list[Var | None], roots: list[Binding]
    ) -> Any:
        first, shared = roots[0], x[0]
        trans_a, trans_b = first.attr("transA"), first.attr("transB")
        m = known_size(shared, 1 if trans_a else 0)
        k = known_size(w[0], 1 if trans_b else 0)
        reason = reason_not_to_merge(
            merge, provider, len(roots), m if isinstance(m, int) else None, k
        )
        if reason is None and merge == "auto":
            reason = reason_of_weights(w, provider)
        sizes = [_columns(v, root) for v, root in zip(w, roots, strict=True)]
        reason = reason or reason_not_to_split(2, sizes, first.version)
        if reason is not None:
            return decline(reason)
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
            alpha=first.attr("alpha"),
            beta=first.attr("beta"),
            transA=trans_a,
            transB=trans_b,
        )
        return split(product, sizes, w, source_axis=axis, axis=1)

    return combine_parallel_gemm
