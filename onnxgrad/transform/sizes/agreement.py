"""Axes of a node's operands that must have equal sizes, by operator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from onnxgrad.batching.elementwise_and_products import UNARY
from onnxgrad.batching.registry import names
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.domains import BROADCASTING, REDUCTIONS

# the index of an operand and one of its axes
Place: TypeAlias = tuple[int, int]


@dataclass(frozen=True)
class Meeting:
    """Axes that must have equal sizes. If they broadcast, 1 agrees with every size."""

    places: tuple[Place, ...]
    broadcasts: bool = False


_Rule: TypeAlias = Callable[[Binding], Iterator[Meeting]]


def meetings(b: Binding) -> list[Meeting] | None:
    """Returns the axes of operands that must agree, or None if the operator is not in the table."""
    rule = _RULES.get((b.domain, b.op))
    return None if rule is None else list(rule(b))


def _rank(b: Binding, k: int) -> int:
    v = b.operand(k)
    return 0 if v is None else v.rank or 0


def _present(b: Binding) -> list[int]:
    return [k for k, v in enumerate(b.inputs) if v is not None]


def _columns(ranks: dict[int, int], skipped: int = 0) -> Iterator[Meeting]:
    """Yields the axes that broadcasting aligns, from the end, without the last `skipped` axes."""
    for i in range(1 + skipped, max(ranks.values(), default=0) + 1):
        places = tuple((k, rank - i) for k, rank in ranks.items() if rank >= i)
        if len(places) > 1:
            yield Meeting(places, broadcasts=True)


def _alone(b: Binding) -> Iterator[Meeting]:
    yield from ()


def _broadcasting(b: Binding) -> Iterator[Meeting]:
    yield from _columns({k: _rank(b, k) for k in _present(b)})


def _matmul(b: Binding) -> Iterator[Meeting]:
    first, second = _rank(b, 0), _rank(b, 1)
    yield Meeting(((0, first - 1), (1, max(second - 2, 0))))
    if min(first, second) > 2:
        yield from _columns({0: first, 1: second}, 2)


def _gemm(b: Binding) -> Iterator[Meeting]:
    a, c = int(bool(b.attr("transA"))), int(bool(b.attr("transB")))
    yield Meeting(((0, 1 - a), (1, c)))
    bias = _rank(b, 2)
    if bias:
        yield Meeting(((1, 1 - c), (2, bias - 1)), broadcasts=True)
    if bias == 2:
        yield Meeting(((0, a), (2, 0)), broadcasts=True)


def _concat(b: Binding) -> Iterator[Meeting]:
    rank = _rank(b, 0)
    for axis in range(rank):
        if axis != b.attr("axis", 1) % rank:
            yield Meeting(tuple((k, axis) for k in _present(b)))


def _einsum(b: Binding) -> Iterator[Meeting]:
    left = str(b.attr("equation")).replace(" ", "").partition("->")[0].split(",")
    for index in sorted({*"".join(left)} - {"."}):
        yield Meeting(tuple((k, t.index(index)) for k, t in enumerate(left) if index in t))


def _channels(b: Binding) -> Iterator[Meeting]:
    """Each operand after the first has one number per channel."""
    for k in _present(b)[1:]:
        yield Meeting(((0, 1), (k, _rank(b, k) - 1)))


def _normalization(b: Binding) -> Iterator[Meeting]:
    """Scales and shifts broadcast to the normalised axes."""
    rank = _rank(b, 0)
    for k in _present(b)[1:]:
        for i in range(1, _rank(b, k) + 1):
            yield Meeting(((0, rank - i), (k, _rank(b, k) - i)), broadcasts=True)


def _recurrent(b: Binding) -> Iterator[Meeting]:
    samples = 0 if b.attr("layout", 0) else 1
    for k in (5, 6):
        if b.operand(k) is not None:
            yield Meeting(((0, samples), (k, samples)))
    if b.operand(4) is not None:
        yield Meeting(((0, samples), (4, 0)))


def _attention(b: Binding) -> Iterator[Meeting]:
    """Queries, keys and values are (batch, heads, length, size) or (batch, length, size)."""
    length = _rank(b, 0) - 2
    yield Meeting(((0, 0), (1, 0), (2, 0)))
    yield Meeting(((1, length), (2, length)))
    mask = _rank(b, 3)
    if mask:
        yield Meeting(((0, length), (3, mask - 2)), broadcasts=True)
        if b.operand(4) is None:
            yield Meeting(((1, length), (3, mask - 1)), broadcasts=True)


def _quantized(b: Binding) -> Iterator[Meeting]:
    """Scales and zero points have one number per position of an axis, or one for all."""
    rank = _rank(b, 0)
    for k in _present(b)[1:]:
        if _rank(b, k) == 1 and rank:
            yield Meeting(((0, b.attr("axis", 1) % rank), (k, 0)), broadcasts=True)


def _scattered(b: Binding) -> Iterator[Meeting]:
    for axis in range(_rank(b, 1)):
        yield Meeting(((1, axis), (2, axis)))


def _scattered_slices(b: Binding) -> Iterator[Meeting]:
    """Indices are (*n, k), updates (*n, *axes of the data after the first k).

    Constant indices are left to the rule in `targets.py`.
    """
    before = _rank(b, 1) - 1
    indexed = _rank(b, 0) - _rank(b, 2) + before
    indices = b.operand(1)
    for axis in range(before) if indices is None or indices.const is None else ():
        yield Meeting(((1, axis), (2, axis)))
    for axis in range(indexed, _rank(b, 0)):
        yield Meeting(((0, axis), (2, before + axis - indexed)))


_ALONE = (
    f"{UNARY} {' '.join(REDUCTIONS)} Transpose Reshape Flatten Squeeze Unsqueeze Expand Tile Slice "
    "Gather GatherElements GatherND Split Pad Shape Size Range ConstantOfShape Constant OneHot "
    "TopK ArgMax ArgMin Softmax LogSoftmax Hardmax CumSum Trilu LpNormalization "
    "MeanVarianceNormalization Conv ConvTranspose MaxPool AveragePool LpPool GlobalAveragePool "
    "GlobalMaxPool GlobalLpPool LRN DepthToSpace SpaceToDepth Resize Upsample GridSample AffineGrid"
)
_RULES: dict[tuple[str, str], _Rule] = {
    **dict.fromkeys(names(_ALONE), _alone),
    **dict.fromkeys(names(" ".join(BROADCASTING)), _broadcasting),
    ("", "MatMul"): _matmul,
    ("", "Gemm"): _gemm,
    ("", "Concat"): _concat,
    ("", "Einsum"): _einsum,
    **dict.fromkeys(
        names("BatchNormalization InstanceNormalization GroupNormalization"), _channels
    ),
    **dict.fromkeys(
        names("LayerNormalization RMSNormalization SimplifiedLayerNormalization"), _normalization
    ),
    **dict.fromkeys(names("LSTM GRU RNN"), _recurrent),
    ("", "Attention"): _attention,
    **dict.fromkeys(names("QuantizeLinear DequantizeLinear"), _quantized),
    ("", "ScatterElements"): _scattered,
    ("", "ScatterND"): _scattered_slices,
}
