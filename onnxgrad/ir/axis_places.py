"""Where the axes of one value are in another: as parts of its axes.

A place (axis, size, inner) is a part of an axis: at the index i of the axis its own index is
(i // inner) % size, or i // inner if `size` is None. A run is an axis of another value as places,
the slowest first. Reshape joins axes to one and splits them, which turns a place into several or
into a part.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import TypeAlias

from onnxgrad.ir.axis_maps import RESHAPES, carried
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.sizes import Dim, exactly, multiply, product
from onnxgrad.ir.types import Shape, same_dim

Place: TypeAlias = "tuple[int, Dim, Dim]"
Run: TypeAlias = "tuple[Place, ...]"
_Axis: TypeAlias = "tuple[int, Dim]"  # its number and size


def whole(axis: int) -> Run:
    """Returns an axis as the run of itself."""
    return ((axis, None, 1),)


def run_in(b: Binding, slot: int, run: Run) -> Run | None:
    """Returns the places in an operand of `b` that the places in its first result are, or None if
    one is not carried.
    """
    x, y, axes = b.operand(slot), b.outputs[0] if b.outputs else None, carried(b, slot)
    found: list[Place] = []
    for axis, size, inner in run:
        if axes is not None and axis in axes:
            found.append((axes.index(axis), size, inner))
            continue
        if b.op not in RESHAPES or slot or x is None or y is None:
            return None
        places = reshaped((axis, size, inner), y.shape, x.shape)
        if places is None:
            return None
        found += places
    return joined(found)


def reshaped(place: Place, before: Shape | None, after: Shape | None) -> Run | None:
    """Returns a place in a value of the shape `before` as places in one of the shape `after`, with
    the same elements in the same order; None if that is unknown.
    """
    if before is None or after is None:
        return None
    axis, size, inner = place
    a, b = ([(i, d) for i, d in enumerate(shape) if d != 1] for shape in (before, after))
    front = _equal(a, b)
    a, b = a[len(front) :], b[len(front) :]
    behind = _equal(a[::-1], b[::-1])
    if axis in front or axis in behind:
        return (((front | behind)[axis], size, inner),)
    a, b = a[: len(a) - len(behind)], b[: len(b) - len(behind)]
    if size is None and a and axis != a[0][0]:
        size = exactly(before[axis], inner)
        if size is None:
            return None
    stride = multiply(product(d for i, d in a if i > axis), inner)
    return _within(b, stride, size) if a and b else None


def _equal(a: Sequence[_Axis], b: Sequence[_Axis]) -> dict[int, int]:
    """Returns the axes of the one that have the size of the other's, up to the first difference."""
    same = takewhile(lambda pair: same_dim(pair[0][1], pair[1][1]), zip(a, b))
    return {i: j for (i, _), (j, _) in same}


def composed(run: Run, size: Dim, inner: Dim, shape: Shape) -> Run | None:
    """Returns the part of an axis that is a run in a value of this shape, as a run there."""
    dims = [exactly(shape[axis], i) if n is None else n for axis, n, i in run]
    parts = _within(list(enumerate(dims)), inner, size)
    found: list[Place] = []
    for k, part, step in parts or ():
        axis, n, i = run[k]
        behind = multiply(i, step)
        if behind is None:
            return None
        found.append((axis, n if part is None and step == 1 else part, behind))
        if part is None and step != 1 and n is not None:
            rest = exactly(n, step)
            if rest is None:
                return None
            found[-1] = axis, rest, behind
    return joined(found) if parts is not None else None


def _within(dims: Sequence[_Axis], stride: Dim, size: Dim) -> Run | None:
    """Returns the places in the axes `dims` (numbers and sizes, the slowest first) of the part
    (i // stride) % size of the index i of their elements. size None: no `%`.
    """
    found: list[Place] = []
    behind: Dim = 1
    for axis, n in reversed(dims):
        step = exactly(stride, behind)
        slowest = axis == dims[0][0]
        if slowest and step is not None:
            filled = size is not None and n is not None and multiply(step, size) == n
            found.append((axis, None if filled else size, step))
            return tuple(reversed(found))
        left = None if step is None else exactly(n, step)  # indices of the axis from `stride` on
        if left is not None and left != 1:
            rest = None if size is None else exactly(size, left)
            if size is not None and rest in (None, 1):
                filled, fits = rest == 1, exactly(left, size) is not None
                found.append((axis, None if filled else size, step))
                return tuple(reversed(found)) if fits else None
            found.append((axis, None, step))
            size, stride = rest, multiply(behind, n)
        behind = multiply(behind, n)
        if behind is None:
            return None
    return None


def joined(places: Sequence[Place]) -> Run:
    """Returns a run in which neighbouring parts of one axis are one."""
    found: list[Place] = []
    for axis, size, inner in places:
        if found and found[-1][0] == axis and size is not None:
            _, before, outer = found[-1]
            if outer == multiply(inner, size):
                found[-1] = axis, None if before is None else multiply(before, size), inner
                continue
        found.append((axis, size, inner))
    return tuple(found)
