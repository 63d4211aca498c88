"""onnxgrad/ir/axis_places.py: parts of axes, followed through reshapes, against the indices of numpy."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxgrad.ir.axis_maps import carried, on_axes
from onnxgrad.ir.axis_places import Run, composed, joined, reshaped, run_in, whole
from onnxgrad.ir.load import load
from tests.helpers import parse

FACTORS = (2, 3, 2, 5)


def index(run: Run, at: tuple[int, ...], shape: tuple[int, ...]) -> int:
    """The index of an axis that is a run, at an index of the value."""
    found = 0
    for axis, size, inner in run:
        assert isinstance(inner, int)
        n = shape[axis] // inner if size is None else size
        assert isinstance(n, int)
        found = found * n + at[axis] // inner % n
    return found


@st.composite
def shapes(draw: st.DrawFn) -> tuple[int, ...]:
    """The factors, joined to axes, with axes of size 1 between."""
    cuts = sorted(draw(st.sets(st.integers(1, len(FACTORS) - 1))))
    joined_sizes = [
        math.prod(FACTORS[a:b]) for a, b in zip([0, *cuts], [*cuts, len(FACTORS)], strict=True)
    ]
    for place in sorted(draw(st.sets(st.integers(0, len(joined_sizes)))), reverse=True):
        joined_sizes.insert(place, 1)
    return tuple(joined_sizes)


@given(shapes(), shapes(), st.data())
def test_a_part_of_an_axis_after_a_reshape(
    before: tuple[int, ...], after: tuple[int, ...], data: st.DataObject
) -> None:
    axis = data.draw(st.sampled_from([i for i, d in enumerate(before) if d != 1]))
    inner = data.draw(st.sampled_from([1, 2, 3, 5, 6]))
    size = data.draw(st.sampled_from([None, 2, 3, 6]))
    if before[axis] % (inner * (size or 1)) or before[axis] == inner:
        return
    run = reshaped((axis, size, inner), before, after)
    if run is None:  # a part across the border of two axes
        assert inner > 1 or size is not None
        return
    for at in product(*map(range, before)):
        number = np.ravel_multi_index(at, before)
        to = tuple(int(i) for i in np.unravel_index(number, after))
        assert index(((axis, size, inner),), at, before) == index(run, to, after)


@pytest.mark.parametrize(
    ("before", "after", "runs"),
    [
        (("B*T", 3), ("B", "T", 3), [((0, None, 1), (1, None, 1)), ((2, None, 1),)]),
        (("B", "T", 3), ("B*T", 3), [((0, None, "T"),), ((0, "T", 1),), ((1, None, 1),)]),
        ((None, 3), (None,), [((0, None, 3),), ((0, 3, 1),)]),
        ((None, 3), (4, None, 3), [None, ((2, None, 1),)]),
        (("B", None, 3), ("B", None), [((0, None, 1),), ((1, None, 3),), ((1, 3, 1),)]),
    ],
)
def test_sizes_that_are_not_numbers(
    before: tuple[int | str | None, ...],
    after: tuple[int | str | None, ...],
    runs: list[Run | None],
) -> None:
    assert [reshaped((i, None, 1), before, after) for i in range(len(before))] == runs


def test_rows_of_a_joined_axis_there_and_back() -> None:
    """[N,3] to [3N] and back: the rows of the result are thirds of the joined axis."""
    model = parse("""g (float[N,3] x) => (y) <int64[1] flat = {-1}, int64[2] rows = {-1, 3}> {
        f = Reshape (x, flat) y = Reshape (f, rows) }""")
    flat, back = load(model).main.bindings
    assert carried(back, 0) == (None,)
    assert run_in(back, 0, whole(0)) == ((0, None, 3),)
    assert run_in(flat, 0, ((0, None, 3),)) == whole(0)
    assert run_in(back, 0, whole(1)) == ((0, 3, 1),)
    assert run_in(flat, 0, ((0, 3, 1),)) == whole(1)
    assert on_axes(back.out) == (0, 1)


def test_a_part_of_a_run() -> None:
    """An axis of B T elements that runs along T and then B of a transposed value."""
    run = ((1, None, 1), (0, None, 1))
    assert composed(run, None, "T", ("T", "B", 3)) == ((1, None, 1),)
    assert composed(run, "T", 1, ("T", "B", 3)) == ((0, None, 1),)
    assert composed(whole(0), "T", 1, ("B*T",)) == ((0, "T", 1),)
    assert composed(whole(0), None, "T", (None,)) == ((0, None, "T"),)
    assert composed(((0, 6, 2),), None, 3, (24,)) == ((0, 2, 6),)
    assert joined(((0, None, 6), (0, 3, 2))) == ((0, None, 2),)
    assert joined(((0, None, 6), (0, 2, 1))) == ((0, None, 6), (0, 2, 1))
