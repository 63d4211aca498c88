"""Constants with a number for each position, extended to any number of positions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from onnxgrad.batching.layout import Refused, Size
from onnxgrad.batching.run_time_sizes import RunTimeSizes
from onnxgrad.ir.emission.emit import constant
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import Array
from onnxgrad.ir.var import Var
from onnxgrad.transform.sizes.expressions import Fixed
from onnxgrad.transform.sizes.extensions import Extension, Extensions
from onnxgrad.transform.sizes.positions import FEWEST, SHOWN, Rule, counts, of_pairs, range_of
from onnxgrad.transform.sizes.waves import Waves, waves_of

_MASKS = ("triangle", "same")  # readings that a mask of a window has, too, at fewer positions


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
            f"of others: export with a size of {FEWEST} or more"
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
            tuple(wanted.values()), rule.is_relative,
            rule.reading in _MASKS and _pairs_positions(array, next(iter(wanted))), rule.rates,
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
    return f"[{', '.join(row if len(row) <= SHOWN else [*row[:SHOWN], '...', row[-1]])}]"


def _rules(v: Var, array: Array, wanted: Mapping[int, Size], asked: str) -> Iterator[Rule]:
    """Yields the readings that fit a constant, the likeliest first."""
    axes = [a for a in wanted if not _same(array, a)]
    for axis in wanted.keys() - axes:
        array = np.take(array, [0], axis)
    if not axes:
        made = partial(_constant, array, v.dtype)
        yield Rule("same", "is the same at every position", made, [array])
        return
    rest, first = {a: wanted[a] for a in axes}, axes[0]
    count = array.shape[first]
    after = range(count, count + SHOWN)
    for pair in _with_another(array, rest, wanted):
        yield from counts(v, array, pair, FEWEST if asked != "ramp" else 2)
        if len(pair) == 2 and len({*pair.values()}) == 1:
            yield from of_pairs(v, array, pair)
    row = np.take(array, [1], first)
    if len(rest) == 1 and _is_multiple(array, row, first):
        made = partial(_multiplied, row, first, rest[first], v.dtype)
        rows = [np.multiply(row, row.dtype.type(i)) for i in after]
        words, rates = "holds multiples of its row 1", _rates(row)
        yield Rule("ramp", words, made, rows, is_relative=True, rates=rates)
    back = np.flip(array, first)
    row = np.take(back, [1], first)
    if len(rest) == 1 and _is_multiple(back, row, first):
        made = partial(_multiplied, row, first, rest[first], v.dtype, from_last=True)
        words = "holds multiples of the distance to the last position"
        yield Rule("ramp", words, made, [np.multiply(row, row.dtype.type(count))], is_relative=True)
    waves = waves_of(array, first, _tables(v)) if len(rest) == 1 and count >= FEWEST else None
    if waves is not None:
        made = partial(_waved, waves, array, first, rest[first], v.dtype)
        rows = [waves.at(np.array(i)).astype(array.dtype) for i in after]
        words, rates = "holds cosines and sines of positions", _rates(waves.frequency)
        yield Rule("waves", words, made, rows, is_relative=True, rates=rates)
    periods = {a: _period(array, a) for a in rest}
    if asked == "repeat" or all(2 * p <= array.shape[a] for a, p in periods.items()):
        words = f"repeats after {periods[first]} positions"
        rows = [np.take(array, [i % periods[first]], first) for i in after]
        yield Rule("repeat", words, partial(_repeated, array, periods, rest, v.dtype), rows)


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


def _rates(row: Array) -> tuple[float, ...]:
    return tuple(np.unique(row).tolist())


def _pairs_positions(array: Array, axis: int) -> bool:
    """Whether a number belongs to each pair of positions."""
    return array.shape.count(array.shape[axis]) > 1


def _tables(v: Var) -> Iterator[Array]:
    """Yields the other constants of the shape of a constant."""
    for other in v.block.vars():
        same = other is not v and other.type == v.type
        array = other.const if same else None
        if array is not None:
            yield array


def _waved(waves: Waves, array: Array, axis: int, size: Size, dtype: int, at: RunTimeSizes) -> Var:
    """Emits the rows of the file, to the bit, and computed rows beyond them."""
    count = array.shape[axis]
    target = np.array([-1 if a == axis else 1 for a in range(array.ndim)], np.int64)
    beyond = op.Reshape(range_of(size, at, count), target)  # as many again: never none
    more = waves.emit(op.Cast(beyond, to=dtype), dtype)
    every = op.Concat(constant(array, dtype), more, axis=axis)
    made: Var = op.Slice(every, np.array([0]), at.vector([size]), np.array([axis]))
    return made


def _is_multiple(array: Array, row: Array, axis: int) -> bool:
    """Whether row p is p times `row` to the bit, with several numbers in a row: the angles of
    rotations, or slopes times positions.
    """
    count = array.shape[axis]
    if array.dtype.kind != "f" or count < FEWEST or np.unique(row).size < 2:
        return False
    numbers = np.arange(count).astype(array.dtype)
    shape = [-1 if a == axis else 1 for a in range(array.ndim)]
    return np.array_equal(np.multiply(numbers.reshape(shape), row), array)


def _multiplied(
    row: Array, axis: int, size: Size, dtype: int, at: RunTimeSizes, *, from_last: bool = False
) -> Var:
    target = np.array([-1 if a == axis else 1 for a in range(row.ndim)], np.int64)
    numbers = range_of(size, at)
    if from_last:
        numbers = at.of(size) - np.int64(1) - numbers
    made: Var = op.Cast(op.Reshape(numbers, target), to=dtype) * constant(row, dtype)
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
        made = op.Gather(made, op.Mod(range_of(size, at), np.int64(periods[axis])), axis=axis)
    return made


def _spread(made: Var, rank: int, alone: Mapping[int, Size], at: RunTimeSizes) -> Var:
    """Expands a value along the axes `alone`, on which all its elements are equal."""
    if not alone:
        return made
    target = [alone.get(a, 1) for a in range(rank)]
    spread: Var = op.Expand(made, at.vector(target))
    return spread
