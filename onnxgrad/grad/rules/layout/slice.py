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
from onnxgrad.ir.var import Var


def _slice(g: Var, y: Var, x: Var, starts: Any, ends: Any, axes: Any, steps: Any, binding: Binding) -> Var:
    """Zeros around: one Pad with steps of 1, else the slice of the element numbers says where to put each."""
    plain = steps is None or (not isinstance(steps, Var) and all(s == 1 for s in steps))
    known = not isinstance(starts, Var) and not isinstance(axes, Var)
    if not (plain and known and x.rank is not None):
        return _scatter_slice(g, x, binding)
    rank = x.rank
    over = [from_front(a, rank) for a in (range(len(starts)) if axes is None else axes)]
    first = dict(zip(over, starts))
    before: list[int] = []
    for i, d in enumerate(x.shape or ()):
        s = first.get(i, 0)
        if s != 0 and not isinstance(d, int):
            return _pad_at_run_time(g, x, y, [first.get(k, 0) for k in range(rank)])
        before.append(s if s == 0 or not isinstance(d, int) else min(max(s + d if s < 0 else s, 0), d))
    after: list[int] = []
    for i, (d, part) in enumerate(zip(x.shape or (), y.shape or (None,) * rank)):
        if isinstance(d, int) and isinstance(part, int):
            after.append(d - part - before[i])
        elif i not in first:
            after.append(0)
        else:
            return _pad_at_run_time(g, x, y, [first.get(k, 0) for k in range(rank)])
    if not any(before) and not any(after):
        return g
    return pad(g, [*before, *after])


def _pad_at_run_time(g: Var, x: Var, y: Var, starts: Sequence[int]) -> Var:
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
