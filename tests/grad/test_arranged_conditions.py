"""onnxgrad/grad/arranged_conditions.py: a condition in the layout of a value, against numpy."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxgrad.grad.arranged_conditions import arranged, parts_by_axis
from onnxgrad.ir.axis_places import Run, joined
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.load import load
from onnxgrad.ir.save import to_proto
from onnxgrad.verify.running.session import run
from tests.helpers import parse

FACTORS = (2, 3, 4)


def groups(cuts: set[int], count: int) -> list[range]:
    """Neighbours that are one axis."""
    ends = [0, *sorted(c for c in cuts if c < count), count]
    return [range(a, b) for a, b in pairwise(ends)]


def arranges(
    axes: list[range], chosen: list[int], parts: list[range], symbols: dict[int, str]
) -> None:
    """The value has these `axes` of the factors; the condition varies along the `chosen` ones, in
    this order, of which `parts` are its axes. symbols: the axes of the value of unknown size.
    """
    shape = tuple(math.prod(FACTORS[f] for f in axis) for axis in axes)
    place = {
        f: (i, None if f == axis[0] else FACTORS[f], math.prod(FACTORS[g] for g in axis if g > f))
        for i, axis in enumerate(axes)
        for f in axis
    }
    runs: list[Run] = [joined([place[chosen[k]] for k in part]) for part in parts]
    sizes = [math.prod(FACTORS[chosen[k]] for k in part) for part in parts]
    declared = ",".join(symbols.get(i, str(d)) for i, d in enumerate(shape))
    names = ",".join(map(str, sizes))
    block = load(
        parse(
            f"g (float[{declared}] x, bool[{names}] c) => (float[{declared}] y) {{ y = Relu (x) }}"
        )
    ).main
    x, c = block.inputs
    assert x.shape is not None
    if parts_by_axis(runs, x.shape) is None:
        assert symbols
        return
    with emitting(block):
        mask = arranged(c, range(len(parts)), runs, x, x.shape)
    block.add_output(mask)
    model = to_proto(block.program)
    condition = np.random.default_rng(0).random(sizes) < 0.5
    found = run(model, {"x": np.zeros(shape, np.float32), "c": condition})[mask.name]
    # the condition with one axis for each factor
    wide = condition.reshape([FACTORS[f] for f in chosen]).transpose(np.argsort(chosen))
    wide = wide.reshape([n if f in chosen else 1 for f, n in enumerate(FACTORS)])
    expected = np.broadcast_to(wide, FACTORS).reshape(shape)
    np.testing.assert_array_equal(np.broadcast_to(found, shape), expected)


@settings(max_examples=40)
@given(
    st.sets(st.integers(1, 2)),
    st.permutations(range(3)),
    st.integers(1, 3),
    st.sets(st.integers(1, 2)),
    st.sets(st.integers(0, 2)),
)
def test_every_layout(
    cuts: set[int], order: list[int], count: int, splits: set[int], unknown: set[int]
) -> None:
    axes = groups(cuts, 3)
    symbols = {i: "NMK"[i] for i in unknown if i < len(axes)}
    arranges(axes, order[:count], groups(splits, count), symbols)


def test_a_condition_of_samples_of_flat_rows() -> None:
    """Rows of B T where the condition is of B: each is repeated T times."""
    arranges([range(2), range(2, 3)], [0], [range(1)], {0: "N"})
    arranges([range(2), range(2, 3)], [1], [range(1)], {0: "N"})
