"""Constants that count positions, extended to any number of positions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from onnx import TensorProto

from onnxgrad.batching.layout import Refused, Size
from onnxgrad.batching.run_time_sizes import RunTimeSizes
from onnxgrad.ir.emission.emit import constant
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import Array
from onnxgrad.ir.var import Var
from onnxgrad.transform.sizes.expressions import Fixed

_FEWEST = 4  # fewer positions do not determine a formula


def for_any_size(v: Var, wanted: Mapping[int, Size], at: RunTimeSizes) -> tuple[Var, str]:
    """Returns a constant extended to the `wanted` sizes by axis, and the rule in words: one value
    along an axis, positions (start, start + 1, ...), or a triangle of two values. Raises Refused if
    no rule fits.
    """
    array = v.const
    if array is None:
        raise Refused(f"'{v.name}' is not a constant")
    single = next((a for a in wanted if array.shape[a] == 1), None)
    if single is not None:
        raise Refused(
            f"constant '{v.name}' {v.type} holds one position on axis {single}, which says nothing "
            f"of others: export with a size of {_FEWEST} or more"
        )
    alone = {a: d for a, d in wanted.items() if _same(array, a)}
    rest = {a: d for a, d in wanted.items() if a not in alone}
    for axis in alone:
        array = np.take(array, [0], axis)
    if not rest:
        return _spread(constant(array, v.dtype), array, alone, at), "is the same at every position"
    for axes in _with_another(array, rest, wanted):
        affine = _affine(array, axes)
        if affine is not None:
            made = _positions(affine, array.ndim, axes, v.dtype, at)
            return _spread(made, array, alone, at), "counts positions"
        triangle = _triangle(array, axes) if len(axes) == 2 else None
        if triangle is not None:
            made = _masked(array, triangle, axes, v.dtype, at)
            one = np.zeros([1] * array.ndim)
            return _spread(made, one, alone, at), "is a triangle of two values"
    text = " and ".join(f"{array.shape[a]} on axis {a} for {d}" for a, d in rest.items())
    cause = Refused if all(_even(array, axis) for axis in rest) else Fixed
    raise cause(
        f"constant '{v.name}' {v.type} holds one value for each position ({text}), and follows no "
        "rule that extends it: export with a dynamic axis"
    )


def _with_another(
    array: Array, rest: Mapping[int, Size], wanted: Mapping[int, Size]
) -> Iterator[Mapping[int, Size]]:
    """Yields the axes to extend: the wanted ones. A single axis is then paired with another axis of
    equal size, as in a matrix of positions.
    """
    yield rest
    if len(rest) == 1:
        ((axis, size),) = rest.items()
        for other, count in enumerate(array.shape):
            if other not in wanted and count == array.shape[axis]:
                yield {axis: size, other: size}


def _even(array: Array, axis: int) -> bool:
    """Whether the numbers along an axis are evenly spaced, so that they may continue."""
    steps = np.diff(array.astype(np.float64), axis=axis)
    return bool(np.allclose(np.diff(steps, axis=axis), 0))


def _same(array: Array, axis: int) -> bool:
    first = np.take(array, [0], axis)
    return bool(array.size) and bool((array == first).all())


def _affine(array: Array, rest: Mapping[int, Size]) -> tuple[int, dict[int, int]] | None:
    """Returns the first number and the step along each axis if the numbers count positions: start,
    start + 1, ..., or the distance j - i of two positions. None for a count down, whose start
    depends on the size.
    """
    shape = [array.shape[a] for a in rest]
    if array.dtype.kind not in "iuf" or min(shape) < _FEWEST or array.size != np.prod(shape):
        return None
    start = float(array.reshape(-1)[0])
    if start != np.floor(start) or not np.isfinite(start):
        return None
    steps = dict[int, int]()
    made: Array = np.full(array.shape, start)
    for axis in rest:
        step = float(np.take(array, 1, axis).reshape(-1)[0]) - start
        if step not in (1, -1):
            return None
        steps[axis] = int(step)
        target = [-1 if i == axis else 1 for i in range(array.ndim)]
        made = np.add(made, np.reshape(steps[axis] * np.arange(array.shape[axis]), target))
    down = -1 in steps.values()
    if down and (len(steps) != 2 or {*steps.values()} != {1, -1} or start != 0):
        return None
    return (int(start), steps) if (array.astype(np.float64) == made).all() else None


def _range(size: Size, at: RunTimeSizes, start: int = 0) -> Var:
    """Returns the `size` numbers start, start + 1, ..."""
    limit = at.vector([size])
    last = op.Reshape(limit, np.zeros(0, np.int64))
    made: Var = op.Range(np.int64(start), op.Add(last, np.int64(start)), np.int64(1))
    return made


def _positions(
    affine: tuple[int, Mapping[int, int]],
    rank: int,
    rest: Mapping[int, Size],
    dtype: int,
    at: RunTimeSizes,
) -> Var:
    start, steps = affine
    made: Var | None = None
    for axis, step in sorted(steps.items(), key=lambda pair: -pair[1]):
        numbers = _range(rest[axis], at, 0 if made is not None else start)
        target = np.array([-1 if i == axis else 1 for i in range(rank)], np.int64)
        along = op.Reshape(numbers, target)
        made = along if made is None else made + along if step > 0 else made - along
    if made is None:
        raise Refused("it has no axis to count along")
    return made if dtype == TensorProto.INT64 else op.Cast(made, to=dtype)


def _triangle(array: Array, rest: Mapping[int, Size]) -> tuple[Array, Array, int] | None:
    """Returns the value below the diagonal of two axes, the value above, and an offset: 0 if the
    diagonal has the value below, -1 if it has the value above.
    """
    (row, _), (column, _) = sorted(rest.items())
    count = array.shape[row]
    others = array.size // max(count * array.shape[column], 1)
    if array.shape[column] != count or count < _FEWEST or others != 1 or len({*rest.values()}) > 1:
        return None
    matrix = array.reshape(count, count)
    for offset in (0, -1):
        below = np.tri(count, k=offset, dtype=bool)
        low, high = matrix[below], matrix[~below]
        if (low == low[0]).all() and (high == high[0]).all():
            return low[0], high[0], offset
    return None


def _masked(
    array: Array,
    triangle: tuple[Array, Array, int],
    rest: Mapping[int, Size],
    dtype: int,
    at: RunTimeSizes,
) -> Var:
    low, high, offset = triangle
    (row, size), (column, _) = sorted(rest.items())
    positions = _range(size, at)
    i, j = (
        op.Reshape(positions, np.array([-1 if k == a else 1 for k in range(array.ndim)], np.int64))
        for a in (row, column)
    )
    below = op.Less(j, i) if offset else op.Not(op.Less(i, j))
    made: Var
    if dtype == TensorProto.BOOL:  # onnxruntime has no Where of booleans
        made = below if low else op.Not(below)
    else:
        made = op.Where(below, constant(low, dtype), constant(high, dtype))
    return made


def _spread(made: Var, array: Array, alone: Mapping[int, Size], at: RunTimeSizes) -> Var:
    """Expands a value along the axes `alone`, on which all its elements are equal."""
    if not alone:
        return made
    target = [alone.get(a, 1) for a in range(array.ndim)]
    spread: Var = op.Expand(made, at.vector(target))
    return spread
