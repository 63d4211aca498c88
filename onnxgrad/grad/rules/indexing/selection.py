"""Compress, Unique and OneHot: elements selected by a condition, as distinct ones, by number."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto

from onnxgrad.grad.registry import vjp
from onnxgrad.grad.rules._common import where
from onnxgrad.grad.rules.indexing._rows import add_rows
from onnxgrad.grad.rules.indexing.gather import gather as gather_gradient
from onnxgrad.ir.like import reshape_like
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var


def _flat_gather(g: Var, x: Var, places: Var) -> Var:
    """The gradient of x.reshape(-1)[places], the places all different."""
    return reshape_like(add_rows(op.Reshape(x, [-1]), places, g, distinct=True), x)


def _compress(g: Var, y: Var, x: Var, condition: Var, axis: int | None = None) -> Var:
    """Compress(x, c) gathers x where c holds."""
    places = op.Reshape(op.NonZero(condition), [-1])
    return _flat_gather(g, x, places) if axis is None else gather_gradient(g, y, x, places, axis)


vjp("Compress", _compress)


def _unique(g: Any, y: Any, x: Var, axis: int | None = None) -> Any:
    """The values are gathered from their first places."""
    if g[0] is None:
        return None
    return (
        _flat_gather(g[0], x, y[1]) if axis is None else gather_gradient(g[0], y[0], x, y[1], axis)
    )


vjp("Unique", _unique, notes="equal elements: the first one receives everything")


def _one_hot_values(g: Var, y: Var, indices: Var, depth: Var, values: Var, axis: int) -> Var:
    """(off, on): g summed where the result is off, and where it is on."""
    on = op.OneHot(indices, depth, np.array([0, 1], np.float32), axis=axis)
    mask = op.Cast(on, to=TensorProto.BOOL)
    parts = [
        op.Reshape(op.ReduceSum(where(m, g, 0.0), keepdims=0), [1]) for m in (op.Not(mask), mask)
    ]
    return op.Concat(*parts, axis=0)


vjp("OneHot", None, None, _one_hot_values)
