"""Slice: its adjoint is a Pad, or a scattering where the steps are not 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from onnxgrad.grad.registry import vjp
from onnxgrad.grad.rules._common import from_front, pad
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.like import reshape_like, zeros_like
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import Dim, same_shape
from onnxgrad.ir.var import Var


def _slice(
    g: Var, y: Var, data: Var, starts: Any, ends: Any, axes: Any, steps: Any, binding: Binding
) -> Var:
    """y = data[starts : ends : steps] along axes: with steps of 1 zeros lie around g, else g is put
    where y came from.

    d data = Pad(g, before, after), where before = starts and after = size of data - size of y -
    before, axis by axis
    """
    if _takes_everything(data, y, steps):
        return op.Slice(g, *binding.inputs[1:])
    plain = steps is None or (not isinstance(steps, Var) and all(s == 1 for s in steps))
    known = not isinstance(starts, Var) and not isinstance(axes, Var)
    if not (plain and known and data.rank is not None):
        return _scatter_slice(g, data, binding)
    sliced = range(len(starts)) if axes is None else [from_front(a, data.rank) for a in axes]
    start = dict(zip(sliced, starts))
    sizes = zip(data.shape or (), y.shape or (None,) * data.rank)
    pads = [
        _before_and_after(start.get(axis), size, taken) for axis, (size, taken) in enumerate(sizes)
    ]
    around = [p for p in pads if p is not None]
    if len(around) < len(pads):
        return _pad_at_run_time(g, data, y, [start.get(axis, 0) for axis in range(data.rank)])
    before, after = [p[0] for p in around], [p[1] for p in around]
    return pad(g, [*before, *after]) if any(before) or any(after) else g


def _takes_everything(data: Var, y: Var, steps: Any) -> bool:
    """Forwards or backwards: as it was taken it is put back."""
    turned = isinstance(steps, Sequence) and all(abs(s) == 1 for s in steps)
    return turned and same_shape(data.shape, y.shape)


def _before_and_after(start: int | None, size: Dim, taken: Dim) -> tuple[int, int] | None:
    """How many elements of an axis come before and after those taken; None where that shows at run
    time only.

    start: None where the axis is not sliced.
    """
    if start and not isinstance(size, int):
        return None
    before = (
        min(max(start + size if start < 0 else start, 0), size)
        if start and isinstance(size, int)
        else 0
    )
    if isinstance(size, int) and isinstance(taken, int):
        return before, size - taken - before
    return (0, 0) if start is None else None


def _pad_at_run_time(g: Var, x: Var, y: Var, starts: Sequence[int]) -> Var:
    """The same with sizes that only the run knows."""
    size = op.Shape(x)
    wanted = np.array(starts, np.int64)
    offset = op.Add(size, np.minimum(wanted, 0)) if (wanted < 0).any() else None
    if offset is None:
        before = op.Min(wanted, size)
    else:
        before = op.Min(op.Where(wanted < 0, op.Max(offset, np.zeros(1, np.int64)), wanted), size)
    after = op.Sub(op.Sub(size, op.Shape(y)), before)
    return pad(g, op.Concat(before, after, axis=0))


def _scatter_slice(g: Var, x: Var, binding: Binding) -> Var:
    """Slice the numbers of the elements like the elements, and put each part of g at its number."""
    numbers = op.Reshape(op.Range(np.int64(0), op.Size(x), np.int64(1)), op.Shape(x))
    taken = op.Slice(numbers, *binding.inputs[1:])
    flat_zeros = op.Reshape(zeros_like(x), [-1])
    flat = op.ScatterElements(flat_zeros, op.Reshape(taken, [-1]), op.Reshape(g, [-1]), axis=0)
    return reshape_like(flat, x)


vjp("Slice", _slice)
