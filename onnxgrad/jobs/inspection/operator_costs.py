"""The floating-point operations of each operator, from the sizes of its operands and results.

A multiplication and an addition count as two operations, as in most published FLOPs (MACs are half
of that). Comparisons, conversions and integer arithmetic count as one operation each; operators
that only move, select or name elements cost nothing. Each formula is written once per family of
operators.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from math import prod

from onnxgrad.ir import domains
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.types import element_count, is_static
from onnxgrad.ir.var import Var

Formula = Callable[[Binding], int]


class Open(Exception):
    """A size in the formula is unknown."""


def flops(b: Binding) -> int | None:
    """Returns the operations of one run of a binding, without those of nested graphs; None if a
    size is open or no formula is known (see `has_formula`).
    """
    formula = FORMULAS.get(domains.full_name(b.domain, b.op))
    try:
        return None if formula is None else formula(b)
    except Open:
        return None


def has_formula(b: Binding) -> bool:
    """Whether the operator's cost can be computed from its sizes."""
    return domains.full_name(b.domain, b.op) in FORMULAS


# one operand with the next, element by element
_BY_OPERANDS = ("Sum", "Mean", "Max", "Min")
# operations for each element of the result
_PER_RESULT: dict[int, tuple[str, ...]] = {
    1: (
        *domains.ACTIVATIONS, *domains.TESTS, "Hardmax", "com.microsoft::Gelu",
        "com.microsoft::FastGelu", "com.microsoft::QuickGelu",
        *(op for op in domains.BROADCASTING if op not in _BY_OPERANDS),
        *(op for op in domains.RANDOM if op != "Multinomial"),
    ),
    # scaled, and shifted or rounded
    2: ("BatchNormalization", "com.microsoft::BiasGelu", "DequantizeLinear", "QuantizeLinear"),
    3: ("LpNormalization",),  # squared, summed, divided
    4: ("DynamicQuantizeLinear", "RMSNormalization", "SimplifiedLayerNormalization"),
    # largest, difference, exp, sum, quotient
    5: ("LogSoftmax", "MeanVarianceNormalization", "Softmax"),
    # mean, difference, square, sum, quotient, scale, shift
    7: ("GroupNormalization", "InstanceNormalization", "LayerNormalization"),
    8: ("com.microsoft::SkipLayerNormalization",),
}  # fmt: skip
# operations for each element of the first operand
_PER_OPERAND: dict[int, tuple[str, ...]] = {
    1: (
        *domains.REDUCTIONS, "ArgMax", "ArgMin", "CumProd", "CumSum", "GlobalAveragePool",
        "GlobalMaxPool", "Col2Im", "MaxRoiPool", "NegativeLogLikelihoodLoss",
    ),
    2: ("GlobalLpPool", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare"),
    5: ("SoftmaxCrossEntropyLoss",),
}  # fmt: skip
_NOTHING = (
    *domains.CASTS, *domains.MOVES, *domains.SEQUENCES, "BitCast", "CenterCropPad", "Compress",
    "Concat", "Constant", "ConstantOfShape", "Dropout", "EyeLike", "MaxUnpool", "NonZero", "OneHot",
    "Pad", "Range", "ReverseSequence", "ScatterElements", "ScatterND", "Shape", "Size",
    "TensorScatter", "TopK", "Trilu",
)  # fmt: skip


def _size(v: Var | None) -> int:
    count = None if v is None else element_count(v.shape)
    if count is None:
        raise Open
    return count


def _shape(v: Var | None) -> tuple[int, ...]:
    shape = None if v is None else v.shape
    if not is_static(shape):
        raise Open
    return shape


# ---- products ------------------------------------------------------------------------------------


def _matmul(b: Binding) -> int:
    return 2 * _size(b.out) * _shape(b.operand(0))[-2 if b.attr("transA") else -1]


def _gemm(b: Binding) -> int:
    inner = _shape(b.operand(0))[0 if b.attr("transA") else 1]
    return _size(b.out) * (2 * inner + (b.operand(2) is not None))


def _einsum(b: Binding) -> int:
    """Returns the cost of a loop over all indices that multiplies and adds up the operands."""
    terms = re.sub(r"\s", "", str(b.attr("equation"))).partition("->")[0].split(",")
    sizes: dict[str, int] = {}
    for term, v in zip(terms, b.inputs, strict=True):
        if "." in term:
            raise Open
        sizes.update(zip(term, _shape(v), strict=True))
    return max(2 * (len(terms) - 1), 1) * prod(sizes.values())


# ---- convolutions and pools ----------------------------------------------------------------------


def _convolution(weight: int, bias: int | None) -> Formula:
    """Returns the formula: each element of the result is a sum over a window of one group's
    channels.
    """

    def formula(b: Binding) -> int:
        biased = bias is not None and b.operand(bias) is not None
        return _size(b.out) * (2 * prod(_shape(b.operand(weight))[1:]) + biased)

    return formula


def _transposed_convolution(b: Binding) -> int:
    """Returns the cost: each element of the operand goes to a window of one group's channels."""
    bias = 0 if b.operand(2) is None else _size(b.out)
    return 2 * _size(b.operand(0)) * prod(_shape(b.operand(1))[1:]) + bias


def _pool(each: int) -> Formula:
    return lambda b: each * _size(b.out) * prod(b.attr("kernel_shape") or ())


def _sampled(b: Binding) -> int:
    """Returns the cost: each element of the result is a weighted sum of 2 or 4 neighbours along
    each axis.
    """
    x, y = _shape(b.operand(0)), _shape(b.out)
    axes = len(x) - 2 if b.is_op("GridSample") else sum(m != n for m, n in zip(x, y, strict=True))
    mode = str(b.attr("mode", "linear"))
    if mode == "nearest":
        return 0
    neighbours = int((4 if "cubic" in mode else 2) ** axes)
    return 2 * neighbours * prod(y)


# ---- recurrent operators and attention -----------------------------------------------------------


def _recurrent(gates: int, rest: int) -> Formula:
    """Returns the formula: each gate is a product with the input and one with the state, two biases
    and an activation. `rest` is the work per element of the state on the gates.
    """

    def formula(b: Binding) -> int:
        steps, rows = _shape(b.operand(0))[:2]
        if b.attr("layout"):
            steps, rows = rows, steps
        directions, width, features = _shape(b.operand(1))
        state = width // gates
        biases = 2 if b.operand(3) is not None else 0
        each = gates * (2 * features + 2 * state + 1 + biases) + rest
        return directions * steps * rows * state * each

    return formula


def _attention(b: Binding) -> int:
    """Returns the cost of the products of queries and keys, their softmax, and its product with the
    values.
    """
    q, k, v = (_shape(b.operand(i)) for i in range(3))
    if len(q) == 4:
        batch, heads, rows, depth = q
        kv_heads, columns, out = k[1], k[2], v[3]
    else:
        batch, rows, width = q
        heads, kv_heads = int(b.attr("q_num_heads") or 0), int(b.attr("kv_num_heads") or 0)
        if not heads or not kv_heads:
            raise Open
        columns, depth, out = k[1], width // heads, v[2] // kv_heads
    if b.operand(4) is not None:
        columns += _shape(b.operand(4))[2]
    return batch * heads * rows * columns * (2 * depth + 2 * out + 5)


FORMULAS: dict[str, Formula] = {
    "Conv": _convolution(1, 2),
    "com.microsoft::FusedConv": _convolution(1, 2),
    "ConvInteger": _convolution(1, None),
    "QLinearConv": _convolution(3, 8),
    "DeformConv": _convolution(1, 3),
    "ConvTranspose": _transposed_convolution,
    "MatMul": _matmul,
    "com.microsoft::FusedMatMul": _matmul,
    "MatMulInteger": _matmul,
    "QLinearMatMul": _matmul,
    "Gemm": _gemm,
    "Einsum": _einsum,
    "MaxPool": _pool(1),
    "AveragePool": _pool(1),
    "LpPool": _pool(2),
    "Resize": _sampled,
    "Upsample": _sampled,
    "GridSample": _sampled,
    "LSTM": _recurrent(4, 5),  # two products and a sum for the cell, its tanh, a product
    "GRU": _recurrent(3, 5),
    "RNN": _recurrent(1, 0),
    "Attention": _attention,
    **dict.fromkeys(_BY_OPERANDS, lambda b: max(len(b.inputs) - 1, 1) * _size(b.out)),
    **dict.fromkeys(_NOTHING, lambda b: 0),
}


def _per(count: int, ops: Iterable[str], of: Callable[[Binding], Var | None]) -> None:
    FORMULAS.update(dict.fromkeys(ops, lambda b: count * _size(of(b))))


for _count, _ops in _PER_RESULT.items():
    _per(_count, _ops, lambda b: b.out)
for _count, _ops in _PER_OPERAND.items():
    _per(_count, _ops, lambda b: b.operand(0))
