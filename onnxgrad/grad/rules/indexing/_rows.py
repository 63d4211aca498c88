"""Adding rows up at run-time places: what gathering sends back.

ScatterND with reduction "add" would be the shortest, but onnxruntime 1.31's CPU kernel lets several
threads add to the same place at once and loses additions. It is used where no place occurs twice;
ScatterElements adds in order. Over a flat array that is the faster of its forms, 2 times slower
than ScatterND.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto

from onnxgrad.grad.rules._common import pad
from onnxgrad.grad.rules.indexing._scatter import scatter_elements, scatter_nd, zeros
from onnxgrad.ir.emission.constant import constant
from onnxgrad.ir.like import reshape_like, zeros_like
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import element_count, is_static
from onnxgrad.ir.var import Var

# what gives elements of its first operand and nothing else
_KEEP_A_FILL = frozenset(
    {"Cast", "Expand", "Gather", "GatherElements", "Reshape", "Slice", "Squeeze", "Unsqueeze"}
)
# a line of indices longer than this is counted at run time instead of stored
_STORED = 1 << 12


def add_rows(data: Var, rows: Var, g: Var, *, distinct: bool = False) -> Var:
    """Zeros like `data` [R, *rest], with each g[i] added to its row rows[i]; rows [*places], g
    [*places, *rest].

    Rows may be negative. `distinct`: no row occurs twice.
    """
    if rows.dtype != TensorProto.INT64:
        rows = op.Cast(rows, to=TensorProto.INT64)
    row = _only_row(rows)
    if row is not None and rows.rank and element_count(rows.shape) != 1:
        # the leading axes first: a table of positions has that sum too
        summed = op.ReduceSum(g, list(range(rows.rank - 1)), keepdims=0) if rows.rank > 1 else g
        return add_rows(data, constant(np.array([row])), op.ReduceSum(summed, [0], keepdims=1))
    start = _run(rows, data)
    if start is not None:
        return _placed(data, start, rows, g)
    if distinct or _all_differ(rows, data):
        return scatter_nd(zeros_like(data), op.Unsqueeze(rows, [-1]), g, reduction="add")
    flat = op.Reshape(g, [-1])
    at = rows
    if data.rank != 1:
        width, line = _line(data)
        at = op.Add(op.Mul(op.Unsqueeze(rows, [-1]), width), line)
    summed = scatter_elements(
        _flat_zeros(data), op.Reshape(at, [-1]), flat, axis=0, reduction="add"
    )
    return summed if data.rank == 1 else reshape_like(summed, data)


def _only_row(rows: Var) -> int | None:
    """The one row that is meant every time: a table of token types, of which a model uses the
    first.
    """
    source = rows.definition
    while (
        source is not None
        and not source.domain
        and source.op in _KEEP_A_FILL
        and source.inputs[0] is not None
    ):
        rows = source.inputs[0]
        source = rows.definition
    places = rows.const
    if places is None or not places.size or (places != places.reshape(-1)[0]).any():
        return None
    return int(places.reshape(-1)[0])


def _run(rows: Var, data: Var) -> int | None:
    """The first of known rows that follow each other; None when they do not, or sizes are not
    known.
    """
    places, count = rows.const, data.shape[0] if data.shape else None
    if places is None or not isinstance(count, int) or not places.size:
        return None
    places = places.reshape(-1) % count
    return int(places[0]) if (np.diff(places) == 1).all() else None


def _placed(data: Var, start: int, rows: Var, g: Var) -> Var:
    """The rows of g as they are, with zeros around them."""
    flat = g if rows.rank == 1 else _as_rows(g, data)
    count = data.shape[0] if data.shape else None
    behind = count - start - (element_count(rows.shape) or 0) if isinstance(count, int) else 0
    return pad(flat, [start, behind], [0]) if start or behind else flat


def _as_rows(g: Var, data: Var) -> Var:
    """g [*places, *rest] as [rows, *rest]."""
    rest = data.shape[1:] if data.shape is not None else ()
    places = (g.shape or ())[: len(g.shape or ()) - len(rest)]
    if places[:-1] and all(d == 1 for d in places[:-1]):
        rows = op.Squeeze(g, list(range(len(places) - 1)))
    elif is_static(rest) and 0 not in rest:
        rows = op.Reshape(g, [-1, *rest])
    else:
        rows = op.Reshape(
            g, op.Concat(np.array([-1]), op.Shape(data, start=1), axis=0), allowzero=1
        )
    return rows


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
    shape = (
        constant(np.array([count], np.int64))
        if count is not None
        else op.Reshape(op.Size(data), [1])
    )
    return zeros(shape, data)


def _all_differ(rows: Var, data: Var) -> bool:
    """No row occurs twice, counted from either end."""
    places, count = rows.const, data.shape[0] if data.shape else None
    if places is None:
        return False
    if isinstance(count, int):
        places = places % count
    elif np.less(places, 0).any():
        return False
    return len(np.unique(places)) == places.size
