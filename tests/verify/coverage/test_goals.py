"""From a threshold back to the inputs and sizes that reach it, and the values that fill an input."""

from __future__ import annotations

import numpy as np
import pytest

from onnxgrad.verify.coverage.counters import Goal
from onnxgrad.verify.coverage.goals import Wishes, filled, fitting, parted, solved
from onnxgrad.verify.feeds.data_flow import DataFlow
from tests.verify.coverage.planted import model

X, Y = "float[N,6] x", "float[N,6] y"
# body -> what x has to be for t to be 4
WANTED = {
    "t = Identity (x)": 4.0,
    "a = Add (x, k) t = Mul (a, k)": 0.0,
    "a = Sub (k, x) t = Neg (a)": 6.0,
    "a = Div (x, k) t = Relu (a)": 8.0,
    "a = Exp (x) t = Sqrt (a)": np.log(16),
    "a = Mul (x, x) t = Identity (a)": 2.0,
    "t = ReduceSum (x, e)": 4 / 6,
    "t = ReduceMax (x, e)": 4.0,
    "t = ReduceL2 (x, e)": 4 / np.sqrt(6),
    "a = Softplus (x) t = Reciprocal (a)": np.log(np.expm1(0.25)),
}


@pytest.mark.parametrize("body", WANTED)
def test_inverses(body: str) -> None:
    given = model(X, f"{body} y = Tanh (t)", Y, k=np.float32(2), e=[1])
    flow = DataFlow(given).at({"N": 2})
    found = solved(flow, Goal("", "t", np.array([4.0]))).values["x"]
    assert np.abs(np.concatenate(found) - WANTED[body]).min() < 1e-6


# body -> the sizes of S for which t is 12, and for which it has 12 elements on axis 1
SIZES = {
    "s = Shape (x) t = Gather (s, one)": {12},
    "s = Shape (x) g = Gather (s, one) t = Add (g, one)": {11},
    "s = Shape <start = 1> (x) f = Cast <to = 1> (s) h = Mul (f, half) t = Cast <to = 7> (h)": {24},
    "t = Size (x)": {6},
}


@pytest.mark.parametrize("body", SIZES)
def test_sizes(body: str) -> None:
    given = model(
        "float[N,S] x", f"{body} y = Tanh (x)", "float[N,S] y", one=1, half=np.float32(0.5)
    )
    found = solved(DataFlow(given).at({"N": 2, "S": 3}), Goal("", "t", np.array([12.0])))
    assert found.sizes["S"] == SIZES[body]


def test_the_size_of_an_axis_may_be_a_formula() -> None:
    given = model("float[N,S] x", "t = Concat <axis = 1> (x, x) y = Tanh (t)", "float[N,T] y")
    found = solved(DataFlow(given), Goal("", "x", np.array([12, 13]), 1))
    assert found.sizes == {"S": {12, 13}}


def test_an_inverse_without_a_number_is_dropped() -> None:
    given = model(X, "t = Tanh (x) y = Neg (t)", Y)
    (found,) = solved(DataFlow(given), Goal("", "t", np.array([2.0, 0.5]))).values["x"]
    assert found.tolist() == pytest.approx([np.arctanh(0.5)])


def test_filled_elements_rows_and_everything() -> None:
    usual, wanted = np.zeros((4, 6), np.float32), [np.array([5.0, 7.0])]
    some = filled(usual, wanted, 0, 0)
    assert some is not None and set(some.reshape(-1)) == {0.0, 5.0, 7.0}
    rows = filled(usual, wanted, 1, 0)
    assert rows is not None and all(len(set(row)) == 1 for row in rows)
    everything = filled(usual, wanted, 2, 0)
    assert everything is not None and set(everything.reshape(-1)) == {5.0}
    row = np.array([[np.nan, 1, 2, 3, 4, 5]])
    by_row = filled(usual, [row], 0, 0)
    assert by_row is not None and by_row[3].tolist() == [0, 1, 2, 3, 4, 5]
    assert filled(usual, wanted, 0, 0, (0.0, 1.0)) is None  # a mask
    assert not usual.any()


def test_what_fits_a_type() -> None:
    wanted = [np.array([-1.5, 300.0, np.nan, np.inf])]
    assert fitting(wanted, np.dtype(np.int16)).tolist() == [-2, 300, -1]
    assert fitting(wanted, np.dtype(np.uint8)).tolist() == []
    assert fitting([np.array(["a"], object)], np.dtype(object)).tolist() == ["a"]
    assert fitting([np.array([0, 2])], np.dtype(bool)).tolist() == [False, True]


def test_infinite_values_come_apart() -> None:
    wishes = Wishes({"x": [np.array([1.0, np.nan])], "s": [np.array(["a"], object)]})
    finite, rest = (parted(wishes.values, which) for which in (True, False))
    assert [a.tolist() for a in finite["x"]] == [[1.0]] and "s" in finite
    assert list(rest) == ["x"] and np.isnan(rest["x"][0]).all()
