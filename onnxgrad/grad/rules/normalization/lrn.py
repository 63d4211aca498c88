"""LRN: local response normalization over a window of channels."""

from __future__ import annotations

import numpy as np

from onnxgrad.errors import InputError
from onnxgrad.grad.registry import vjp
from onnxgrad.grad.rules._common import pad
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var


def _window_sum(v: Var, before: int, after: int) -> Var:
    """Along the channels: the sum from `before` channels ahead to `after` behind."""
    rank = v.rank or 0
    ends = [[0] * rank, [0] * rank]
    ends[0][1], ends[1][1] = before, after
    padded = pad(v, [*ends[0], *ends[1]])
    channels = op.Shape(v, start=1, end=2)
    size = before + after + 1
    parts = [
        op.Slice(padded, [i], op.Add(channels, np.array([i], np.int64)), [1]) for i in range(size)
    ]
    return op.Sum(*parts)


def _lrn(
    g: Var, y: Var, x: Var, size: int, alpha: float, beta: float, bias: float, binding: Binding
) -> Var:
    """y = x s^-b, s = bias + a/n sum x²: dx = g s^-b - 2ab/n x W'(g x s^(-b-1)), W' the mirrored
    window.
    """
    if x.rank is None:
        raise InputError(f"the gradient of '{binding}' needs an operand of known rank")
    before, after = (size - 1) // 2, size - 1 - (size - 1) // 2
    s = _window_sum(x * x, before, after) * (alpha / size) + bias
    inner = _window_sum(g * x * op.Pow(s, -beta - 1.0), after, before)
    return g * op.Pow(s, -beta) - x * inner * (2.0 * alpha * beta / size)


vjp("LRN", _lrn)
