"""Where the axes of an operand are in the result, by operator.

`carried(b, k)` maps each axis of operand k to an axis of the first result: an element of the
operand at index i of its axis reaches only elements at index i of that axis of the result. An axis
that is contracted, mixed, cut, repeated or moved to other indices has no such axis.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.domains import BROADCASTING, ELEMENTWISE, REDUCTIONS
from onnxgrad.ir.types import Shape, same_dim
from onnxgrad.ir.var import Var

# for each axis of the operand its axis in the result, or None
AxisMap: TypeAlias = "tuple[int | None, ...]"
_Rule: TypeAlias = Callable[[Binding, int, Shape, Shape], "AxisMap | None"]


def carried(b: Binding, slot: int) -> AxisMap | None:
    """Returns the axis map of an operand; None if the operator is not in the table, or if a rank is
    unknown.
    """
    rule = _RULES.get(b.op) if not b.domain else None
    x, y = b.operand(slot), b.outputs[0] if b.outputs else None
    if rule is None or x is None or y is None or x.shape is None or y.shape is None:
        return None
    return rule(b, slot, x.shape, y.shape)


def _aligned(b: Binding, slot: int, x: Shape, y: Shape) -> AxisMap:
    """Axes are aligned at the end. An axis of size 1 that is repeated is not carried."""
    ahead = len(y) - len(x)
    return tuple(i + ahead if same_dim(d, y[i + ahead]) else None for i, d in enumerate(x))


def _of_first(rule: _Rule) -> _Rule:
    """Returns the rule for the first operand alone."""
    return lambda b, slot, x, y: rule(b, slot, x, y) if slot == 0 else None


def _except(*mixed: int) -> Callable[[Shape], AxisMap]:
    return lambda x: tuple(None if i in {m % len(x) for m in mixed} else i for i in range(len(x)))


def _softmax(b: Binding, slot: int, x: Shape, y: Shape) -> AxisMap:
    axis = b.attr("axis") % max(len(x), 1)
    last = axis + 1 if b.version >= 13 else len(x)
    return tuple(None if axis <= i < last else i for i in range(len(x)))


def _along_axis(b: Binding, slot: int, x: Shape, y: Shape) -> AxisMap | None:
    axis = b.attr("axis", -1)
    given = b.operand(1) if b.op in ("CumSum", "CumProd") else None
    if given is not None:
        if given.ints is None:
            return None
        axis = given.ints[0]
    return _except(axis)(x)


def _reduction(b: Binding, slot: int, x: Shape, y: Shape) -> AxisMap | None:
    axes = reduced_axes(b, len(x))
    if axes is None:
        return None
    keeps, found, at = b.attr("keepdims", 1), [], 0
    for i in range(len(x)):
        found.append(None if i in axes else i if keeps else at)
        at += i not in axes
    return tuple(found)


def reduced_axes(b: Binding, rank: int) -> set[int] | None:
    """Returns the axes that a reduction of an operand of this rank reduces; None if they are
    unknown.
    """
    given, axes = b.operand(1), b.attrs.get("axes")
    if given is not None:
        axes = given.ints
        if axes is None:
            return None
    if not axes:
        return set() if b.attr("noop_with_empty_axes", 0) else set(range(rank))
    return {a % rank for a in axes} if rank else set()


def _transpose(b: Binding, slot: int, x: Shape, y: Shape) -> AxisMap:
    perm = list(b.attr("perm"))
    return tuple(perm.index(i) for i in range(len(x)))


def _reshape(b: Binding, slot: int, x: Shape, y: Shape) -> AxisMap:
    """Equal leading and equal trailing axes keep their indices; axes of size 1 do not count."""
    found: list[int | None] = [None] * len(x)
    for backwards in (False, True):
        rows = _long(x), _long(y)
        for i, j in zip(*(reversed(r) if backwards else r for r in rows)):
            if not same_dim(x[i], y[j]) or x[i] is None:
                break
            found[i] = j
    return tuple(found)


def _long(shape: Shape) -> list[int]:
    return [i for i, d in enumerate(shape) if d != 1]


def _concat(b: Binding, slot: int, x: Shape, y: Shape) -> AxisMap:
    return _except(b.attr("axis", 0))(x)


def _slice(b: Binding, slot: int, x: Shape, y: Shape) -> AxisMap | None:
    axes, starts = b.operand(3), b.operand(1)
    if axes is not None:
        return None if axes.ints is None else _except(*axes.ints)(x)
    count = None if starts is None or not starts.shape else starts.shape[0]
    return _except(*range(count))(x) if isinstance(count, int) else None


def _gather(b: Binding, slot: int, x: Shape, y: Shape) -> AxisMap:
    axis, more = b.attr("axis", 0) % len(x), len(y) - len(x)
    return tuple(i if i < axis else None if i == axis else i + more for i in range(len(x)))


def _matmul(b: Binding, slot: int, x: Shape, y: Shape) -> AxisMap | None:
    other = b.operand(1 - slot)
    if other is None or other.shape is None or min(len(x), len(other.shape)) < 2:
        return None
    batch = _aligned(b, slot, x, y)[: len(x) - 2]
    return (*batch, len(y) - 2, None) if slot == 0 else (*batch, None, len(y) - 1)


def _gemm(b: Binding, slot: int, x: Shape, y: Shape) -> AxisMap:
    if slot == 2:
        return _aligned(b, slot, x, y)
    turned = bool(b.attr("transB" if slot else "transA"))
    kept = slot  # the result's axis: rows of the first operand, columns of the second
    return (None, kept) if turned == (slot == 0) else (kept, None)


def _convolution(b: Binding, slot: int, x: Shape, y: Shape) -> AxisMap:
    """Samples are the first axis; the weight's first axis is the result's channels."""
    none: list[int | None] = [None] * (len(x) - 1)
    return (0 if slot == 0 else 1 if slot == 2 or b.op == "Conv" else None, *none)


def _samples(b: Binding, slot: int, x: Shape, y: Shape) -> AxisMap:
    return tuple(
        i if i < (1 if b.op == "GroupNormalization" else 2) else None for i in range(len(x))
    )


def _batch_norm(b: Binding, slot: int, x: Shape, y: Shape) -> AxisMap | None:
    if b.attr("training_mode", 0):
        return None
    return tuple(range(len(x))) if slot == 0 else (1,)


def _row_norm(b: Binding, slot: int, x: Shape, y: Shape) -> AxisMap:
    axis = b.attr("axis", -1) % len(y)
    aligned = _aligned(b, slot, x, y)
    return tuple(i if slot or (i is not None and i < axis) else None for i in aligned)


def _einsum(b: Binding, slot: int, x: Shape, y: Shape) -> AxisMap | None:
    terms, arrow, result = str(b.attr("equation")).replace(" ", "").partition("->")
    term = terms.split(",")[slot]
    if not arrow or "." in terms or len(set(term)) < len(term):
        return None
    return tuple(result.index(letter) if letter in result else None for letter in term)


# they keep the order of all elements
RESHAPES = frozenset({"Flatten", "Reshape", "Squeeze", "Unsqueeze"})
_RULES: dict[str, _Rule] = {
    **dict.fromkeys(ELEMENTWISE, _of_first(_aligned)),
    **dict.fromkeys(BROADCASTING, _aligned),
    **dict.fromkeys(REDUCTIONS, _of_first(_reduction)),
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax"), _softmax),
    **dict.fromkeys(("CumSum", "CumProd", "LpNormalization"), _of_first(_along_axis)),
    **dict.fromkeys(RESHAPES, _of_first(_reshape)),
    **dict.fromkeys(("Conv", "ConvTranspose"), _convolution),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization"), _row_norm),
    **dict.fromkeys(("InstanceNormalization", "GroupNormalization"), _of_first(_samples)),
    **dict.fromkeys(
        ("AveragePool", "GlobalAveragePool", "GlobalMaxPool", "LpPool", "GlobalLpPool", "MaxPool"),
        _of_first(_samples),
    ),
    "BatchNormalization": _batch_norm,
    "Concat": _concat,
    "Dropout": _of_first(_aligned),
    "Einsum": _einsum,
    "Expand": _of_first(_aligned),
    "Gather": _of_first(_gather),
    "Gemm": _gemm,
    "MatMul": _matmul,
    "Slice": _of_first(_slice),
    "Split": _concat,
    "Transpose": _transpose,
}


def on_axes(v: Var) -> tuple[int, ...] | None:
    """Returns the axes along which a value may vary: those whose size is not 1."""
    return None if v.shape is None else tuple(i for i, d in enumerate(v.shape) if d != 1)
