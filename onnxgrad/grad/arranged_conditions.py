"""Arranges a condition for a value: each of its axes is a part, or several, of the value's axes.

An axis of the value consists of such parts (`ir.axis_places`), and of gaps between them along which
the condition does not vary.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cmp_to_key
from itertools import zip_longest
from typing import Any

import numpy as np

from onnxgrad.ir.axis_places import Place, Run
from onnxgrad.ir.emission.emitter import emitter
from onnxgrad.ir.ops import op
from onnxgrad.ir.sizes import Dim, exactly, multiply
from onnxgrad.ir.types import Shape, same_dim
from onnxgrad.ir.var import Var


def parts_by_axis(runs: Sequence[Run], shape: Shape | None) -> dict[int, list[Place]] | None:
    """Returns the parts that are in a run, by the axis of a value of this shape, the slowest first;
    None if `arranged` cannot place a condition of these runs.
    """
    found: dict[int, list[Place]] = {}
    for axis, size, inner in (place for run in runs for place in run):
        found.setdefault(axis, []).append((axis, size, inner))
    if shape is None:
        return None
    for axis, places in found.items():
        places.sort(key=cmp_to_key(_slower))
        if _gaps(places, shape[axis]) is None:
            return None
    # of the parts into which axes of a condition are split, one may have any size
    split = [place for run in runs if len(run) > 1 for place in run]
    unknown = sum(not isinstance(n, int) and p[1:] != (None, 1) for p, n in _sized(split, shape))
    return {axis: found[axis] for axis in sorted(found)} if unknown < 2 else None


def _slower(a: Place, b: Place) -> int:
    """Orders two parts of an axis by how slowly they vary."""
    return -1 if a[1] is None or (b[1] is not None and exactly(a[2], b[2]) is not None) else 1


def _sized(places: Sequence[Place], shape: Shape) -> list[tuple[Place, Dim]]:
    """Returns parts of axes of a value of this shape, with their sizes."""
    return [(p, exactly(shape[p[0]], p[2]) if p[1] is None else p[1]) for p in places]


def _gaps(places: Sequence[Place], size: Dim) -> list[Dim] | None:
    """Returns the sizes of the gaps in an axis of this size: in front of each part, and behind the
    last. None if parts may overlap, or if more than one gap is not a number.
    """
    gaps, end = list[Dim](), size
    for i, (_, n, inner) in enumerate(places):
        gap = 1 if n is None else exactly(end, multiply(inner, n))
        if i and (n is None or gap is None):
            return None
        gaps.append(gap)
        end = inner
    return [*gaps, end] if sum(not isinstance(gap, int) for gap in (*gaps, end)) < 2 else None


def arranged(
    condition: Var, at: Sequence[int], runs: Sequence[Run], value: Var, shape: Shape
) -> Var:
    """Returns a condition, which varies along its axes `at`, so that it broadcasts to a value of
    this shape. runs: those axes, as parts of the value's axes.
    """
    layout = parts_by_axis(runs, shape) or {}
    others = [i for i in range(condition.rank or 0) if i not in at]
    parts = _split(op.Squeeze(condition, others) if others else condition, runs, value, shape)
    places = [place for run in runs for place in run]
    order = [places.index(place) for parts_of in layout.values() for place in parts_of]
    if order != list(range(len(order))):
        parts = op.Transpose(parts, perm=order)
    spread, rank = _spread(parts, layout, value, shape)
    if rank > len(layout):
        sizes = [shape[axis] for axis in layout]
        spread = op.Reshape(spread, _target(_numbers_or_sizes(sizes, value, layout)))
    new = [i for i in range(len(shape)) if i not in layout]
    result: Var = op.Unsqueeze(spread, new) if new else spread
    return result


def _split(condition: Var, runs: Sequence[Run], value: Var, shape: Shape) -> Var:
    """Splits the axes of a condition into their parts."""
    if all(len(run) == 1 for run in runs):
        return condition
    sizes = list[Any]()
    for k, run in enumerate(runs):
        for (axis, n, inner), size in _sized(run, shape):
            if isinstance(size, int):
                sizes.append(size)
            elif len(run) == 1:
                sizes.append(_along(condition, k))
            else:
                sizes.append(_along(value, axis) if n is None and inner == 1 else -1)
    split: Var = op.Reshape(condition, _target(sizes))
    return split


def _spread(
    parts: Var, layout: Mapping[int, Sequence[Place]], value: Var, shape: Shape
) -> tuple[Var, int]:
    """Repeats a condition along the gaps between its parts. Returns it and its rank."""
    counts, missing, first = list[Any](), list[int](), 0
    for axis, places in layout.items():
        gaps = _gaps(places, shape[axis]) or []
        own = range(first, first + len(places))
        for gap, part in zip_longest(gaps, own):
            if gap != 1:
                missing.append(len(counts))
                count = _count(gap)
                if count is None:
                    numbers = [g for g in gaps if isinstance(g, int)]
                    known = [*(_along(parts, i) for i in own), *numbers]
                    count = _rest(_along(value, axis), known)
                counts.append(count)
            if part is not None:
                counts.append(1)
        first += len(places)
    if missing:
        parts = op.Expand(op.Unsqueeze(parts, missing), _joined(counts))
    return parts, len(counts)


def _along(v: Var, axis: int) -> Var:
    """Returns the size of an axis, a vector of one number."""
    result: Var = op.Shape(v, start=axis, end=axis + 1)
    return result


def _count(gap: Dim) -> int | Var | None:
    """Returns a size that is a number, or that an input of the graph has."""
    if isinstance(gap, int):
        return gap
    inputs = emitter().block.root.inputs
    return next(
        (_along(v, i) for v in inputs for i, d in enumerate(v.shape or ()) if same_dim(d, gap)),
        None,
    )


def _rest(size: Var, parts: Sequence[Any]) -> Var:
    """Returns how often parts of these sizes repeat along an axis of this size."""
    product = parts[0]
    for n in parts[1:]:
        product = product if isinstance(n, int) and n == 1 else op.Mul(product, n)
    result: Var = op.Div(size, op.Max(product, 1))  # empty parts: 0 / 1
    return result


def _numbers_or_sizes(sizes: Sequence[Dim], value: Var, axes: Iterable[int]) -> list[Any]:
    return [n if isinstance(n, int) else _along(value, i) for i, n in zip(axes, sizes)]


def _target(sizes: Sequence[Any]) -> Any:
    """Returns the shape for a Reshape: a constant if at most one size is not a number."""
    open_sizes = sum(not isinstance(n, int) or n == -1 for n in sizes)
    return _joined([n if isinstance(n, int) else -1 for n in sizes] if open_sizes < 2 else sizes)


def _joined(sizes: Sequence[Any]) -> Any:
    """Returns sizes, numbers or vectors of one number, as an operand: a constant if it can be."""
    if all(isinstance(n, int) for n in sizes):
        return np.array(sizes, np.int64)
    return op.Concat(*([n] if isinstance(n, int) else n for n in sizes), axis=0)
