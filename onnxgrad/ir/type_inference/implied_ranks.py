"""Ranks that an operator requires of its operands: a value of unknown rank that Attention without
head counts reads has four axes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.types import TensorType
from onnxgrad.ir.var import Var

Ranks = Mapping[int, int]

_RECURRENT: Ranks = {0: 3, 1: 3, 2: 3, 3: 2, 4: 1, 5: 3, 6: 3, 7: 2}
_FIXED: dict[str, Ranks] = {
    "CausalConvWithState": {0: 3, 1: 3, 2: 1, 3: 3},
    "DepthToSpace": {0: 4},
    "FlexAttention": {0: 4, 1: 4, 2: 4},
    "GRU": _RECURRENT,
    "Gemm": {0: 2, 1: 2},
    "LSTM": _RECURRENT,
    "LinearAttention": {0: 3, 1: 3, 2: 3, 3: 4, 4: 3, 5: 3},
    "MaxRoiPool": {0: 4, 1: 2},
    "RNN": _RECURRENT,
    "RoiAlign": {0: 4, 1: 2, 2: 1},
    "SpaceToDepth": {0: 4},
}
_KERNEL_TOO = frozenset({"Conv", "ConvTranspose", "DeformConv"})
_WINDOWED = _KERNEL_TOO | {"AveragePool", "LpPool", "MaxPool", "MaxUnpool"}
# their first operands, so many of them, have the rank of the result
_AS_RESULT = {
    "AveragePool": 1,
    "Conv": 2,
    "ConvTranspose": 2,
    "GridSample": 2,
    "LpPool": 1,
    "MaxPool": 1,
    "Resize": 1,
}
# the first GridSample with volumes
_VOLUMES = 20


def imply_ranks(block: BindingBlock) -> list[Var]:
    """Gives values of unknown rank the rank that an operator in their block requires. Returns these
    values.

    An operator in a nested block may never run, so it implies nothing about values outside.
    """
    found: list[Var] = []
    for b in reversed(list(block.walk())):  # results imply operands
        for i, rank in _ranks(b):
            v = b.operand(i)
            if v is None or v.block is not b.block or not isinstance(v.type, TensorType):
                continue
            if v.shape is None:
                v.type = TensorType(v.type.dtype, (None,) * rank)
                found.append(v)
    return found


def _ranks(b: Binding) -> Iterator[tuple[int, int]]:
    """Yields (operand, rank)."""
    if b.domain not in ("", "ai.onnx.preview"):
        return
    yield from _FIXED.get(b.op, {}).items()
    if known := _rank(b.result(0)):
        yield from ((i, known) for i in range(_AS_RESULT.get(b.op, 0)))
    yield from _attention_ranks(b)
    if b.op in _WINDOWED and (axes := _window_axes(b)):
        yield from ((i, axes + 2) for i in range(2 if b.op in _KERNEL_TOO else 1))
    elif b.op == "Resize" and not b.attr("axes"):
        yield from ((0, n) for n in map(_length, (b.operand(2), b.operand(3))) if n)
    elif b.op == "DequantizeLinear" and b.attr("block_size"):
        yield from ((i, known) for i in (1, 2) if (known := _rank(b.operand(0))))
    elif b.op == "GridSample":
        known = 4 if b.version < _VOLUMES else _rank(b.operand(0)) or _rank(b.operand(1))
        yield from ((i, known) for i in (0, 1) if known)


def _attention_ranks(b: Binding) -> Iterator[tuple[int, int]]:
    if b.op == "Attention":
        yield from ((i, 4) for i in (4, 5))
        if not b.attr("q_num_heads"):  # which operands with three axes need
            yield from ((i, 4) for i in range(3))
    elif b.op == "RotaryEmbedding":
        cached = 3 if b.operand(3) is None else 2
        yield from ((1, cached), (2, cached))
        if not b.attr("num_heads"):
            yield 0, 4


def _window_axes(b: Binding) -> int:
    """Returns the number of spatial axes of a sliding window, 0 if no attribute shows it."""
    sizes = (b.attrs.get(name) for name in ("kernel_shape", "strides", "dilations"))
    return next((len(s) for s in sizes if s), len(b.attrs.get("pads") or ()) // 2)


def _length(v: Var | None) -> int:
    """Returns the size of a vector, 0 if it is not known."""
    size = v.shape[0] if v is not None and v.shape is not None and len(v.shape) == 1 else None
    return size if isinstance(size, int) else 0


def _rank(v: Var | None) -> int | None:
    return None if v is None else v.rank
