"""Operators that can compute on transposed values: f(x) transposed = f'(x transposed).

`perm` is the new order of axes: axis j of a transposed value is axis perm[j] of the original value.
f' is f with its axes, pads and constants in the new order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from onnxgrad.frozen import frozen
from onnxgrad.ir.axis_maps import OPERAND_OF_AXES, flattens, named_axes
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


@frozen
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


def _along(b: Binding, perm: Perm) -> Moved | None:
    """The axes that a node names, in the other order. If they are dropped, the other axes must keep
    their order.
    """
    named, last = named_axes(b, len(perm)), len(perm) - 1
    if b.op in _DROPPING and b.operand(1) is None and "axes" not in b.attrs:
        return None
    if named is None or len({*named}) < len(named) or flattens(b):
        return None
    if b.op in ("LogSoftmax", "Softmax") and named == [last] and perm[-1] != last:
        return None  # along another axis than the last one, runtimes transpose internally
    keeps = b.op != "Squeeze" and bool(b.attr("keepdims", 1))
    left = [a for a in perm if a not in named]
    if not keeps and left != sorted(left):
        return None
    moved = [perm.index(a) for a in named]
    data = range(len(b.inputs)) if b.op == "Concat" else range(1)
    return Moved(tuple(data), keeps, lambda operands: _with_axes(b, operands, moved))


def _with_axes(b: Binding, operands: list[Var | None], named: list[int]) -> Any:
    if b.attr("axis") is not None:
        return operands, {"axis": named[0]}
    named = named if b.op == "Slice" else sorted(named)
    like = b.operand(1)  # the axes, or the starts of a Slice, which have the dtype of the axes
    if like is None:
        return operands, {"axes": named}
    at = OPERAND_OF_AXES[b.op]
    whole = [*operands, *[None] * (at + 1 - len(operands))]
    whole[at] = constant(np.array(named, np.int64), like.dtype, name="axes")
    return whole, {}


def _pad(b: Binding, perm: Perm) -> Moved | None:
    named, pads = named_axes(b, len(perm)), b.operand(1)
    known = None if pads is None else pads.ints
    if named is None or known is None or len(known) != 2 * len({*named}):
        return None
    both = {a: (known[i], known[i + len(named)]) for i, a in enumerate(named)}
    sizes = [both.get(a, (0, 0))[end] for end in (0, 1) for a in perm]

    def changed(operands: list[Var | None]) -> Any:
        return [operands[0], constant(np.array(sizes, np.int64), name="pads"), *operands[2:3]], {}

    return Moved((0,), True, changed)


_DROPPING = (*REDUCTIONS, "Squeeze")
_RULES: dict[str, Callable[[Binding, Perm], Moved | None]] = {
    **dict.fromkeys(_UNARY, lambda b, perm: Moved((0,), True, _as_it_is)),
    **dict.fromkeys(_NARY, _nary),
    **dict.fromkeys(("DequantizeLinear", "QuantizeLinear"), _quantized),
    **dict.fromkeys((*_DROPPING, "Concat", "LogSoftmax", "Slice", "Softmax", "Split"), _along),
    "Pad": _pad,
}
