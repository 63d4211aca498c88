"""Rules in place for operators that move elements: shapes, joins, slices, indices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from onnx import TensorProto

from onnxgrad.batching.along_axes import related
from onnxgrad.batching.indexed_rows import gather_of_rows
from onnxgrad.batching.layout import Layout, Refused, Size, known, places, stride
from onnxgrad.batching.registry import in_place
from onnxgrad.batching.site import Site
from onnxgrad.ir.emission.emit import constant
from onnxgrad.ir.ops import op
from onnxgrad.ir.sizes import at_least, multiply, product
from onnxgrad.ir.var import Var

FAR = 2**63 - 1


@in_place("Shape Size")
def shape(at: Site) -> list[Layout | None]:
    """The sizes in the file are equal in every row."""
    sizes = at.in_file(at.operand(0))
    if at.op == "Size":
        size = known(product(sizes))
        found = np.array(size) if isinstance(size, int) else _scalar(at.sizes_at.of(size))
    else:
        found = at.sizes_at.vector(sizes[at.attr("start", 0) : at.attr("end")])
    at.replaced = [(found if isinstance(found, Var) else constant(found), None)]
    return []


def _scalar(vector: Var) -> Var:
    made: Var = op.Reshape(vector, np.zeros(0, np.int64))
    return made


@in_place("Reshape Flatten Squeeze Unsqueeze")
def reshape(at: Site) -> Layout:
    """Rows move to the axis with the same stride in memory."""
    layout, sizes, wanted = at.only_first(), at.sizes(0), _wanted(at)
    found = places(wanted, stride(sizes, layout), at.count)
    if not found:
        raise Refused("it splits the rows, or moves them into another axis")
    best = max(found, key=lambda p: _likely(p, wanted, layout))
    x = at.operand(0)
    if x is None:
        raise Refused("it has no operand")
    if not _as_it_is(at, layout, best):
        at.replaced = [(at.placed_in_file(x, wanted, best), best)]
    return best


def _wanted(at: Site) -> tuple[Size, ...]:
    """Returns the shape of the result in the file, from the sizes of the operand if it has no
    formula.
    """
    sizes, found = at.in_file(at.operand(0)), at.result()
    if at.op == "Flatten":
        split = int(at.attr("axis", 1))
        split += len(sizes) if split < 0 else 0
        return known(product(sizes[:split])), known(product(sizes[split:]))
    kept = [d for d in sizes if d != 1]
    if at.op == "Reshape" or len(kept) != sum(d != 1 for d in found):
        return found
    rest = iter(kept)  # Squeeze and Unsqueeze keep the others in order
    return tuple(1 if d == 1 else next(rest) for d in found)


def _likely(place: Layout, sizes: Sequence[Size], before: Layout) -> tuple[bool, bool, bool, int]:
    """Rank equal strides: an axis of size 1 first, then the same axis, then the nearest."""
    gap = abs(place.axis - before.axis)
    return sizes[place.axis] == 1, gap == 0, place.outer == 1, -gap


def _as_it_is(at: Site, layout: Layout, place: Layout) -> bool:
    """Whether the unchanged node does so for any number of rows."""
    sizes, wanted = at.in_file(at.operand(0)), _wanted(at)
    if at.op == "Squeeze":
        axes = at.ints(1, "axes")
        if axes is None or layout.axis in [a % len(sizes) for a in axes]:
            return False
        return place.axis == layout.axis - sum(a % len(sizes) < layout.axis for a in axes)
    if at.op == "Unsqueeze":
        new = [a % len(wanted) for a in at.ints(1, "axes") or []]
        return place.axis == [j for j in range(len(wanted)) if j not in new][layout.axis]
    if at.op == "Flatten":
        split = int(at.attr("axis", 1))
        split += len(sizes) if split < 0 else 0
        return place.axis == (0 if layout.axis < split else 1)
    target = at.operand(1)
    if target is not None and target.const is None:
        return False
    written = at.ints(1, "shape") or []
    zeros = [j for j, size in enumerate(written) if size == 0]
    if at.attr("allowzero", 0) or len(written) != len(wanted):
        return False
    if any(j != place.axis and j == layout.axis for j in zeros):
        return False
    copied = place.axis in zeros and place == layout and sizes[layout.axis] == wanted[place.axis]
    return written[place.axis] == -1 or copied


@in_place("Expand")
def expand(at: Site) -> Layout:
    """Rows keep their axis if it is not expanded."""
    layout, sizes, wanted = at.only_first(), at.in_file(at.operand(0)), at.result()
    axis = layout.axis + len(wanted) - len(sizes)
    if wanted[axis] != sizes[layout.axis]:
        raise Refused("it expands the axis of the rows", along=at.sizes(0)[layout.axis] == 1)
    if _expands(at, axis):
        target = at.sizes_at.vector([1 if j == axis else d for j, d in enumerate(wanted)])
        at.operands[1] = target if isinstance(target, Var) else constant(target)
    return Layout(axis, layout.outer)


def _expands(at: Site, axis: int) -> bool:
    """Whether its target may have a size other than 1 on the axis of the rows."""
    target, rank = at.operands[1], len(at.result())
    if target is None or target.const is None:
        return True
    k = axis - (rank - target.const.size)
    return k >= 0 and target.const[k] != 1


@in_place("Tile")
def tile(at: Site) -> Layout:
    """Whole axes repeat, so that each repeat contains all rows."""
    layout = at.only_first()
    if at.version < 6:
        raise Refused("Tile of an old opset")
    repeats = at.ints(1) or []
    if not repeats or not repeats[layout.axis]:
        raise Refused("it repeats nothing")
    return Layout(layout.axis, known(multiply(layout.outer, repeats[layout.axis])))


@in_place("Concat")
def concat(at: Site) -> Layout:
    """Rows are on the same axis of all operands, which is not joined; shared operands repeat."""
    axis = at.axis("axis", 1, len(at.result()))
    for k in at.batched():
        if not _elsewhere(at, k, axis):
            raise Refused("it joins along the rows", along=at.sizes(k)[axis] == 1)
    return _meeting(at, at.present())


def _elsewhere(at: Site, k: int, axis: int) -> bool:
    """Whether the rows of an operand are on another axis, or move to an adjacent axis of size 1."""
    layout = at.at(k)
    if layout is None or layout.axis != axis:
        return True
    free = (j for j, size in enumerate(at.sizes(k)) if size == 1 and j != axis)
    return any(at.moved(k, Layout(j)) for j in free)


def _meeting(at: Site, operands: Iterable[int]) -> Layout:
    """Moves the rows of operands of one shape to one axis, and repeats shared operands along it."""
    first = at.batched()[0]
    layout = at.at(first)
    if layout is None:
        raise Refused("no rows")
    size = at.sizes(first)[layout.axis]
    for k in operands:
        if at.at(k) is None:
            at.tile(k, layout)
        elif at.sizes(k)[layout.axis] != size or not at.moved(k, layout):
            raise Refused("rows stand on two axes")
    return layout


@in_place("Slice")
def slice_(at: Site) -> Layout:
    """Rows keep their axis if it is not sliced; the end of a whole axis becomes open."""
    layout, sizes = at.only_first(), at.in_file(at.operand(0))
    many = at.operand(1)
    count = len(at.attr("starts") or ()) if many is None else (many.shape or (None,))[0]
    axes = at.ints(3, "axes") or (list(range(count)) if isinstance(count, int) else None)
    if axes is None:
        raise Refused("its axes are not known")
    if layout.axis not in [a % len(sizes) for a in axes]:
        return layout
    starts, ends = at.ints(1, "starts") or [], at.ints(2, "ends") or []
    steps = at.ints(4) or [1] * len(starts)
    size = sizes[layout.axis]
    for i, axis in enumerate(axes):
        if axis % len(sizes) != layout.axis:
            continue
        if steps[i] != 1 or starts[i] != 0 or not at_least(ends[i], size):
            raise Refused("it cuts the axis of the rows", along=at.sizes(0)[layout.axis] == 1)
        if not at_least(ends[i], 2**31 - 1):
            _end(at, i)
    return layout


def _end(at: Site, i: int) -> None:
    """Opens the `i`-th end."""
    if at.version < 10:
        ends = at.ints(2, "ends") or []
        at.attributes["ends"] = [*ends[:i], FAR, *ends[i + 1 :]]
        return
    before = at.operands[2]
    if before is None or before.const is None:
        raise Refused("its ends are computed")
    ends = [int(e) for e in np.ravel(before.const)]
    most = FAR if before.dtype == TensorProto.INT64 else 2**31 - 1
    at.operands[2] = constant(np.array([*ends[:i], most, *ends[i + 1 :]]), before.dtype)


@in_place("Gather")
def gather(at: Site) -> Layout:
    """Rows of the data keep their axis; rows of the indices are on the axes of the indices."""
    if len(at.batched()) > 1:
        raise Refused("rows of the data at indices that differ from row to row")
    k = 0 if at.at(0) is not None else 1
    layout = at.at(k) or at.first()
    axis = related(at, k, layout.axis)
    if axis is not None and axis.how == "same":
        return Layout(int(axis.to), layout.outer)
    if at.count > 1:
        return gather_of_rows(at)
    raise Refused("it gathers along the rows", along=at.sizes(0)[layout.axis] == 1)


@in_place("GatherElements ScatterElements Scatter")
def elements(at: Site) -> Layout:
    """Rows are on the same axis of all operands, which is not indexed."""
    layout = _meeting(at, at.present())
    if layout.axis == at.axis("axis", 0, at.rank(0)):
        raise Refused("it indexes along the rows", along=True)
    sizes = {at.sizes(k)[layout.axis] for k in at.present()}
    if len(sizes) != 1:
        raise Refused("its operands have several sizes along the rows")
    return layout
