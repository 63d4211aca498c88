"""The counters of coverage: a copy of the attributes of one is a state to return to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnxgrad.verify.coverage.counters import Branches, Counter, Elements, Factor, Rows, Turns
from onnxgrad.verify.coverage.thresholds import Keys, Slices, Thresholds

f32 = np.float32
ROWS_OF_X = np.eye(3, dtype=f32)
COUNTED: list[tuple[Counter, tuple[list[Any], int], tuple[list[Any], int]]] = [
    (Branches("If"), ([np.array(True)], 1), ([np.array(False)], 1)),
    (Turns("Loop", ("0", "1", "many")), ([], 0), ([], 3)),
    (Rows("t", ["t", "i"], 0, 1, 0, ""), ([ROWS_OF_X, 0], 0), ([ROWS_OF_X, 2], 0)),
    (Keys("Label", np.array([5, 7]), "x", 1, ""), ([np.array([5])], 0), ([np.array([7])], 0)),
    (Keys("Imputer", np.array([0]), "x", 3, ""), ([ROWS_OF_X[:1]], 0), ([ROWS_OF_X[1:2]], 0)),
    (
        Slices("Slice", "x", [1], ""),
        ([ROWS_OF_X, [2], [9], [0]], 0),
        ([np.eye(2), [2], [9], [0]], 0),
    ),
    (Thresholds("Relu", "Relu", ["x"], 1, None, ""), ([f32(-1)], 0), ([f32(1)], 0)),
    (
        Elements("w", 9, ["x", "w"], 1, Factor(0, -1, -2)),
        ([ROWS_OF_X[:1], ROWS_OF_X], 0),
        ([ROWS_OF_X[1:], ROWS_OF_X], 0),
    ),
]


@pytest.mark.covering
@pytest.mark.parametrize(("counter", "first", "second"), COUNTED, ids=lambda v: type(v).__name__)
def test_a_counter_changes_nothing_in_place(
    counter: Counter, first: tuple[list[Any], int], second: tuple[list[Any], int]
) -> None:
    counter.see({}, first[0], first[0], first[1])
    state, words = dict(vars(counter)), str(vars(counter))
    counter.see({}, second[0], second[0], second[1])
    assert str(vars(counter)) != words and str(state) == words


@pytest.mark.parametrize(("k", "counted"), [((), False), ((None,), False), ((np.array(-3),), True)])
def test_a_triangle_without_a_diagonal_has_no_threshold(k: tuple[Any, ...], counted: bool) -> None:
    counter = Slices("Trilu", "x", [1, 2], "")
    for size in (3, 5):
        counter.see({"upper": 1}, [np.eye(size), *k], [], 0)
    assert bool(counter.items()) == counted
