"""Rules for constant indices that read row i for row i of the result, as in masks that are indexed
by batch and position.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from onnxgrad.batching.layout import FRONT, Layout, Refused
from onnxgrad.batching.registry import in_place
from onnxgrad.batching.site import Site
from onnxgrad.ir.emission.emit import constant
from onnxgrad.ir.ops import op

Indices: TypeAlias = npt.NDArray[np.int64]


def gather_of_rows(at: Site) -> Layout:
    """Gathers along the axis of the rows: the rows get their own axis, and each reads the indices
    of the first row. Raises Refused if row i of the result does not read row i.
    """
    axis, layout = at.axis("axis", 0, at.rank(0)), at.first()
    data, sizes = at.operand(0), at.sizes(0)
    inner = sizes[axis]
    indices = _constant(at)
    if data is None or layout.outer != 1 or not isinstance(inner, int):
        raise Refused("it gathers along the rows")
    indices = np.where(indices < 0, indices + at.count * inner, indices)
    r, first = _one_row(indices, at.count, inner)
    if first.size and not (first.min() >= 0 and first.max() < inner):
        raise Refused("it gathers along the rows")
    apart = at.reshape(data, [*sizes[:axis], -1, inner, *sizes[axis + 1 :]])
    made = op.Gather(apart, constant(first), axis=axis + 1)
    place, wanted = Layout(axis + r), at.result()
    at.replaced = [(at.placed_in_file(made, wanted, place), place)]
    return place


@in_place("GatherND")
def gather_nd(at: Site) -> Layout:
    """Rows stay on a batch axis, on an axis of indices into shared elements, or on an axis behind
    those that shared indices choose from. If the first component of the indices counts rows, it
    becomes a batch axis.
    """
    rows, batch = at.at(1), int(at.attr("batch_dims", 0))
    if at.at(0) is None and rows is not None and batch <= rows.axis < at.rank(1) - 1:
        return rows
    rows, read = at.at(0), at.sizes(1)[-1]
    if at.at(1) is None and rows is not None and not rows.own and isinstance(read, int):
        behind = rows.axis - batch - read
        if behind >= 0:
            return Layout(at.rank(1) - 1 + behind, rows.outer)
    if batch and at.at(0) is not None and at.at(1) is not None:
        if not (at.moved(0, FRONT) and at.moved(1, FRONT)) or at.sizes(0)[0] != at.sizes(1)[0]:
            raise Refused("its rows are not in front")
        return FRONT
    if at.count == 1 or at.at(0) is None or batch:
        raise Refused("no rule in place")
    if at.first() != Layout(0) or at.sizes(0)[0] != 1 or at.binding.block.opsets[""] < 12:
        raise Refused("its rows are not in front")
    indices = _constant(at)
    r, _ = _one_row(indices[..., 0] % at.count, at.count, 1)
    rest = indices[..., 1:]
    first = np.take(rest, [0], r)
    if r or not rest.shape[-1] or (rest != first).any():
        raise Refused("its indices differ from row to row")
    repeats = at.repeats(0, first.ndim - 1)
    made = op.GatherND(at.operand(0), op.Tile(constant(first), repeats), batch_dims=1)
    at.replaced = [(made, Layout(0))]
    return Layout(0)


@in_place("ScatterND")
def scatter_nd(at: Site) -> Layout:
    """Rows stay on an axis behind those that shared indices choose from."""
    data, updates, read = at.at(0), at.at(2), at.sizes(1)[-1]
    if at.at(1) is not None or not isinstance(read, int):
        raise Refused("no rule in place")
    behind = at.rank(1) - 1 - read
    rows = data or updates
    if rows is None or rows.own:
        raise Refused("no rule in place")
    axis = rows.axis if data is not None else rows.axis - behind
    if axis < read:
        raise Refused("it scatters along the rows")
    place = Layout(axis, rows.outer)
    at.arrange({0: place, 2: Layout(axis + behind, rows.outer)})
    return place


def _constant(at: Site) -> Indices:
    """Returns the indices. Raises Refused if they are computed."""
    v = at.operand(1)
    if v is None or v.const is None or at.at(1) is not None:
        raise Refused("it gathers along the rows")
    return v.const.astype(np.int64)


def _one_row(indices: Indices, count: int, step: int) -> tuple[int, Indices]:
    """Returns the axis of indices on which row i reads `step` further than row i - 1 (the first
    such axis), and the indices of the first row. Raises Refused if there is none.
    """
    axis = next((i for i, size in enumerate(indices.shape) if size != 1), None)
    if axis is None or indices.shape[axis] != count:
        raise Refused("its indices do not count the rows")
    first = np.take(indices, [0], axis)
    shape = [-1 if i == axis else 1 for i in range(indices.ndim)]
    if (indices != first + step * np.arange(count).reshape(shape)).any():
        raise Refused("a row of its result reads another row")
    return axis, first
