"""Costs of forward bindings: the bytes to keep a result, and the work to compute it again."""

from __future__ import annotations

import math
from collections.abc import Mapping

from onnxgrad.errors import InputError
from onnxgrad.ir import domains
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.domains import (
    BROADCASTING,
    ELEMENTWISE,
    MOVES,
    REDUCTIONS,
    SEQUENCES,
    SMOOTH,
    VIEWS,
)
from onnxgrad.ir.sizes import symbols
from onnxgrad.ir.types import FLOAT_DTYPES, TensorType, numpy_dtype
from onnxgrad.ir.var import Var
from onnxgrad.verify.feeds.dims import evaluate

# sizes are compared, not measured: an open dimension counts as this number
OPEN = 64

# products of matrices: what JAX calls dots
PRODUCTS = frozenset((
    "MatMul", "Gemm", "Conv", "ConvTranspose", "DeformConv", "Einsum", "MatMulInteger",
    "ConvInteger", "QLinearMatMul", "QLinearConv", "Attention", "LSTM", "GRU", "RNN",
    *(f"com.microsoft::{op}" for op in (
        "FusedMatMul", "FusedConv", "FusedGemm", "MatMulNBits", "Attention", "MultiHeadAttention",
        "GroupQueryAttention", "DecoderMaskedMultiHeadAttention", "LinearAttention", "MoE",
        "CausalConvWithState",
    )),
))  # fmt: skip
_LAYOUT = (
    *MOVES, *SEQUENCES, "CenterCropPad", "Concat", "ConstantOfShape", "EyeLike", "Pad", "Range",
    "Shape", "Size", "Trilu",
)  # fmt: skip
_NORMS = (
    "BatchNormalization", "Dropout", "GroupNormalization", "InstanceNormalization",
    "LayerNormalization", "LogSoftmax", "LpNormalization", "MeanVarianceNormalization",
    "RMSNormalization", "SimplifiedLayerNormalization", "Softmax",
)  # fmt: skip
_SLOW = ("Pow", *(op for op in SMOOTH if op not in ("Neg", "Reciprocal", "Softsign", "Sqrt")))
# passes over the results: an operator that is not listed is computed again only on request
_PASSES: dict[str, int] = {
    **dict.fromkeys((*ELEMENTWISE, *BROADCASTING, *REDUCTIONS, *_LAYOUT), 1),
    **dict.fromkeys(_NORMS, 3),
    **dict.fromkeys(_SLOW, 2),
}
_VIEWS = frozenset((*VIEWS, "Shape", "Size"))
# results that are elements of operands, or the same bits whatever onnxruntime fuses
_EXACT = frozenset(
    (*_LAYOUT, "Abs", "Clip", "Identity", "Max", "Min", "Neg", "ReduceMax", "ReduceMin", "Relu")
)
_PER_PASS = 24  # multiplications in the time of one pass over a result
_OTHERS = 64  # passes of an operator of unknown cost


def size_of(v: Var, dims: Mapping[str, int] | None = None) -> int:
    """Returns the bytes of a value. Unknown sizes, and symbols that `dims` lacks, count as 64."""
    if not isinstance(v.type, TensorType) or v.shape is None or not v.dtype:
        return OPEN
    return math.prod(_dim(d, dims or {}) for d in v.shape) * numpy_dtype(v.dtype).itemsize


def _dim(d: int | str | None, dims: Mapping[str, int]) -> int:
    if isinstance(d, int):
        return d
    try:
        return OPEN if d is None else evaluate(d, {s: dims.get(s, OPEN) for s in symbols(d)})
    except InputError:
        return OPEN


def is_product(b: Binding) -> bool:
    """Whether the binding multiplies matrices, or contains graphs that may."""
    return bool(b.blocks) or domains.full_name(b.domain, b.op) in PRODUCTS


def is_cheap(b: Binding) -> bool:
    """Whether a second run costs little: of elementwise operators, layout and reductions."""
    return not b.domain and b.op in _PASSES and not b.blocks


def can_be_kept(v: Var) -> bool:
    """Whether a value can be an input of a backward part: a tensor of a known dtype."""
    return isinstance(v.type, TensorType) and bool(v.dtype)


def is_exact(b: Binding) -> bool:
    """Whether all kernels compute the same bits."""
    return not b.domain and b.op in _EXACT


def compares(b: Binding) -> bool:
    """Whether the binding compares floating-point values for equality."""
    return b.is_op("Equal") and any(v is not None and v.dtype in FLOAT_DTYPES for v in b.inputs)


def work_of(b: Binding, dims: Mapping[str, int] | None = None) -> int:
    """Returns the work of one run, in bytes of passes over memory."""
    size = sum(size_of(v, dims) for v in b.outputs if v is not None)
    if is_cheap(b):
        if b.op in _VIEWS:
            return 0
        read = size_of(b.inputs[0], dims) if b.inputs and b.inputs[0] is not None else 0
        return _PASSES[b.op] * max(size, read if b.op in REDUCTIONS else 0)
    depth = _depth(b, dims)
    return size * (_OTHERS if depth is None else 1 + depth // _PER_PASS)


def _depth(b: Binding, dims: Mapping[str, int] | None) -> int | None:
    """Returns the multiplications for one element of a product's result; None if unknown."""
    place = {"MatMul": 0, "Gemm": 1, "Conv": 1, "FusedMatMul": 0}.get(b.op)
    v = None if place is None else b.operand(place)
    if v is None or v.shape is None or not v.rank:
        return None
    if b.op == "Conv":
        return math.prod(_dim(d, dims or {}) for d in v.shape[1:])
    transposed = b.op == "Gemm" and b.attr("transB", 0)
    axis = -1 if place == 0 or transposed else 0
    return _dim(v.shape[axis], dims or {})
