"""Operators that can compute on transposed values: f(x) transposed = f'(x transposed).

`perm` is the new order of axes: axis j of a transposed value is axis perm[j] of the original value.
f' is f with its axes, pads and constants in the new order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.domains import ACTIVATIONS, BITWISE, BROADCASTING, REDUCTIONS
from onnxgrad.ir.emission.emit import constant
from onnxgrad.ir.types import element_count
from onnxgrad.ir.var import Var
from onnxgrad.laws.fold_scale_axis.scale import again

Perm = tuple[int, ...]
# the largest constant, in bytes, that is transposed at once although others read it
_LARGEST = 1 << 20

_UNARY = ("Cast", "Identity", "Not", *ACTIVATIONS)
_NARY = tuple(op for op in BROADCASTING if op not in BITWISE)


@dataclass(frozen=True)
class Moved:
    """How a binding computes in the other order: which operands must be in that order, what to
    emit, and whether the results are in that order as well.
    """

    data: tuple[int, ...]
    carries: bool
    changed: Callable[[list[Var | None]], Any]

    def emit(self, b: Binding, operands: Sequence[Var | None]) -> tuple[Var, ...]:
        """Emits the binding on `operands`, of which those in `data` are transposed. Returns the
        results.
        """
        inputs, attrs = self.changed(list(operands))
        return again(b, inputs, attrs, outputs=len(b.outputs))


def permeable(b: Binding, perm: Perm) -> Moved | None:
    """How `b` computes on values of rank len(perm) in that order; None if it cannot."""
    rule = _RULES.get(b.op)
    if b.domain or rule is None or b.has_refs or b.version < 7 or None in b.outputs:
        return None
    if any(isinstance(value, tuple) and not value for value in b.attrs.values()):
        return None
    x = b.inputs[0] if b.inputs else None
    if x is None or (b.op not in _NARY and x.rank != len(perm)):
        return None
    return rule(b, perm)


def transposed_constant(v: Var, perm: Perm) -> Var | None:
    """A constant that broadcasts with values of this rank, in the other order. None if `v` is not
    constant, or is large and has other readers.
    """
    array = v.const if v.is_constant else None
    if array is None or array.ndim > len(perm) or (v.use_count > 1 and array.nbytes > _LARGEST):
        return None
    wide = array.reshape([1] * (len(perm) - array.ndim) + [*array.shape])
    return constant(np.ascontiguousarray(np.transpose(wide, perm)), name=f"{v.name}_transposed")


def is_free(v: Var, perm: Perm) -> bool:
    """Whether `v` is a constant that can be transposed at once."""
    small = v.use_count == 1 or (element_count(v.shape) or 0) * 8 <= _LARGEST
    return v.is_constant and v.rank is not None and v.rank <= len(perm) and small


def _as_it_is(operands: list[Var | None]) -> Any:
    return operands, {}


def _quantized(b: Binding, perm: Perm) -> Moved | None:
    """QuantizeLinear and DequantizeLinear with one scale for all elements."""
    scale = b.operand(1)
    return Moved((0,), True, _as_it_is) if scale is not None and scale.shape in ((), (1,)) else None


def _nary(b: Binding, perm: Perm) -> Moved | None:
    data = []
    for i, v in enumerate(b.inputs):
        if v is None or v.shape is None:
            return None
        if v.rank == len(perm):
            data.append(i)
        elif element_count(v.shape) != 1 or (v.rank or 0) > len(perm):
            if not is_free(v, perm):
                return None
            data.append(i)
    return Moved(tuple(data), True, _as_it_is) if b.out.rank == len(perm) else None


def _along_axis(since: int) -> Callable[[Binding, Perm], Moved | None]:
    def rule(b: Binding, perm: Perm) -> Moved | None:
        axis = b.attr("axis")
        if b.version < since or axis is None or not -len(perm) <= axis < len(perm):
            return None
        data = tuple(range(len(b.inputs))) if b.op == "Concat" else (0,)
        moved = {"axis": perm.index(axis % len(perm))}
        return Moved(data, True, lambda operands: (operands, moved))

    return rule


def _softmax(b: Binding, perm: Perm) -> Moved | None:
    """Softmax must stay along the last axis: along another axis, runtimes transpose internally."""
    last = len(perm) - 1
    if b.attr("axis") in (-1, last) and perm[-1] != last:
        return None
    return _along_axis(13)(b, perm)


def _axes(b: Binding, at: int, since: int, rank: int) -> tuple[list[int] | None, bool]:
    """The axes as nonnegative numbers, or None if they are unknown, absent, or one is there twice;
    and whether they are the operand `at`.
    """
    held = b.version >= since
    given = b.operand(at)
    axes = (None if given is None else given.ints) if held else b.attr("axes")
    if not axes or not all(-rank <= a < rank for a in axes):
        return None, held
    known = [a % rank for a in axes]
    return (known if len({*known}) == len(known) else None), held


def _with_axes(
    operands: list[Var | None], at: int, axes: list[int], held: bool
) -> tuple[list[Var | None], dict[str, Any]]:
    if not held:
        return operands, {"axes": axes}
    whole = [*operands, *[None] * (at + 1 - len(operands))]
    whole[at] = constant(np.array(axes, np.int64), name="axes")
    return whole, {}


def _dropping(b: Binding, since: int, perm: Perm, keeps: bool) -> Moved | None:
    """Reductions and Squeeze, with their axes moved. If the axes are dropped, the other axes must
    keep their order.
    """
    axes, held = _axes(b, 1, since, len(perm))
    if axes is None:
        return None
    if not keeps:
        left = [a for a in perm if a not in axes]
        if left != sorted(left):
            return None
    moved = sorted(perm.index(a) for a in axes)
    return Moved((0,), keeps, lambda operands: _with_axes(operands, 1, moved, held))


def _pad(b: Binding, perm: Perm) -> Moved | None:
    pads, rank = b.operand(1), len(perm)
    known = None if pads is None else pads.ints
    if b.version < 11 or known is None:
        return None
    axes = [*range(rank)]
    if b.operand(3) is not None:
        named, _ = _axes(b, 3, 18, rank)
        if named is None:
            return None
        axes = named
    if len(known) != 2 * len(axes):
        return None
    both = {a: (known[i], known[i + len(axes)]) for i, a in enumerate(axes)}
    moved = [both.get(a, (0, 0)) for a in perm]
    sizes = [before for before, _ in moved] + [after for _, after in moved]

    def changed(operands: list[Var | None]) -> Any:
        return [operands[0], constant(np.array(sizes, np.int64), name="pads"), *operands[2:3]], {}

    return Moved((0,), True, changed)


def _slice(b: Binding, perm: Perm) -> Moved | None:
    if b.version < 10 or b.operand(1) is None:
        return None
    shape = b.inputs[1].shape if b.inputs[1] is not None else None
    count = shape[0] if shape is not None and len(shape) == 1 else None
    axes = [*range(count)] if b.operand(3) is None and isinstance(count, int) else None
    if axes is None:
        axes, _ = _axes(b, 3, 10, len(perm))
    if axes is None:
        return None
    moved = [perm.index(a) for a in axes]
    return Moved((0,), True, lambda operands: _with_axes(operands, 3, moved, True))


_RULES: dict[str, Callable[[Binding, Perm], Moved | None]] = {
    **dict.fromkeys(_UNARY, lambda b, perm: Moved((0,), True, _as_it_is)),
    **dict.fromkeys(_NARY, _nary),
    **dict.fromkeys(
        REDUCTIONS,
        lambda b, perm: _dropping(
            b, 13 if b.op == "ReduceSum" else 18, perm, bool(b.attr("keepdims", 1))
        ),
    ),
    "Concat": _along_axis(4),
    "DequantizeLinear": _quantized,
    "LogSoftmax": _softmax,
    "Pad": _pad,
    "QuantizeLinear": _quantized,
    "Slice": _slice,
    "Softmax": _softmax,
    "Split": _along_axis(2),
    "Squeeze": lambda b, perm: _dropping(b, 13, perm, False),
}
