"""Gather and related operators, Compress, OneHot, TopK: adjoints are added to the rows read."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto

from onnxgrad.grad.registry import vjp
from onnxgrad.grad.rules._common import around, pad, ranked
from onnxgrad.grad.rules.scatter import scatter_elements, scatter_nd, zeros
from onnxgrad.ir.domains import MOVES
from onnxgrad.ir.emission.arithmetic import from_front
from onnxgrad.ir.emission.emit import constant
from onnxgrad.ir.emission.fill_and_reshape import reshape_like, zeros_like
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import element_count, is_static
from onnxgrad.ir.var import Var

# operators whose result holds only elements of their first operand
_KEEP_A_FILL = frozenset((*MOVES, "Cast"))
# longer vectors of indices are computed at run time instead of stored
_STORED = 1 << 12


def add_rows(data: Var, rows: Var, g: Var, *, distinct: bool = False) -> Var:
    """Returns zeros like `data` [R, *rest], with each g[i] added to row rows[i].

    rows: [*places], may be negative; g: [*places, *rest]; distinct: no row occurs twice.
    """
    if rows.dtype != TensorProto.INT64:
        rows = op.Cast(rows, to=TensorProto.INT64)
    row = _only_row(rows)
    if row is not None and rows.rank and element_count(rows.shape) != 1:
        # sum the leading axes first: a table of positions needs that sum as well
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
    count = element_count(data.shape)
    size = (
        op.Reshape(op.Size(data), [1]) if count is None else constant(np.array([count], np.int64))
    )
    summed = scatter_elements(
        zeros(size, data), op.Reshape(at, [-1]), flat, axis=0, reduction="add"
    )
    return summed if data.rank == 1 else reshape_like(summed, data)


def _only_row(rows: Var) -> int | None:
    """Returns the row if all `rows` are the same one, else None.

    An example is a table of token types if the model uses only the first type.
    """
    while (
        (source := rows.definition) is not None
        and not source.domain
        and source.op in _KEEP_A_FILL
        and source.inputs[0] is not None
    ):
        rows = source.inputs[0]
    places = rows.const
    if places is None or not places.size or (places != places.reshape(-1)[0]).any():
        return None
    return int(places.reshape(-1)[0])


def _run(rows: Var, data: Var) -> int | None:
    """Returns the first of constant rows that are consecutive.

    Returns None if they are not, or if sizes are not known.
    """
    places, count = rows.const, data.shape[0] if data.shape else None
    if places is None or not isinstance(count, int) or not places.size:
        return None
    places = places.reshape(-1) % count
    return int(places[0]) if (np.diff(places) == 1).all() else None


def _placed(data: Var, start: int, rows: Var, g: Var) -> Var:
    """Returns the rows of g unchanged, with zeros before and after."""
    flat = g if rows.rank == 1 else _as_rows(g, data)
    count = data.shape[0] if data.shape else None
    behind = count - start - (element_count(rows.shape) or 0) if isinstance(count, int) else 0
    return pad(flat, [start, behind], [0]) if start or behind else flat


def _as_rows(g: Var, data: Var) -> Var:
    """Reshapes g [*places, *rest] to [rows, *rest]."""
    rest = data.shape[1:] if data.shape is not None else ()
    places = (g.shape or ())[: len(g.shape or ()) - len(rest)]
    if places[:-1] and all(d == 1 for d in places[:-1]):
        return op.Squeeze(g, list(range(len(places) - 1)))
    if is_static(rest) and 0 not in rest:
        return op.Reshape(g, [-1, *rest])
    return op.Reshape(g, op.Concat(np.array([-1]), op.Shape(data, start=1), axis=0), allowzero=1)


def _line(data: Var) -> tuple[Any, Var]:
    """Returns the number of elements in a row, and their numbers 0, 1, ... within the row."""
    width = element_count(None if data.shape is None else data.shape[1:])
    if width is not None and width <= _STORED:
        return np.int64(width), constant(np.arange(width, dtype=np.int64))
    if width is not None:
        return np.int64(width), op.Range(np.int64(0), np.int64(width), np.int64(1))
    size = op.ReduceProd(op.Shape(data, start=1), keepdims=0)
    return size, op.Range(np.int64(0), size, np.int64(1))


def _all_differ(rows: Var, data: Var) -> bool:
    """Whether no row occurs twice, counted from either end."""
    places, count = rows.const, data.shape[0] if data.shape else None
    if places is None:
        return False
    if isinstance(count, int):
        places = places % count
    elif np.less(places, 0).any():
        return False
    return len(np.unique(places)) == places.size


def gather(g: Var, y: Var, data: Var, indices: Var, axis: int) -> Var:
    """Adds up along the first axis, whose rows are contiguous; one Pad for one constant place."""
    rank = data.rank
    if rank is None or indices.rank is None:
        flat, places = around(data, axis), op.Reshape(indices, [-1])
        rows = op.Concat(op.Shape(flat, start=0, end=1), op.Shape(places), [-1], axis=0)
        return reshape_like(gather(ranked(op.Reshape(g, rows), 3), y, flat, places, 1), data)
    axis = from_front(axis, rank)
    at = indices.ints
    size = None if data.shape is None else data.shape[axis]
    if at is not None and indices.shape == () and isinstance(size, int):
        place = at[0] + size if at[0] < 0 else at[0]
        before = [place if i == axis else 0 for i in range(rank)]
        after = [size - 1 - place if i == axis else 0 for i in range(rank)]
        return pad(op.Unsqueeze(g, [axis]), [*before, *after])
    if axis == 0:
        return add_rows(data, indices, g)
    # move the gathered axis and the axes of the indices to the front of g
    k = indices.rank
    to_front = [axis, *(i for i in range(rank) if i != axis)]
    g_first = [*range(axis, axis + k), *range(axis), *range(axis + k, rank + k - 1)]
    summed = add_rows(op.Transpose(data, perm=to_front), indices, op.Transpose(g, perm=g_first))
    return op.Transpose(summed, perm=[int(i) for i in np.argsort(to_front)])


vjp("Gather", gather)
vjp(
    "GatherElements",
    lambda g, y, data, indices, axis: scatter_elements(
        zeros_like(data), indices, g, axis=axis, reduction="add"
    ),
)


def _gather_nd(g: Var, y: Var, data: Var, indices: Var, batch_dims: int) -> Var:
    """Gathers the numbers of data's elements to find the place of each element of g."""
    count = op.Range(np.int64(0), op.Size(data), np.int64(1))
    places = op.GatherND(reshape_like(count, data), indices, batch_dims=batch_dims)
    return reshape_like(
        add_rows(op.Reshape(data, [-1]), op.Reshape(places, [-1]), op.Reshape(g, [-1])), data
    )


vjp("GatherND", _gather_nd)


def _picked(g: Var, y: Var, x: Var, places: Var, axis: int | None) -> Var:
    """The gradient of x[places] along an axis, or of x.reshape(-1)[places], for distinct places."""
    if axis is None:
        return reshape_like(add_rows(op.Reshape(x, [-1]), places, g, distinct=True), x)
    return gather(g, y, x, places, axis)


vjp(
    "Compress",
    # the places where the condition holds
    lambda g, y, x, condition, axis=None: _picked(
        g, y, x, op.Reshape(op.NonZero(condition), [-1]), axis
    ),
)
vjp(
    "Unique",
    # the values are picked from their first places
    lambda g, y, x, axis=None: None if g[0] is None else _picked(g[0], y[0], x, y[1], axis),
    notes="equal elements: the first one receives everything",
)


def _one_hot_values(g: Var, y: Var, indices: Var, depth: Var, values: Var, axis: int) -> Var:
    """Returns the sums of g as (off, on): over the elements that are off, and over those on."""
    on = op.OneHot(indices, depth, np.array([0, 1], np.float32), axis=axis)
    mask = op.Cast(on, to=TensorProto.BOOL)
    parts = [
        op.Reshape(op.ReduceSum(op.Where(m, g, 0.0), keepdims=0), [1]) for m in (op.Not(mask), mask)
    ]
    return op.Concat(*parts, axis=0)


vjp("OneHot", None, None, _one_hot_values)


vjp(
    "TopK",
    # each value's adjoint goes to where it came from
    lambda g, y, x, axis: (
        None if g[0] is None else op.ScatterElements(zeros_like(x), y[1], g[0], axis=axis)
    ),
    notes="ties: the index that the forward returned",
)
