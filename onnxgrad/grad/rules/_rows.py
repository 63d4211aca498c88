"""Adding rows up at run-time places: what gathering sends back.

ScatterND with reduction "add" would be the shortest, but onnxruntime 1.31's CPU kernel lets several threads add to
the same place at once and loses additions. It is used where no place occurs twice; ScatterElements adds in order. Over
a flat array that is the faster of its forms, 2 times slower than ScatterND.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto

from onnxgrad.grad.accumulate import reshape_like, zeros_like
from onnxgrad.ir.block import Var
from onnxgrad.ir.ops import constant, op
from onnxgrad.ir.types import element_count

# a line of indices longer than this is counted at run time instead of stored
_STORED = 1 << 12


def add_rows(data: Var, rows: Var, g: Var, *, distinct: bool = False) -> Var:
    """Zeros like `data` [R, *rest], with each g[i] added to its row rows[i]; rows [*places], g [*places, *rest].

    Rows may be negative. `distinct`: no row occurs twice.
    """
    if rows.dtype != TensorProto.INT64:
        rows = op.Cast(rows, to=TensorProto.INT64)
    if distinct or _all_differ(rows, data):
        placed: Var = op.ScatterND(zeros_like(data), op.Unsqueeze(rows, [-1]), g, reduction="add")
        return placed
    flat = op.Reshape(g, [-1])
    at = rows
    if data.rank != 1:
        width, line = _line(data)
        at = op.Add(op.Mul(op.Unsqueeze(rows, [-1]), width), line)
    summed = op.ScatterElements(_flat_zeros(data), op.Reshape(at, [-1]), flat, axis=0, reduction="add")
    return summed if data.rank == 1 else reshape_like(summed, data)


def _line(data: Var) -> tuple[Any, Var]:
    """How many elements a row has, and their numbers within it."""
    width = element_count(None if data.shape is None else data.shape[1:])
    if width is not None and width <= _STORED:
        return np.int64(width), constant(np.arange(width, dtype=np.int64))
    if width is not None:
        return np.int64(width), op.Range(np.int64(0), np.int64(width), np.int64(1))
    size = op.ReduceProd(op.Shape(data, start=1), keepdims=0)
    return size, op.Range(np.int64(0), size, np.int64(1))


def _flat_zeros(data: Var) -> Var:
    """As many zeros as `data` has elements."""
    count = element_count(data.shape)
    shape = constant(np.array([count], np.int64)) if count is not None else op.Reshape(op.Size(data), [1])
    zeros: Var = op.ConstantOfShape(shape)
    return zeros if data.dtype == TensorProto.FLOAT else op.Cast(zeros, to=data.dtype)


def _all_differ(rows: Var, data: Var) -> bool:
    """No row occurs twice, counted from either end."""
    places, count = rows.const, data.shape[0] if data.shape else None
    if places is None:
        return False
    if isinstance(count, int):
        places = places % count
    elif places.min(initial=0) < 0:
        return False
    return len(np.unique(places)) == places.size
