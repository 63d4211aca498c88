"""Tile, Trilu and ReverseSequence."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxgrad.grad.registry import vjp
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var


def _tile(g: Var, y: Var, x: Var, repeats: Any) -> Var:
    """The sum over the copies: g as (r0, d0, r1, d1, ...), summed over the r's."""
    counts = repeats if isinstance(repeats, Var) else np.array(repeats, np.int64)
    shape = op.Shape(x)
    pairs = op.Reshape(op.Concat(op.Unsqueeze(counts, [1]), op.Unsqueeze(shape, [1]), axis=1), [-1])
    spread = op.Reshape(g, pairs, allowzero=1)
    if x.rank is not None:
        return g if x.rank == 0 else op.ReduceSum(spread, list(range(0, 2 * x.rank, 2)), keepdims=0)
    over = op.Range(np.int64(0), op.Size(pairs), np.int64(2))
    return op.ReduceSum(spread, over, keepdims=0, noop_with_empty_axes=1)


vjp("Tile", _tile)


vjp("Trilu", lambda g, y, x, k, upper: op.Trilu(g, _as_operand(k), upper=upper))


def _as_operand(k: Any) -> Any:
    """A scalar operand that may have arrived as a tuple of one constant."""
    return np.array(k, np.int64).reshape(()) if isinstance(k, tuple) else k


vjp(
    "ReverseSequence",
    lambda g, y, x, lengths, batch_axis, time_axis: op.ReverseSequence(
        g, lengths, batch_axis=batch_axis, time_axis=time_axis
    ),
)
