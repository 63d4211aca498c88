"""Steps that are computed by blocks have the bytes of those that are computed as a whole."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxgrad.ir.derivations import Step
from onnxgrad.ir.storage import lazy_arrays
from onnxgrad.ir.types import Array
from onnxgrad.jobs.rebasing.by_blocks import Range, Source
from onnxgrad.jobs.rebasing.values import Values

SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, 3e-8, 1e5, 1e30, 1.0], np.float32)
UNARY = ["absolute", "isfinite", "isinf", "isnan", "logical_not", "negative", "sqrt", "square"]
BINARY = [
    "add", "divide", "equal", "greater", "greater_equal", "less", "less_equal", "logical_and",
    "logical_or", "multiply", "not_equal", "subtract",
]  # fmt: skip
REDUCED = {"all": [], "any": [], "fits_float16": [True], "reason_of_rounding": [1, "w"]}


class Drawn:
    """Steps over weights, and their values as a whole."""

    def __init__(self, data: st.DataObject) -> None:
        self.draw = data.draw
        shape = self.draw(st.lists(st.integers(0, 5), max_size=3).map(tuple), label="shape")
        self.weights = {"w": self.array(shape), "v": self.array(self.repeated(shape))}
        self.steps: list[Step] = []
        self.known: dict[Step, Any] = {}
        for name in self.weights:
            self.add(Step("weight", name))

    def array(self, shape: tuple[int, ...]) -> Array:
        rng = np.random.default_rng(self.draw(st.integers(0, 99)))
        array = rng.standard_normal(shape).astype(np.float32)
        share = self.draw(st.sampled_from([0.0, 0.2]))
        return np.where(rng.random(shape) < share, rng.choice(SPECIAL, shape), array)

    def repeated(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """A shape that fits beside another one."""
        made = [1 if self.draw(st.booleans()) else length for length in shape]
        return tuple(made[self.draw(st.integers(0, len(shape))) :])

    def add(self, step: Step) -> Step:
        self.steps.append(step)
        self.known[step] = Values(self.steps, [step], self.weights.__getitem__).of(step)
        return step

    def grow(self) -> None:
        """Adds a step over one that exists."""
        x = self.draw(st.sampled_from(self.steps))
        array = self.known[x]
        kind = self.draw(st.sampled_from(["unary", "binary", "where", "astype", "move", "shape", "join", "slice", "sum", "half"]))  # fmt: skip
        if kind == "unary" and array.dtype != bool:
            self.add(Step("numpy", self.draw(st.sampled_from(UNARY)), [x]))
        elif kind == "binary" and array.dtype != bool:
            number: Any = self.draw(st.sampled_from([2.0, np.float32(3), *self.beside(array)]))
            operands = [x, number] if self.draw(st.booleans()) else [number, x]
            self.add(Step("numpy", self.draw(st.sampled_from(BINARY)), operands))
        elif kind == "where":
            condition = self.add(Step("numpy", "greater", [x, 0]))
            self.add(Step("numpy", "where", [condition, x, self.draw(st.sampled_from(self.beside(array)))]))  # fmt: skip
        elif kind == "astype":
            self.add(Step("astype", np.dtype(self.draw(st.sampled_from(["f2", "f4", "f8"]))), [x]))
        elif kind == "move":
            axes = self.draw(st.permutations(range(array.ndim)))
            self.add(Step("numpy", "transpose", [x, *([tuple(axes)] if axes else [])]))
        elif kind == "shape":
            self.add(self.reshaped(x, array))
        elif kind == "join" and array.ndim:
            axis = self.draw(st.integers(-array.ndim, array.ndim - 1))
            others = [s for s in self.steps if self.known[s].shape == array.shape]
            picked = self.draw(st.lists(st.sampled_from(others), min_size=1, max_size=3))
            self.add(Step("numpy", "concatenate", [[x, *picked]], {"axis": axis}))
        elif kind == "slice":
            axes = array.shape[: self.draw(st.integers(0, array.ndim))]
            index = tuple(self.part(length) for length in axes)
            self.add(Step("getitem", None, [x, index]))
        elif kind == "sum" and array.ndim and array.dtype != bool:  # computed as a whole
            self.add(Step("numpy", "cumsum", [x, 0]))
        elif kind == "half" and array.dtype == np.float32:
            self.add(Step("call", "in_half", [x]))

    def part(self, length: int) -> slice:
        start, stop = sorted(self.draw(st.integers(0, length)) for _ in range(2))
        return slice(start, stop, self.draw(st.sampled_from([1, 1, 2])))

    def beside(self, array: Array) -> list[Any]:
        """Operands that fit beside an array."""
        found = [self.array(self.repeated(array.shape))]
        return [*found, *(s for s in self.steps if self.known[s].shape == array.shape)]

    def reshaped(self, x: Step, array: Array) -> Step:
        kind = self.draw(st.sampled_from(["flat", "last", "merged", "expanded", "squeezed"]))
        if kind == "expanded":
            return Step("numpy", "expand_dims", [x, (self.draw(st.integers(0, array.ndim)),)])
        if kind == "squeezed":
            return Step("numpy", "squeeze", [x])
        if kind == "flat":
            return Step("numpy", "reshape", [x, -1 if array.size else 0])
        at = self.draw(st.integers(0, array.ndim))
        first, rest = array.shape[:at], array.shape[at:]
        return Step("numpy", "reshape", [x, (prod(first), *rest) if kind == "merged" else (*first, prod(rest))])  # fmt: skip


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_bytes(data: st.DataObject) -> None:
    drawn = Drawn(data)
    for _ in range(data.draw(st.integers(1, 8))):
        drawn.grow()
    made, steps = list(drawn.steps), drawn.steps
    other = data.draw(st.sampled_from(made))
    for s in made:
        reduced = [Step("own", "same_bytes", [s, other]), Step("own", "same_bytes", [s, drawn.known[s]])]  # fmt: skip
        if drawn.known[s].dtype in (np.float32, np.float64):
            reduced += [
                Step("call" if name not in ("all", "any") else "numpy", name, [s, *more])
                for name, more in REDUCED.items()
                if name != "fits_float16" or drawn.known[s].dtype == np.float32
            ]
        for step in reduced:
            drawn.add(step)
    weights = {name: array for name, array in drawn.weights.items() if array.size > 1}
    sources = {name: _source(name, array, []) for name, array in weights.items()}
    size = data.draw(st.sampled_from([1, 3, 7, 1 << 19]), label="block")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lazy_arrays, "_BLOCK", size)
        values = Values(steps, steps, drawn.weights.__getitem__, sources)
        for s in steps:
            shape, found = values.blocks(s)
            blocks, expected = list(found), np.asarray(drawn.known[s])
            if expected.dtype == object or (s.kind in ("call", "own") and not expected.shape):
                assert bool(blocks[0]) is bool(expected)
                continue
            assert shape == expected.shape and {b.dtype for b in blocks} == {expected.dtype}
            assert b"".join(b.tobytes() for b in blocks) == expected.tobytes()
    assert not values._values


def _source(name: str, array: Array, read: list[Any]) -> Source:
    def part(at: Range) -> Array:
        read.append((name, *at))
        return array[at.places]

    return Source(array.shape, part)


def _values(steps: list[Step], weights: dict[str, Array], read: list[Any]) -> Values:
    """Of the last step, whose weights are only read by blocks."""
    sources = {name: _source(name, array, read) for name, array in weights.items()}
    return Values(steps, [steps[-1]], {}.__getitem__, sources)


def test_only_blocks_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scaled transpose reads columns; of a concatenation, only the operands of a block."""
    monkeypatch.setattr(lazy_arrays, "_BLOCK", 6)
    w, v = Step("weight", "w"), Step("weight", "v")
    turned = Step("numpy", "transpose", [w, (1, 0)])
    joined = Step("numpy", "concatenate", [[turned, v]], {"axis": 0})
    scaled = Step("numpy", "multiply", [joined, np.float32(2)])
    weights = {"w": np.arange(12.0).reshape(3, 4), "v": np.ones((4, 3))}
    read: list[Any] = []
    values = _values([w, v, turned, joined, scaled], weights, read)
    shape, blocks = values.blocks(scaled)
    assert shape == (8, 3) and [b.shape for b in blocks] == [(2, 3)] * 4
    assert [r for r in read if r[2] < r[3]] == [("w", 1, 0, 2), ("w", 1, 2, 4), ("v", 0, 0, 2), ("v", 0, 2, 4)]  # fmt: skip


@pytest.mark.parametrize("last", [1.0, np.nan])
@pytest.mark.parametrize(
    ("step", "holds"),
    [
        (lambda w: Step("numpy", "all", [Step("numpy", "equal", [w, 1])]), True),
        (lambda w: Step("numpy", "any", [Step("numpy", "isnan", [w])]), False),
        (lambda w: Step("own", "same_bytes", [w, np.ones((4, 3), np.float32)]), True),
        (lambda w: Step("call", "reason_of_rounding", [w, 1, "w"]), False),
    ],
)  # fmt: skip
def test_a_fact_that_fails_in_the_last_block(
    monkeypatch: pytest.MonkeyPatch, step: Any, holds: bool, last: float
) -> None:
    monkeypatch.setattr(lazy_arrays, "_BLOCK", 3)
    array = np.ones((4, 3), np.float32)
    array[3, 2] = last
    w, read = Step("weight", "w"), list[Any]()
    fact = step(w)
    steps = [w, *(o for o in fact.operands if isinstance(o, Step) and o is not w), fact]
    assert bool(_values(steps, {"w": array}, read).of(fact)) is (holds if last == 1 else not holds)
    assert read == [("w", 0, i, i + 1) for i in range(4)]


def test_numbers_that_float16_lacks_in_one_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """All numbers of a block may vanish if others do not; one number of several becomes 0."""
    monkeypatch.setattr(lazy_arrays, "_BLOCK", 1)
    for first, fits in ((1.0, True), (1e-9, False)):
        array, w = np.array([first, 1e-9], np.float32), Step("weight", "w")
        fact, half = Step("call", "fits_float16", [w, False]), Step("call", "in_half", [w])
        assert bool(_values([w, fact], {"w": array}, []).of(fact)) is fits
        assert _values([w, half], {"w": array}, []).of(half).tolist() == [round(first), 0]
