"""Constants that count positions, extended to any number of positions."""

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
from onnxgrad.transform.sizes.expressions import Fixed
from onnxgrad.transform.sizes.extensions import Extension, Extensions

_FEWEST = 4  # fewer positions do not determine a formula
_SHOWN = 3  # numbers beyond the file in a message


@dataclass(frozen=True)
class _Rule:
    """A reading of a constant. `make` emits the constant for any size, before axes are added along
    which it does not change; `rows` are its numbers at the first positions beyond the file.
    """

    reading: str
    words: str
    make: Callable[[RunTimeSizes], Var]
    rows: Sequence[Array]


def for_any_size(
    v: Var,
    wanted: Mapping[int, Size],
    at: RunTimeSizes,
    extensions: Extensions,
    whole: Var | None = None,
) -> tuple[Var, str]:
    """Returns a constant extended to the `wanted` sizes by axis, and its reading in words: the one
    that the user chose, or else the first that fits. `whole`: the constant of which `v` is a
    column. Raises Refused if no reading fits.
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
    asked = extensions.asked(whole or v)
    if whole is not None and all(_same(array, a) for a in wanted):
        asked = ""
    rules = [*_rules(v, array, wanted, asked)]
    rule = next((r for r in rules if not asked or r.reading == asked), None)
    if rule is None:
        raise _no_rule(v, array, wanted, asked)
    owner = whole or v
    extensions.add(
        Extension(
            owner.name, f"constant '{owner.name}' {owner.type}", rule.reading,
            tuple(r.reading for r in rules if r is not rule), rule.words, _shown(rule.rows),
            tuple(wanted.values()),
        )
    )  # fmt: skip
    alone = {a: d for a, d in wanted.items() if _same(array, a)}
    return _spread(rule.make(at), array.ndim, alone, at), rule.words


def _no_rule(v: Var, array: Array, wanted: Mapping[int, Size], asked: str) -> Refused:
    rest = {a: d for a, d in wanted.items() if not _same(array, a)}
    text = " and ".join(
        f"{array.shape[a]} on axis {a} for {d}" for a, d in (rest or wanted).items()
    )
    if asked:
        return Fixed(f"constant '{v.name}' {v.type} ({text}) does not fit the reading '{asked}'")
    cause = Refused if all(_even(array, axis) for axis in rest) else Fixed
    return cause(
        f"constant '{v.name}' {v.type} holds one value for each position ({text}), and follows no "
        "rule that extends it: export with a dynamic axis"
    )


def _shown(rows: Sequence[Array]) -> str:
    """Returns the numbers at the first positions beyond the file, as text."""
    texts = [
        [f"{x:g}" if isinstance(x, float) else str(x) for x in r.ravel().tolist()] for r in rows
    ]
    if all(len(row) == 1 for row in texts):
        firsts = [row[0] for row in texts]
        return firsts[0] if len({*firsts}) == 1 else ", ".join([*firsts, "..."])
    row = texts[0]
    return f"[{', '.join(row if len(row) <= _SHOWN else [*row[:_SHOWN], '...', row[-1]])}]"


def _rules(v: Var, array: Array, wanted: Mapping[int, Size], asked: str) -> Iterator[_Rule]:
    """Yields the readings that fit a constant, the likeliest first."""
    axes = [a for a in wanted if not _same(array, a)]
    for axis in wanted.keys() - axes:
        array = np.take(array, [0], axis)
    if not axes:
        made = partial(_constant, array, v.dtype)
        yield _Rule("same", "is the same at every position", made, [array])
        return
    rest, first = {a: wanted[a] for a in axes}, axes[0]
    count = array.shape[first]
    after = range(count, count + _SHOWN)
    for pair in _with_another(array, rest, wanted):
        affine = _affine(array, pair, _FEWEST if asked != "ramp" else 2)
        if affine is not None:
            start, steps = affine
            counted = partial(_positions, affine, array.ndim, pair, v.dtype)
            numbers = [np.array(start + i * steps[first]) for i in after]
            yield _Rule("ramp", "counts positions", counted, numbers)
        triangle = _triangle(array, pair) if len(pair) == 2 else None
        if triangle is not None:
            low, high, offset = triangle
            row = np.array([low] * (count + 1 + offset) + [high])
            masked = partial(_masked, array.ndim, triangle, pair, v.dtype)
            yield _Rule("triangle", "is a triangle of two values", masked, [row])
    row = np.take(array, [1], first)
    if len(rest) == 1 and _is_multiple(array, row, first):
        made = partial(_multiplied, row, first, rest[first], v.dtype)
        rows = [np.multiply(row, row.dtype.type(i)) for i in after]
        yield _Rule("ramp", "holds multiples of its row 1", made, rows)
    periods = {a: _period(array, a) for a in rest}
    if asked == "repeat" or all(2 * p <= array.shape[a] for a, p in periods.items()):
        words = f"repeats after {periods[first]} positions"
        rows = [np.take(array, [i % periods[first]], first) for i in after]
        yield _Rule("repeat", words, partial(_repeated, array, periods, rest, v.dtype), rows)


def _constant(array: Array, dtype: int, _: RunTimeSizes) -> Var:
    return constant(array, dtype)


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
    rank: int,
    triangle: tuple[Array, Array, int],
    rest: Mapping[int, Size],
    dtype: int,
    at: RunTimeSizes,
) -> Var:
    low, high, offset = triangle
    (row, size), (column, _) = sorted(rest.items())
    positions = _range(size, at)
    i, j = (
        op.Reshape(positions, np.array([-1 if k == a else 1 for k in range(rank)], np.int64))
        for a in (row, column)
    )
    below = op.Less(j, i) if offset else op.Not(op.Less(i, j))
    made: Var
    if dtype == TensorProto.BOOL:  # onnxruntime has no Where of booleans
        made = below if low else op.Not(below)
    else:
        made = op.Where(below, constant(low, dtype), constant(high, dtype))
    return made


def _is_multiple(array: Array, row: Array, axis: int) -> bool:
    """Whether row p is p times `row` to the bit, with several numbers in a row: the angles of
    rotations, or slopes times distances.
    """
    count = array.shape[axis]
    if array.dtype.kind != "f" or count < _FEWEST or np.unique(row).size < 2:
        return False
    numbers = np.arange(count).astype(array.dtype)
    shape = [-1 if a == axis else 1 for a in range(array.ndim)]
    return np.array_equal(np.multiply(numbers.reshape(shape), row), array)


def _multiplied(row: Array, axis: int, size: Size, dtype: int, at: RunTimeSizes) -> Var:
    target = np.array([-1 if a == axis else 1 for a in range(row.ndim)], np.int64)
    made: Var = op.Cast(op.Reshape(_range(size, at), target), to=dtype) * constant(row, dtype)
    return made


def _period(array: Array, axis: int) -> int:
    """Returns the number of positions after which an axis repeats, or its size."""
    count: int = array.shape[axis]
    for period in range(1, count):
        again = np.take(array, np.arange(count) % period, axis)
        if again.tobytes() == array.tobytes():
            return period
    return count


def _repeated(
    array: Array,
    periods: Mapping[int, int],
    rest: Mapping[int, Size],
    dtype: int,
    at: RunTimeSizes,
) -> Var:
    for axis, period in periods.items():
        array = np.take(array, np.arange(period), axis)
    made: Var = constant(array, dtype)
    for axis, size in rest.items():
        made = op.Gather(made, op.Mod(_range(size, at), np.int64(periods[axis])), axis=axis)
    return made


def _spread(made: Var, rank: int, alone: Mapping[int, Size], at: RunTimeSizes) -> Var:
    """Expands a value along the axes `alone`, on which all its elements are equal."""
    if not alone:
        return made
    target = [alone.get(a, 1) for a in range(rank)]
    spread: Var = op.Expand(made, at.vector(target))
    return spread
