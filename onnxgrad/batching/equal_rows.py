"""Shared values in a file of several rows, reduced to one row if all their rows are equal."""

from __future__ import annotations

import numpy as np

from onnxgrad.batching.layout import Refused
from onnxgrad.ir.domains import BROADCASTING, ELEMENTWISE
from onnxgrad.ir.emission.emit import constant
from onnxgrad.ir.ops import op
from onnxgrad.ir.sizes import exactly
from onnxgrad.ir.var import Var

_DEPTH = 8  # the most nodes that are followed upwards


def one_row(v: Var, axis: int, count: int) -> Var:
    """Returns a value with one of its `count` rows on an axis. Raises Refused if they may
    differ.
    """
    shape = v.shape or ()
    inner = exactly(shape[axis], count) if axis < len(shape) else None
    if inner is None:
        raise Refused(f"'{v.name}' is shared by all rows, but axis {axis} does not hold {count}")
    if v.const is not None:
        array = v.const
        rows = array.reshape(*array.shape[:axis], count, -1, *array.shape[axis + 1 :])
        first = np.take(rows, 0, axis)
        if any(first.tobytes() != np.take(rows, i, axis).tobytes() for i in range(1, count)):
            raise Refused(f"the {count} rows of constant '{v.name}' differ")
        return constant(first, v.dtype)
    if not isinstance(inner, int) or not _repeats(v, axis, count, _DEPTH):
        raise Refused(f"the {count} rows of '{v.name}' may differ")
    ends = [np.array([number], np.int64) for number in (0, inner, axis)]
    made: Var = op.Slice(v, *ends)
    return made


def _repeats(v: Var, axis: int, count: int, depth: int) -> bool:
    """Whether an axis of a value repeats one part `count` times, by the nodes that compute it."""
    b, shape = v.definition, v.shape or ()
    if v.const is not None:
        array = v.const
        parts = np.reshape(array, (*array.shape[:axis], count, -1, *array.shape[axis + 1 :]))
        return bool((parts == np.take(parts, [0], axis)).all())
    if b is None or not depth or b.domain:
        return False
    x = b.inputs[0] if b.inputs else None
    if b.op == "ConstantOfShape":
        return True
    if b.op == "Transpose" and x is not None:
        return _repeats(x, b.attr("perm")[axis], count, depth - 1)
    if b.op == "Tile" and x is not None and b.version > 1:
        times = b.inputs[1].const if b.inputs[1] is not None else None
        return times is not None and int(times[axis]) == count
    if b.op == "Expand":
        return _broadcast(v, x, axis, count, depth)
    if b.op == "MatMul" and axis >= len(shape) - 2:
        return False
    return b.op in _ELEMENTWISE and all(_broadcast(v, y, axis, count, depth) for y in b.inputs)


def _broadcast(v: Var, operand: Var | None, axis: int, count: int, depth: int) -> bool:
    """Whether an operand that broadcasts to `v` repeats along the axis."""
    if operand is None or operand.shape is None:
        return False
    at = axis - (v.rank or 0) + len(operand.shape)
    return at < 0 or operand.shape[at] == 1 or _repeats(operand, at, count, depth - 1)


_ELEMENTWISE = frozenset((*ELEMENTWISE, *BROADCASTING, "MatMul"))
