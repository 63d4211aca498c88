"""Types of the results of onnxruntime's own operators (com.microsoft), of which onnx knows nothing.

Exporters of language models write these without value_info. A size that depends on the elements of
an operand, such as that of a cache, is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from onnx import NodeProto, TensorProto

from onnxgrad.ir import sizes as algebra
from onnxgrad.ir.sizes import Dim
from onnxgrad.ir.type_inference.closed_forms import matmul_shape
from onnxgrad.ir.type_inference.window_shapes import Call, of_conv
from onnxgrad.ir.types import Shape, TensorType, Type
from onnxgrad.ir.var import Var

_Results: TypeAlias = "Sequence[TensorType | None]"
_Rule: TypeAlias = Callable[[Call], _Results]


def result_types(node: NodeProto, inputs: Sequence[Var | None]) -> list[Type | None]:
    """Returns one type per output name of a node of onnxruntime, None if nothing is known."""
    rule, x = RULES.get(node.op_type), inputs[0] if inputs else None
    found: _Results = ()
    if rule is not None and x is not None and x.dtype:
        found = rule(Call(node, x, inputs, None))
    return [found[i] if i < len(found) and n else None for i, n in enumerate(node.output)]


def _shape(v: Var | None, rank: int) -> Shape | None:
    """The shape of an operand, None unless it has this rank."""
    return None if v is None or v.rank != rank else v.shape


def _first(c: Call) -> _Results:
    return [TensorType(c.x.dtype, c.x.shape)]


def _of_dtype_of(slot: int) -> _Rule:
    """The first operand's shape, another operand's dtype."""

    def rule(c: Call) -> _Results:
        other = c.operand(slot)
        return [None if other is None else TensorType(other.dtype, c.x.shape)]

    return rule


def _skip_norm(c: Call) -> _Results:
    """The norm, mean and deviation, which no kernel of the CPU computes, and the sum."""
    x = TensorType(c.x.dtype, c.x.shape)
    return [x, None, None, x]


def _blocks(c: Call) -> _Results:
    """x @ W, with W (K, N) in blocks of packed integers."""
    columns = c.attr("N", 0)
    return [TensorType(c.x.dtype, (*c.x.shape[:-1], columns) if c.x.shape and columns else None)]


def _gather_blocks(c: Call) -> _Results:
    """Rows of a quantised table, in the dtype of its scales."""
    rows, scales = c.operand(1), c.operand(2)
    if scales is None:
        return ()
    shape = None
    if c.x.shape and rows is not None and rows.shape is not None:
        packed = c.x.dtype == TensorProto.UINT8
        width = algebra.multiply(c.x.shape[-1], 8 // c.attr("bits", 4) if packed else 1)
        sides, axis = (*c.x.shape[:-1], width), c.attr("gather_axis", 0) % len(c.x.shape)
        shape = (*sides[:axis], *rows.shape, *sides[axis + 1 :])
    return [TensorType(scales.dtype, shape)]


def _grouped_query(c: Call) -> _Results:
    """(batch, length, heads x size), and a cache (batch, heads of keys, unknown, size) twice, of
    the dtype of the cache before.
    """
    heads, kv_heads = c.attr("num_heads", 0), c.attr("kv_num_heads", 0)
    shape, size = _shape(c.x, 3), None
    if shape is not None and heads and kv_heads:
        parts = heads if c.operand(1) is not None else heads + 2 * kv_heads
        size = algebra.exactly(shape[2], parts)
        shape = (*shape[:2], algebra.multiply(size, heads))
    before = c.operand(3)
    cache = _cache(c.x.dtype if before is None else before.dtype, shape, kv_heads or None, size)
    return [TensorType(c.x.dtype, shape), cache, cache]


def _cache(dtype: int, batch: Shape | None, heads: Dim, size: Dim) -> TensorType:
    return TensorType(dtype, (None if batch is None else batch[0], heads, None, size))


def _multi_head(c: Call) -> _Results:
    """(batch, length, heads x size of values), and a cache of keys and of values."""
    heads, key, value = c.attr("num_heads", 0) or None, c.operand(1), c.operand(2)
    query = _shape(c.x, 3)
    if (packed := _shape(c.x, 5)) is not None:  # (batch, length, heads, 3, size)
        sizes, batch = (packed[4], packed[4]), packed
    elif query is not None and (both := _shape(key, 5)) is not None:  # (..., heads, 2, size)
        sizes, batch = (both[4], both[4]), query
    elif query is not None:
        sizes, batch = (_size(c.x, heads), _size(value, heads)), query
    else:
        return [TensorType(c.x.dtype, None)] * 3
    caches = [_cache(c.x.dtype, batch, heads, size) for size in sizes]
    return [TensorType(c.x.dtype, (*batch[:2], algebra.multiply(sizes[1], heads))), *caches]


def _size(v: Var | None, heads: Dim) -> Dim:
    """The size of a head, of (batch, length, heads x size) or (batch, heads, length, size)."""
    if (shape := _shape(v, 4)) is not None:
        return shape[3]
    flat = _shape(v, 3)
    return algebra.exactly(flat[2], heads) if flat is not None and isinstance(heads, int) else None


def _product(c: Call) -> _Results:
    """x @ y, both possibly transposed."""
    y = c.operand(1)
    if y is None or c.attr("transBatchA", 0) or c.attr("transBatchB", 0):
        return [TensorType(c.x.dtype, None)]
    sides = _turned(c.x, c.attr("transA", 0)), _turned(y, c.attr("transB", 0))
    return [TensorType(c.x.dtype, matmul_shape(*sides))]


def _turned(v: Var, swaps: int) -> TensorType:
    shape = v.shape
    if shape is not None and len(shape) > 1 and swaps:
        shape = (*shape[:-2], shape[-1], shape[-2])
    return TensorType(v.dtype, shape)


def _dynamic_lstm(c: Call) -> _Results:
    """(steps, directions, batch, hidden), and the last state and cell without steps; R is
    (directions, hidden, 4 hidden).
    """
    r = c.operand(2)
    steps, batch, _ = _shape(c.x, 3) or (None, None, None)
    directions, hidden, _ = _shape(r, 3) or (None, c.attr("hidden_size", 0) or None, None)
    state = TensorType(c.x.dtype, (directions, batch, hidden))
    return [TensorType(c.x.dtype, (steps, directions, batch, hidden)), state, state]


_AS_FIRST = (
    "BiasAdd", "BiasGelu", "FastGelu", "Gelu", "LayerNormalization", "MoE", "QMoE", "QuickGelu",
    "RotaryEmbedding", "SimplifiedLayerNormalization",
)  # fmt: skip
RULES: dict[str, _Rule] = {
    **dict.fromkeys(_AS_FIRST, _first),
    **dict.fromkeys(("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"), _skip_norm),
    **dict.fromkeys(("MatMulNBits", "MatMulBnb4"), _blocks),
    **dict.fromkeys(("FusedMatMul", "TransposeMatMul"), _product),
    "DequantizeLinear": _of_dtype_of(1),
    "DynamicQuantizeLSTM": _dynamic_lstm,
    "QuantizeLinear": _of_dtype_of(2),
    "FusedConv": lambda c: [TensorType(c.x.dtype, of_conv(c))],
    "GatherBlockQuantized": _gather_blocks,
    "GroupQueryAttention": _grouped_query,
    "MultiHeadAttention": _multi_head,
}
