"""Operators of com.microsoft that onnxruntime runs faster than ONNX's operators and the chain.

Time of MultiHeadAttention over the chain's, in brackets that of ONNX's Attention of opset 23; 12
heads, one thread, onnxruntime 1.31.1 (scripts/bench_composites.py):

    rows          16          32          128         256         512         1024
    24 wide       1.27 (0.81) 1.70 (0.86) 1.74 (0.95) 1.60 (0.98)
    192 wide      0.83 (0.61) 0.89 (0.61) 1.00 (0.80) 0.99 (0.91)
    384 wide      0.85 (0.62) 0.92 (0.65) 0.96 (0.85) 0.95 (0.94) 0.84 (0.94) 0.91 (0.96)
    768 wide      0.88 (0.61) 0.92 (0.67) 0.89 (0.77) 0.93 (0.95) 0.81 (0.95) 0.76 (0.95)
    masked, 384               1.04 (0.63) 1.08 (0.88) 0.75 (0.70) 0.82 (0.79) 0.82 (0.84)
    masked, 768               1.05 (0.68) 1.02 (0.84) 0.97 (0.77) 0.95 (0.88) 0.90 (0.91)

Therefore it replaces, with heads of width 32 or more: an Attention without a mask from 384 rows on
(0.77 and 0.94 of its time), a chain without a mask, and below opset 23 a masked chain from 512 rows
on. FastGelu takes 0.25 to 0.42 of its chain's time, as Gelu of opset 20 does.
"""

from __future__ import annotations

from typing import Any

from onnx import TensorProto

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.function_bodies import import_opset
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import Dim
from onnxgrad.ir.var import Var
from onnxgrad.laws.composites.activations import gelu_by_tanh
from onnxgrad.laws.composites.attention import REPAIRED, WEIGHTS, fit, mask_of, query_and_key
from onnxgrad.laws.composites.attention_chain import Heads, is_split, rows_of, scores_of
from onnxgrad.laws.composites.conditions import require, unchanged
from onnxgrad.rewrite.pattern import P, capture
from onnxgrad.rewrite.trace import decline, decline_if
from onnxgrad.rewrite.worklist import count, rewrite

s, p, v, q, k, mask, shape = capture("s p v q k mask shape")

DOMAIN = "com.microsoft"
_FLOAT = frozenset({TensorProto.FLOAT})
_MULTI_HEAD, _FAST = ("MultiHeadAttention", 1), ("FastGelu", 1)
# measured, see the table above
_ROWS, _MASKED_ROWS, _WIDTH = 384, 512, 32

_PRODUCT = P.MatMul(WEIGHTS.only.named("softmax") | REPAIRED, v).only


@rewrite(P.Reshape(P.Transpose(_PRODUCT, perm=[0, 2, 1, 3]).only, shape), shrinks=count("Softmax"))
def multi_head_attention(s: Var, v: Var, softmax: Binding, root: Binding) -> Any:
    """join(softmax(scale q k^T + mask) v) = MultiHeadAttention(x, y, z, mask), where heads q, k, v
    are split from rows x, y, z and join undoes it
    """
    scores, joined = scores_of(s), root.inputs[0]
    if softmax.attr("axis") not in (-1, (s.rank or 0) - 1) or softmax.out.use_count > 2:
        return None
    require(root, _MULTI_HEAD, v, _FLOAT)
    decline_if(
        joined is None or not is_split(root.out.shape, joined.shape),
        "its results are not joined to rows",
    )
    query, key, scale = query_and_key(scores)
    fit(query, Heads(key), Heads(v))
    _require_width((query.shape or (None,))[-1])
    rows = [_rows(u) for u in (query, key, v)]
    bias = mask_of(scores, query, v, repaired=False)
    if bias is not None:
        _require_rows(query, key, _MASKED_ROWS, "with a mask MultiHeadAttention pays")
        missing = 4 - (bias.rank or 4)
        bias = op.Unsqueeze(bias, [*range(missing)]) if missing else bias
    decline_if(not scale, "MultiHeadAttention reads a scale of 0 as its default")
    return _emitted(root, rows, bias, (query.shape or ())[1], scale)


@rewrite(P.Attention(q, k, v, mask.maybe), shrinks=count("Attention"))
def multi_head_attention_of_attention(
    q: Var, k: Var, v: Var, mask: Var | None, root: Binding
) -> Any:
    """Attention(q, k, v) = MultiHeadAttention(q, k, v), of rows"""
    heads = root.attr("q_num_heads")
    decline_if(
        q.rank != 3 or k.rank != 3 or v.rank != 3 or not heads,
        "its queries, keys and values are not rows",
    )
    decline_if(heads != root.attr("kv_num_heads"), "MultiHeadAttention has no groups of queries")
    decline_if(
        mask is not None or root.attr("is_causal"),
        "with a mask Attention is as fast as MultiHeadAttention",
    )
    decline_if(
        len(root.outputs) > 1 or root.attr("softcap") or "softmax_precision" in root.attrs,
        "MultiHeadAttention has no softcap, no precision and no second result",
    )
    require(root, _MULTI_HEAD, q, _FLOAT)
    width = q.shape[2] if q.shape else None
    _require_width(width // heads if isinstance(width, int) else None)
    _require_rows(q, k, _ROWS, "MultiHeadAttention is faster than Attention")
    scale = root.attr("scale")
    decline_if(scale == 0, "MultiHeadAttention reads a scale of 0 as its default")
    return _emitted(root, [q, k, v], None, heads, scale)


@rewrite(gelu_by_tanh.pattern, shrinks=count())
def fast_gelu(x: Var, root: Binding) -> Any:
    """x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2 = FastGelu(x), below opset 20"""
    require(root, _FAST, x, _FLOAT)
    if root.version >= 20 or not unchanged(x, root.out):
        return None
    import_opset(root.block, DOMAIN, 1)
    return op.domain(DOMAIN).FastGelu(x)


def _rows(heads: Var) -> Var:
    """Returns the (B, rows, heads width) of heads (B, heads, rows, width). Raises Decline."""
    found = rows_of(heads)
    if found is None:
        raise decline(f"{heads.name} is not split from rows")
    return found


def _require_rows(query: Var, key: Var, least: int, what: str) -> None:
    """Raises Decline unless queries and keys have at least so many rows."""
    for n in (u.shape[-2] if u.shape else None for u in (query, key)):
        if not isinstance(n, int):
            raise decline(
                f"{what} from {least} rows on, and it has {n or 'unknown many'}: "
                "--fix-dim says how many"
            )
        decline_if(n < least, f"{what} from {least} rows on, not at {n}")


def _require_width(width: Dim) -> None:
    """Raises Decline unless each head is known to have at least this width."""
    decline_if(
        not isinstance(width, int) or width < _WIDTH,
        f"MultiHeadAttention pays with heads {_WIDTH} wide, and these are {width}",
    )


def _emitted(
    root: Binding, rows: list[Var], bias: Var | None, heads: Dim, scale: float | None
) -> Var:
    import_opset(root.block, DOMAIN, 1)
    made: Var = op.domain(DOMAIN).MultiHeadAttention(
        *rows, None, None, bias, num_heads=heads, scale=scale
    )
    return made
