"""Attention from the chain of products that exporters write, over heads and over rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import same_dim
from onnxgrad.ir.var import Var
from onnxgrad.laws.composites.attention_chain import (
    Heads,
    Scores,
    all_scales,
    heads_of,
    is_split,
    joined_rows,
    matrices_transposed,
    scores_of,
)
from onnxgrad.laws.composites.attention_masks import replaced, spread, together
from onnxgrad.laws.composites.conditions import require, require_elements
from onnxgrad.laws.composites.rotary import rotated_rows
from onnxgrad.rewrite.pattern import P, capture
from onnxgrad.rewrite.trace import decline, decline_if
from onnxgrad.rewrite.worklist import count, rewrite

s, p, v, q, k, mask, axis, shape = capture("s p v q k mask axis shape")

# in float16 the operator rounds at other places: the results differ by up to two last places
_DTYPES = frozenset({TensorProto.FLOAT})
_OPERATOR = ("Attention", 23)
WEIGHTS = P.Softmax(s, axis=axis)


@rewrite(P.MatMul(WEIGHTS.only.named("softmax"), v), shrinks=count("Softmax"), needs=_OPERATOR)
def attention(s: Var, v: Var, softmax: Binding, root: Binding) -> Any:
    """softmax(scale q k^T + mask) v = Attention(q, k, v, mask)"""
    return _attention(s, v, softmax, root, repaired=False)


REPAIRED = P.Where(P.IsNaN(p).only, 0.0, p & WEIGHTS.named("softmax")).only


@rewrite(P.MatMul(REPAIRED, v), shrinks=count("Softmax"), needs=_OPERATOR)
def attention_without_nan(s: Var, p: Var, v: Var, softmax: Binding, root: Binding) -> Any:
    """p = softmax(scale q k^T + mask), (0 where p is NaN, else p) v = Attention(q, k, v, mask), in
    which rows that are masked throughout are 0
    """
    decline_if(p.use_count > 2, "its weights have other readers and would stay")
    return _attention(s, v, softmax, root, repaired=True)


def _attention(s: Var, v: Var, softmax: Binding, root: Binding, *, repaired: bool) -> Any:
    if softmax.attr("axis") not in (-1, (s.rank or 0) - 1):
        return None
    scores = scores_of(s)
    decline_if(
        s.rank != 4 or v.rank != 4,
        "its scores and values do not have the axes (batch, heads, rows, columns)",
    )
    require(root, _OPERATOR, v, _DTYPES)
    query, key, scale = query_and_key(scores)
    decline_if(
        not is_a_scale(scale), f"onnxruntime's Attention has no scale of {scale:g}, only above 0"
    )
    keys, values = heads_of(key), heads_of(v)
    if keys.times != values.times:
        keys, values = Heads(key), Heads(v)
    decline_if(
        keys.value.rank != 4,
        f"its keys {keys.value.name} have {keys.value.rank} axes and its values "
        f"{values.value.rank}",
    )
    fit(query, keys, values)
    bias = mask_of(scores, query, values.value, repaired)
    return op.Attention(query, keys.value, values.value, bias, scale=scale)


def is_a_scale(number: float) -> bool:
    """Whether onnxruntime, which holds the scale as float32, loads an Attention with it."""
    with np.errstate(all="ignore"):
        return bool(0 < np.float32(number) < np.inf)


def query_and_key(scores: Scores) -> tuple[Var, Var, float]:
    """Returns queries, keys (batch, heads, rows, width) and their scale. Raises Decline."""
    left, right = scores.product.inputs
    if left is None or right is None:
        raise decline("a product without operands")
    query, factor = all_scales(left)
    turned, other = all_scales(right)
    key = matrices_transposed(turned)
    scale = scores.scale * factor * other
    if key is not None:
        key, inner = all_scales(key)
        return query, key, scale * inner
    b = turned.definition
    if b is not None and b.is_op("Transpose") and tuple(b.attr("perm") or ()) == (0, 2, 3, 1):
        return query, op.Transpose(b.inputs[0], perm=[0, 2, 1, 3]), scale
    raise decline(f"{turned.name} is not the transpose of keys")


def fit(query: Var, keys: Heads, values: Heads) -> None:
    """Raises Decline unless batch, heads and rows agree as in one attention."""
    q, k, v = query.shape, keys.value.shape, values.value.shape
    if q is None or k is None or v is None or not len(q) == len(k) == len(v) == 4:
        raise decline("the axes of its queries, keys and values are not known to be four")
    require_elements("Attention", query, keys.value, values.value)
    decline_if(
        not (same_dim(q[0], k[0]) and same_dim(q[0], v[0])),
        "its queries, keys and values are not known to be one batch",
    )
    decline_if(
        not (same_dim(k[1], v[1]) and same_dim(k[2], v[2]) and same_dim(q[3], k[3])),
        "its keys and values do not have the same heads and rows",
    )
    heads = k[1] * keys.times if isinstance(k[1], int) else k[1] if keys.times == 1 else None
    decline_if(
        not same_dim(q[1], heads), "its queries and keys are not known to have the same heads"
    )


def mask_of(scores: Scores, query: Var, value: Var, repaired: bool) -> Var | None:
    """Returns the sum of everything that is added to the scores. Raises Decline."""
    decline_if(scores.replaced is not None and scores.added, "its scores are replaced and added to")
    if scores.replaced is not None:
        total = replaced(scores.replaced, query.dtype, repaired)
    elif scores.added:
        total = together(scores.added, repaired)
    else:
        return None
    _no_wider(total, query)
    return spread(total, query, value)


def _no_wider(mask: Var, query: Var) -> None:
    """Raises Decline if the mask has batches or heads that the queries lack."""
    lead = (mask.shape or ())[:-2]
    own = (query.shape or ())[2 - len(lead) : 2]
    decline_if(
        mask.shape is None or not all(d == 1 or same_dim(d, o) for d, o in zip(lead, own)),
        "its mask is not known to have the batch and the heads of its queries",
    )


@rewrite(P.Attention(q, k, v, mask.maybe), shrinks=count("Expand"))
def attention_of_groups(q: Var, k: Var, v: Var, root: Binding) -> Any:
    """Attention(q, repeat(k), repeat(v)) = Attention(q, k, v) with fewer heads of keys and
    values
    """
    keys, values = heads_of(k), heads_of(v)
    if root.has_refs or q.rank != 4 or len(root.outputs) > 1 or keys.times == 1:
        return None
    decline_if(
        keys.times != values.times, "its keys are repeated and its values are not, or otherwise"
    )
    decline_if(
        k.sole_user() is None or v.sole_user() is None,
        "the repeated keys or values have other readers and would stay",
    )
    fit(q, keys, values)
    return op.Attention(q, keys.value, values.value, root.operand(3), **root.attrs)


_OF_HEADS = P.Attention(q, k, v, mask.maybe).only.named("heads")


@rewrite(
    P.Reshape(P.Transpose(_OF_HEADS, perm=[0, 2, 1, 3]).only, shape), shrinks=count("Transpose")
)
def attention_of_rows(q: Var, k: Var, v: Var, shape: Var, heads: Binding, root: Binding) -> Any:
    """join(Attention(split(x), split(y), split(z))) = Attention(x, y, z), where split makes heads
    (B, heads, rows, width) of rows (B, rows, heads width) and join undoes it
    """
    transposed = root.inputs[0]
    if heads.has_refs or len(heads.outputs) > 1 or q.rank != 4 or transposed is None:
        return None
    whole = is_split(root.out.shape, transposed.shape)
    decline_if(
        not whole and not _joins_rows(shape, root, transposed), "its results are not joined to rows"
    )
    found = {u: joined_rows(u) or rotated_rows(u) for u in (q, k, v)}
    rows = [x for x in (found[q], found[k], found[v]) if x is not None]
    if len(rows) < 3:
        names = ", ".join(u.name for u, x in found.items() if x is None)
        return decline(f"{names} is not split from rows")
    counts = [None if u.shape is None else u.shape[1] for u in (q, k)]
    given = {**heads.attrs, "q_num_heads": counts[0], "kv_num_heads": counts[1]}
    query, factor = all_scales(rows[0])
    is_free = factor != 1 and "scale" in given and rows[0].sole_user() is not None
    if is_free and is_a_scale(given["scale"] * factor):
        given["scale"] *= factor
    else:
        query = rows[0]
    made: Var = op.Attention(query, rows[1], rows[2], heads.operand(3), **given)
    return made if whole else op.Reshape(made, shape, allowzero=root.attr("allowzero") or None)


def _joins_rows(shape: Var, root: Binding, heads: Var) -> bool:
    """Whether the last two of four axes become one, regardless of the others."""
    sizes, out = heads.shape, root.out.shape
    if sizes is None or not out or not isinstance(sizes[2], int) or not isinstance(sizes[3], int):
        return False
    copies = not root.attr("allowzero") and (shape.ints is None or 0 in shape.ints)
    return not copies and out[-1] == sizes[2] * sizes[3]
