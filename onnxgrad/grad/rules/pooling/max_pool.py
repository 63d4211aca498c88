"""MaxPool and GlobalMaxPool: each adjoint goes to the first maximum (MaxPool's own Indices)."""

from __future__ import annotations

from collections.abc import Sequence

from onnxgrad.grad.registry import vjp
from onnxgrad.grad.rules.indexing._scatter import scatter_elements
from onnxgrad.ir.like import reshape_like, zeros_like
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var


def _max_pool(g: Sequence[Var | None], y: Sequence[Var], x: Var, storage_order: int) -> Var | None:
    if g[0] is None:
        return None
    indices = _row_major(y[1], x) if storage_order else y[1]
    flat = scatter_elements(
        op.Reshape(zeros_like(x), [-1]),
        op.Reshape(indices, [-1]),
        op.Reshape(g[0], [-1]),
        axis=0,
        reduction="add",
    )
    return reshape_like(flat, x)


def _row_major(indices: Var, x: Var) -> Var:
    """Column-major places within each channel of (N, C, H, W) as row-major ones."""
    height, width = op.Shape(x, start=2, end=3), op.Shape(x, start=3, end=4)
    within = op.Mod(indices, height * width)
    return indices - within + op.Mod(within, height) * width + op.Div(within, height)


vjp("MaxPool", _max_pool, notes="equal maxima: the first")


def _global_max(g: Var, y: Var, x: Var) -> Var:
    rows = op.Reshape(x, [0, 0, -1])
    first = op.ArgMax(rows, axis=2, keepdims=1)
    return reshape_like(
        op.ScatterElements(zeros_like(rows), first, op.Reshape(g, [0, 0, -1]), axis=2), x
    )


vjp("GlobalMaxPool", _global_max, notes="equal maxima: the first")
