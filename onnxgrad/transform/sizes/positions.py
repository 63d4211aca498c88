"""Constants that count positions, and constants with a number for each pair of positions, as masks
have them: their readings, and the constants for any number of positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from onnx import TensorProto

from onnxgrad.batching.layout import Refused, Size
from onnxgrad.batching.run_time_sizes import RunTimeSizes
from onnxgrad.ir.emission.emit import constant
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import Array
from onnxgrad.ir.var import Var
from onnxgrad.wording import counted

FEWEST = 4  # fewer positions do not determine a formula
SHOWN = 3  # numbers beyond the file in a message


@dataclass(frozen=True)
class Rule:
    """A reading of a constant. `make` emits the constant for any size, before axes are added along
    which it does not change; `rows` are its numbers at the first positions beyond the file.
    """

    reading: str
    words: str
    make: Callable[[RunTimeSizes], Var]
    rows: Sequence[Array]
    is_relative: bool = False  # rotary positions, or slopes times distances
    rates: tuple[float, ...] = ()  # of rotary positions: radians a position, in order


def counts(v: Var, array: Array, rest: Mapping[int, Size], fewest: int) -> Iterator[Rule]:
    """Yields the reading of numbers that count positions, or distances of two positions."""
    affine = _affine(array, rest, fewest)
    if affine is not None:
        start, steps = affine
        first = next(iter(rest))
        after = range(array.shape[first], array.shape[first] + SHOWN)
        counted = partial(_positions, affine, array.ndim, rest, v.dtype)
        numbers = [np.array(start + i * steps[first]) for i in after]
        yield Rule("ramp", "counts positions", counted, numbers)


def of_pairs(v: Var, array: Array, pair: Mapping[int, Size]) -> Iterator[Rule]:
    """Yields the readings of numbers that belong to pairs of positions: masks and distances."""
    row, column = sorted(pair)
    count = array.shape[row]
    if array.shape[column] != count or count < FEWEST:
        return
    triangle = _triangle(array, pair)
    if triangle is not None:
        low, high, offset = triangle
        numbers = np.array([low] * (count + 1 + offset) + [high])
        masked = partial(_masked, array.ndim, triangle, pair, v.dtype)
        yield Rule("triangle", "is a triangle of two values", masked, [numbers])
    band = _band(array, pair) if triangle is None else None
    if band is not None:
        made = partial(_banded, array.ndim, band, pair, v.dtype)
        yield Rule("band", band.words, made, [band.row(count)])
    slopes = _slopes(array, pair)
    if slopes is not None:
        sloped = partial(_sloped, slopes, array.ndim, pair, v.dtype)
        yield Rule(
            "ramp", "holds distances times slopes", sloped, [slopes * count], is_relative=True
        )


def _affine(
    array: Array, rest: Mapping[int, Size], fewest: int
) -> tuple[int, dict[int, int]] | None:
    """Returns the first number and the step along each axis if the numbers count positions: start,
    start + 1, ..., or the distance j - i of two positions. None for a count down, whose start
    depends on the size.
    """
    shape = [array.shape[a] for a in rest]
    if array.dtype.kind not in "iuf" or min(shape) < fewest or array.size != np.prod(shape):
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


def range_of(size: Size, at: RunTimeSizes, start: int = 0) -> Var:
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
        numbers = range_of(rest[axis], at, 0 if made is not None else start)
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
    count = array.shape[min(rest)]
    if array.size != count**2:
        return None
    matrix = array.reshape(count, count)
    for offset in (0, -1):
        below = np.tri(count, k=offset, dtype=bool)
        low, high = matrix[below], matrix[~below]
        if (low == low[0]).all() and (high == high[0]).all():
            return low[0], high[0], offset
    return None


def _masked(
    rank: int,
    triangle: tuple[Array, Array, int],
    rest: Mapping[int, Size],
    dtype: int,
    at: RunTimeSizes,
) -> Var:
    low, high, offset = triangle
    (row, size), (column, _) = sorted(rest.items())
    positions = range_of(size, at)
    i, j = (
        op.Reshape(positions, np.array([-1 if k == a else 1 for k in range(rank)], np.int64))
        for a in (row, column)
    )
    below = op.Less(j, i) if offset else op.Not(op.Less(i, j))
    return _chosen(below, low, high, dtype)


def _chosen(where: Var, inside: Array, outside: Array, dtype: int) -> Var:
    made: Var
    if dtype == TensorProto.BOOL:  # onnxruntime has no Where of booleans
        made = where if inside else op.Not(where)
    else:
        made = op.Where(where, constant(inside, dtype), constant(outside, dtype))
    return made


@dataclass(frozen=True)
class _Band:
    """One value where -ahead <= i - j <= back, another elsewhere."""

    inside: Array
    outside: Array
    back: int
    ahead: int

    @property
    def words(self) -> str:
        """Describes where the value inside is."""
        sides = ((self.back, "before"), (self.ahead, "after"))
        found = [f"up to {counted(n, 'position')} {where} it" for n, where in sides if n]
        return f"has one value {' and '.join(['on the diagonal', *found])}"

    def row(self, i: int) -> Array:
        """Returns the numbers of row i up to its last one inside, and one more."""
        j = np.arange(max(i + self.ahead + 2, 0))
        return np.where((i - j <= self.back) & (j - i <= self.ahead), self.inside, self.outside)


def _band(array: Array, rest: Mapping[int, Size]) -> _Band | None:
    """Returns the band around the diagonal of two axes. Its edges must show at several positions of
    the file: a window that has no edge there looks as a triangle, or has the same value everywhere.
    """
    count = array.shape[min(rest)]
    if array.size != count**2:
        return None
    matrix = array.reshape(count, count)
    inside, outside = matrix[0, 0], matrix[0, -1]
    ahead = int((matrix[0] == inside).sum()) - 1
    back = int((matrix[:, 0] == inside).sum()) - 1
    found = _Band(inside, outside, back, ahead)
    same = all((found.row(i)[:count] == matrix[i, : i + ahead + 2]).all() for i in range(count))
    rests = all((matrix[i, i + ahead + 1 :] == outside).all() for i in range(count))
    return found if max(back, ahead) <= count - FEWEST and same and rests else None


def _banded(rank: int, band: _Band, rest: Mapping[int, Size], dtype: int, at: RunTimeSizes) -> Var:
    (row, size), (column, _) = sorted(rest.items())
    back = _positions(
        (0, {row: 1, column: -1}), rank, {row: size, column: size}, TensorProto.INT64, at
    )
    near = op.And(op.LessOrEqual(back, np.int64(band.back)),
                  op.GreaterOrEqual(back, np.int64(-band.ahead)))  # fmt: skip
    return _chosen(near, band.inside, band.outside, dtype)


def _slopes(array: Array, rest: Mapping[int, Size]) -> Array | None:
    """Returns the numbers at the distance j - i = 1 if the numbers at every distance are multiples
    of these to the bit: the biases of attention, with a slope for each head.
    """
    row, column = sorted(rest)
    count = array.shape[row]
    if array.dtype.kind != "f":
        return None
    slopes = np.take(np.take(array, [0], row), [1], column)
    shape = [count if a in (row, column) else 1 for a in range(array.ndim)]
    distances = (np.arange(count) - np.arange(count)[:, None]).reshape(shape)
    with np.errstate(over="ignore"):  # a mask
        made = np.multiply(distances.astype(array.dtype), slopes)
    return slopes if np.unique(slopes).size > 1 and np.array_equal(made, array) else None


def _sloped(
    slopes: Array, rank: int, rest: Mapping[int, Size], dtype: int, at: RunTimeSizes
) -> Var:
    (row, size), (column, _) = sorted(rest.items())
    far = _positions((0, {column: 1, row: -1}), rank, {column: size, row: size}, dtype, at)
    made: Var = far * constant(slopes, dtype)
    return made
