"""Values that all rows share in a file of several rows: if every row is the same, one is enough."""

from __future__ import annotations

import numpy as np

from onnxgrad.ir.emission.emit import constant
from onnxgrad.ir.ops import op
from onnxgrad.ir.sizes import exactly
from onnxgrad.ir.var import Var
from onnxgrad.transform.batching.layout import Refused

_DEPTH = 8  # nodes that are followed upwards


def one_row(v: Var, axis: int, count: int) -> Var:
    """A value with one of its `count` rows on an axis. Raises Refused if they may differ."""
    shape = v.shape or ()
    inner = exactly(shape[axis], count) if axis < len(shape) else None
    if inner is None:
        raise Refused(f"'{v.name}' is shared, and has no {count} rows on axis {axis}")
    if v.const is not None:
        array = v.const
        rows = array.reshape(*array.shape[:axis], count, -1, *array.shape[axis + 1 :])
        first = np.take(rows, 0, axis)
        if any(first.tobytes() != np.take(rows, i, axis).tobytes() for i in range(1, count)):
            raise Refused(f"the {count} rows of constant '{v.name}' differ")
        return constant(first, v.dtype)
    if not isinstance(inner, int) or not _same(v, axis, _DEPTH):
        raise Refused(f"the {count} rows of '{v.name}' may differ")
    ends = [np.array([number], np.int64) for number in (0, inner, axis)]
    made: Var = op.Slice(v, *ends)
    return made


def _same(v: Var, axis: int, depth: int) -> bool:
    """Whether a value is the same all along an axis, by the node that computes it."""
    b = v.definition
    if v.const is not None:
        array = v.const
        return bool((array == np.take(array, [0], axis)).all())
    if b is None or not depth or b.domain:
        return False
    if b.op == "ConstantOfShape":
        return True
    if b.op == "Expand":
        return _broadcast(v, b.inputs[0], axis, depth)
    return b.op in _ELEMENTWISE and all(_broadcast(v, x, axis, depth) for x in b.inputs)


def _broadcast(v: Var, operand: Var | None, axis: int, depth: int) -> bool:
    """Whether an operand that broadcasts to `v` brings nothing that differs along its axis."""
    if operand is None or operand.shape is None:
        return False
    at = axis - (v.rank or 0) + len(operand.shape)
    return at < 0 or operand.shape[at] == 1 or _same(operand, at, depth - 1)


# fmt: off
_ELEMENTWISE = frozenset({
    "Add", "And", "Cast", "Div", "Equal", "Exp", "Greater", "GreaterOrEqual", "Less", "LessOrEqual",
    "Mul", "Neg", "Not", "Or", "Pow", "Sqrt", "Sub", "Where", "Xor",
})
# fmt: on
