"""Structure first, then numbers."""

from __future__ import annotations

import json
import math
import sys

import ml_dtypes
import numpy as np
import pytest

from onnxgrad.verify.compare import compare, noise, worst
from onnxgrad.verify.tolerance import (
    NOISE_FACTOR,
    Allowance,
    Range,
    floor_of,
    in_onnxruntime,
    widened,
)

X = np.array([[1.0, -2.0], [3.0, 4.0]], np.float32)


def only(a: object, b: object, tolerance: float | Allowance | None = None):
    (found,) = compare({"y": a}, {"y": b}, tolerance)
    return found


def test_equal() -> None:
    assert only(X, X.copy()).ok and only(X, X.copy()).rel == 0


def test_relative_to_the_largest_magnitude_with_index_and_values() -> None:
    changed = X.copy()
    changed[0, 1] += 0.4
    found = only(X, changed)
    assert not found.ok
    assert found.index == (0, 1) and found.rel == pytest.approx(0.1, rel=1e-5)
    assert (found.a, found.b) == pytest.approx((-2.0, -1.6))
    assert "y[0, 1]: -2 -> -1.6" in str(found)


def test_zero_against_something_is_all_of_it() -> None:
    assert only(np.zeros(2), np.array([0, 1e-30])).rel == 1
    assert only(np.zeros(2), np.zeros(2)).ok


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        (X, X.astype(np.float64), "dtype was float32, is float64"),
        (X, X.astype(ml_dtypes.bfloat16), "dtype was float32, is bfloat16"),
        (X, X.reshape(4), "shape was [2, 2], is [4]"),
        (X, X[None], "shape was [2, 2], is [1, 2, 2]"),
        (X, [X], "was a tensor, is a sequence"),
        ([X, X], [X], "had 2 elements, has 1"),
        (X, None, "was tensor, is absent"),
        (np.array([1, np.nan]), np.array([np.nan, 1]), "NaN at [0] on one side only"),
        (np.array([1, np.inf]), np.array([1, -np.inf]), "infinity at [1] on one side only"),
        (np.array([1, np.inf]), np.array([1, 1e38]), "infinity at [1] on one side only"),
    ],
)
def test_structure(a: object, b: object, words: str) -> None:
    found = only(a, b)
    assert not found.ok and math.isinf(found.rel) and words in str(found)


def test_names() -> None:
    found = compare({"y": X, "z": X}, {"y": X, "w": X})
    assert {d.output for d in found if not d.ok} == {"z", "w"}


def test_equal_nans_and_infinities_do_not_hide_the_rest() -> None:
    a = np.array([np.nan, np.inf, 1.0, 2.0])
    assert only(a, a.copy()).ok
    b = a.copy()
    b[2] = 1.1
    assert only(a, b).rel == pytest.approx(0.05)


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.bool_, ml_dtypes.int4])
def test_exact_types_are_exact(dtype: type) -> None:
    a = np.array([0, 1, 1, 0]).astype(dtype)
    b = np.array([0, 1, 0, 0]).astype(dtype)
    assert only(a, a).ok
    assert not only(a, b).ok and only(a, b).rel == 0.25 and only(a, b).index == (2,)


def test_strings_whatever_numpy_calls_them() -> None:
    a = np.array(["a", "b"])
    assert only(a, a.astype(object)).ok
    assert not only(a, np.array(["a", "c"], object)).ok


def test_sequences_are_compared_by_element() -> None:
    found = worst(compare({"y": [X, X]}, {"y": [X, 2 * X]}))
    assert found is not None and found.output == "y[1]" and found.rel == pytest.approx(0.5)


def test_maps() -> None:
    assert (
        only({"a": 1.0}, {"a": 1.0}).ok
        and not only({"a": 1.0}, {"a": 2.0}).ok
        and not only({"a": 1.0}, {"b": 1.0}).ok
    )
    assert only({"b": 1.0, "a": 2.0}, {"a": 2.0, "b": 1.0}).ok, "a map has no order"
    assert not only({"b": 1.0, "a": 2.0}, {"a": 1.0, "b": 2.0}).ok


def test_empty_and_scalar() -> None:
    assert only([], []).ok and only([], []).rel == 0
    assert only(np.zeros((0, 3)), np.zeros((0, 3))).ok
    assert only(np.array(1.0), np.array(1.5)).index == ()


def test_complex() -> None:
    assert not only(np.array([1 + 1j]), np.array([1 + 2j])).ok


def test_tolerance_is_the_noise_times_its_factor_above_a_floor() -> None:
    runs = [{"y": X, "i": np.array([1, 2])}, {"y": X * np.float32(1.001), "i": np.array([1, 2])}]
    limits = in_onnxruntime(runs[0], noise(runs))
    assert limits["y"].most == pytest.approx(NOISE_FACTOR * 0.001, rel=1e-2)
    assert limits["y"].noise == pytest.approx(0.001, rel=1e-2)
    assert limits["i"].most == 0
    assert in_onnxruntime(runs[0], {})["y"].most == floor_of(X.dtype.name)


@pytest.mark.parametrize(
    ("off", "answer"),
    [
        (0.0, "equal"),
        (9e-3, "equal"),
        (2e-2, "not proved"),
        (0.5, "not proved"),
        (0.9, "different"),
    ],
)
def test_above_the_cap_the_originals_own_noise_excuses_nothing(off: float, answer: str) -> None:
    """Within min(allowance, cap) equal, within the allowance not proved, above it different."""
    limit = Allowance(most=0.8, cap=1e-2, noise=0.1)
    changed = X.copy()
    changed[1, 1] -= 4 * off
    found = only(X, changed, limit)
    assert found.answer == answer and found.ok == (answer == "equal")
    assert found.compared == 4
    if answer == "not proved":
        assert found.doubt == (
            f"y differs by {off:.1e} of its largest value, and the original differs from itself "
            "by 1.0e-01"
        )


def test_an_unstable_shape_proves_nothing_unless_the_results_are_identical() -> None:
    runs = [{"y": X}, {"y": X[:1]}]
    limits = in_onnxruntime(runs[0], noise(runs))
    (found,) = compare(runs[0], {"y": X[:1]}, limits)
    assert found.answer == "not proved" and "shape was [2, 2]" in found.doubt
    (found,) = compare(runs[0], {"y": X}, limits)
    assert found.answer == "equal" and found.compared == 4


def test_an_unstable_nan_proves_nothing_unless_the_results_are_identical() -> None:
    a, b = np.array([1, np.nan]), np.array([1.0, 2.0])
    limits = in_onnxruntime({"y": a}, noise([{"y": a}, {"y": b}]))
    assert [only(a, c, limits["y"]).answer for c in (a, b)] == ["equal", "not proved"]


def test_worst_prefers_what_fails() -> None:
    found = compare({"a": X, "b": X}, {"a": X * np.float32(1.5), "b": X}, {"a": 1.0, "b": 0.0})
    assert worst(found).output == "a"
    found = compare(
        {"a": X, "b": X},
        {"a": X * np.float32(1.5), "b": X + np.float32(1e-3)},
        {"a": 1.0, "b": 1e-6},
    )
    assert worst(found).output == "b"


def test_to_dict_is_json() -> None:
    for difference in compare({"y": np.array([1, np.nan])}, {"y": np.array([1.0, 1.0])}):
        assert json.loads(json.dumps(difference.to_dict(), allow_nan=False))["rel"] == "inf"


def test_the_module_is_not_hidden_by_the_function() -> None:
    assert sys.modules["onnxgrad.verify.compare"].compare is compare


def test_an_exact_element_is_excused_within_its_range_alone() -> None:
    a = np.array([1, 2, 3, 4])
    legal = Range(np.array([1, 2, 3, 3]), np.array([1, 4, 3, 4]))
    cases = [([1, 3, 3, 3], 2, True), ([1, 5, 3, 4], 0, False), ([2, 2, 3, 4], 0, False)]
    for b, excused, ok in cases:
        (found,) = compare({"y": a}, {"y": np.array(b)}, 0.0, {"y": legal})
        assert (found.excused, found.ok) == (excused, ok)


def test_ranges_grow_over_legal_runs_of_one_shape() -> None:
    ranges: dict[str, Range] = {}
    first = {"i": np.array([1, 2]), "s": np.array(["a", "b"]), "f": X, "l": [X]}
    widened(ranges, first, {"i": np.array([3, 2]), "s": np.array(["a", "c"]), "f": X, "l": [X]})
    widened(ranges, first, {"i": np.array([0]), "s": np.array(["a", "b"])})
    assert set(ranges) == {"i", "s"} and ranges["i"].high.tolist() == [3, 2]
    assert ranges["s"].excuses(np.array(["a", "c"], object)).tolist() == [False, True]
