"""Bounds of the user's own: each measure by its formula, on its limit, and where it says nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest

from onnxgrad.errors import InputError
from onnxgrad.verify.bounds import Bounds
from onnxgrad.verify.compare import Difference, compare, worst

A = np.array([[1.0, -2.0, 0.0], [3.0, 0.5, 4.0]], np.float32)


def judged(a: np.ndarray, b: np.ndarray, **said: object) -> Difference:
    bounds = Bounds.of(said.get("atol"), said.get("rtol"), said.get("metric"))  # type: ignore[arg-type]
    (found,) = compare({"y": a}, {"y": b}, bounds.over({"y": 1e-6}))
    return found


@pytest.mark.parametrize(("atol", "rtol"), [(0.01, 0.0), (0.0, 0.01), (0.02, 0.005), (0.0, 0.0)])
def test_close_is_what_numpy_says(atol: float, rtol: float) -> None:
    rng = np.random.default_rng(0)
    for size in (0.0, 0.004, 0.009, 0.02, 0.05):
        b = (A + size * rng.uniform(-1, 1, A.shape)).astype(np.float32)
        gap = np.abs(b.astype(float) - A.astype(float))
        says = bool((gap <= atol + rtol * np.abs(A.astype(float))).all())
        found = judged(A, b, atol=atol, rtol=rtol)
        assert found.ok is says, (size, found)
        assert found.compared == 6


def test_the_element_that_is_worst_by_the_bound_is_named() -> None:
    b = A.copy()
    b[1, 2] += 0.1  # of 4: within 5 %
    b[0, 2] = 0.01  # of 0: not
    found = judged(A, b, rtol=0.05)
    assert found.index == (0, 2) and found.rel == math.inf and not found.ok
    assert "1.0e-02 (wanted 0.0e+00)" in str(found)
    assert judged(A, b, rtol=0.05, atol=0.011).index == (0, 2)
    assert judged(A, b, rtol=0.05, atol=0.011).ok


def test_cosine() -> None:
    b = A + np.float32(0.1)
    x, y = A.ravel().astype(float), b.ravel().astype(float)
    cosine = float(x @ y / np.linalg.norm(x) / np.linalg.norm(y))
    assert judged(A, b, metric=f"cosine={cosine - 1e-9}").ok
    assert not judged(A, b, metric=f"cosine={cosine + 1e-6}").ok
    assert judged(A, A, metric="cosine=1").ok and judged(A, 2 * A, metric="cosine=0.999999").ok
    assert not judged(A, -A, metric="cosine=0.1").ok
    zero = np.zeros_like(A)
    same, off = judged(zero, zero, metric="cosine=0.9"), judged(zero, A, metric="cosine=0.9")
    assert same.ok and same.compared == 0  # no direction, so nothing is known
    assert not off.ok and not judged(A, zero, metric="cosine=0.9").ok


def test_psnr() -> None:
    b = A + np.float32(0.04)  # rms 0.04 of at most 4: 40 dB
    assert judged(A, b, metric="psnr=39.99").ok and not judged(A, b, metric="psnr=40.01").ok
    assert judged(A, A, metric="psnr=200").ok
    zero = np.zeros_like(A)
    assert judged(zero, zero, metric="psnr=40").compared == 0
    assert not judged(zero, b, metric="psnr=40").ok


def test_worst() -> None:
    a, b = np.array([1, -4], np.float32), np.array([1.5, -4], np.float32)
    found = judged(a, b, metric="worst=0.13")
    assert found.ok and found.rel == 0.125 and found.index == (0,) and found.compared == 2
    assert not judged(a, b, metric="worst=0.12").ok
    zero = np.zeros(2, np.float32)
    assert judged(zero, zero, metric="worst=0.1").compared == 2
    assert not judged(zero, b, metric="worst=0.1").ok


def test_top1() -> None:
    b = A.copy()
    b[1] = [9, 0, 1]
    found = judged(A, b, metric="top1=0.5")
    assert found.ok and found.compared == 2 and found.index == (1, 2)
    assert not judged(A, b, metric="top1=0.51").ok
    tied = np.array([[5.0, 5.0, 1.0]], np.float32)
    assert judged(tied, np.array([[0.0, 1.0, 0.5]], np.float32), metric="top1=1").ok
    assert not judged(tied, np.array([[0.0, 1.0, 1.5]], np.float32), metric="top1=1").ok
    single = np.ones((4, 1), np.float32)
    assert judged(single, single, metric="top1=1").compared == 0
    assert judged(np.float32(2), np.float32(2), metric="top1=1").compared == 0
    nan = np.array([[math.nan, 1.0], [0.0, 1.0]], np.float32)
    assert judged(nan, nan, metric="top1=1").compared == 1


def test_every_measure_has_to_hold() -> None:
    b = (A * np.float32(1.5)).astype(np.float32)
    assert judged(A, b, metric="cosine=0.9999").ok
    assert not judged(A, b, metric=["cosine=0.9999", "psnr=30"]).ok
    assert not judged(A, b, metric="cosine=0.9999", rtol=0.1).ok


def test_what_is_no_number_is_no_matter_of_bounds() -> None:
    b = A.copy()
    b[0, 0] = np.nan
    assert not judged(A, b, rtol=1.0).ok and not judged(A, b, metric="cosine=0.1").ok
    overflown = A.copy()
    overflown[1, 2] = np.inf
    assert "infinity" in judged(A, overflown, rtol=1.0).reason
    assert not judged(A, A[:1], rtol=1.0).ok
    both = judged(b, b, rtol=1.0)
    assert both.ok and both.compared == 5


def test_widths_of_floats_and_integers() -> None:
    half = A.astype(np.float16)
    assert judged(A, half, rtol=1e-3).ok and "dtype" in judged(A, half).reason
    assert "dtype" in judged(A, A.astype(np.int32), rtol=1.0).reason
    ids, near = np.array([1, 1000]), np.array([1, 1001])
    assert not judged(ids, near, rtol=0.1).ok  # an index is no rounded number
    assert judged(ids, near, rtol={"y": 0.1}).ok and not judged(ids, near, atol={"y": 0.5}).ok
    large = np.array([2**60])
    assert not judged(large, large + 1, rtol={"y": 1e-3}).ok  # float64 cannot tell them apart
    flags = np.array([True, False])
    assert not judged(flags, ~flags, atol={"y": 0.5}).ok
    text = np.array(["a"], object)
    assert not judged(text, np.array(["b"], object), atol={"y": 9.0}).ok


def test_of_one_output_and_of_all() -> None:
    bounds = Bounds.of({"y": 0.5}, None, ["z:top1=1", "cosine=0.9"])
    assert str(bounds) == "cosine=0.9, y: atol=0.5, z: top1=1"
    assert bounds.over({"x": 1e-6, "y": 1e-6})["y"] is bounds.own["y"]
    b = A + np.float32(0.4)
    found = compare({"x": A, "y": A}, {"x": b, "y": b}, bounds.over({"x": 1e-6, "y": 1e-6}))
    assert [d.ok for d in found] == [True, True] and worst(found) is not None
    bounds.check(["y", "z"])
    with pytest.raises(InputError, match="'z', which is not an output"):
        bounds.check(["y"])
    assert not Bounds.of(None, None, None) and not Bounds.of({}, None, [])


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"atol": -1.0}, "atol must be a number from 0 on"),
        ({"rtol": math.nan}, "rtol must be a number from 0 on"),
        ({"rtol": {"y": math.inf}}, "rtol must be a number from 0 on"),
        ({"metric": "cosine"}, "write cosine=LEAST or psnr=LEAST or top1=LEAST"),
        ({"metric": "l2=3"}, "write cosine=LEAST"),
        ({"metric": "worst=0"}, "the most is a number above 0"),
        ({"metric": "cosine=much"}, "the least is a number above 0 up to 1"),
        ({"metric": "cosine=1.1"}, "the least is a number above 0 up to 1"),
        ({"metric": "psnr=0"}, "the least is a number above 0"),
        ({"metric": "psnr=inf"}, "the least is a number above 0"),
    ],
)
def test_what_is_no_bound_is_refused(said: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        judged(A, A, **said)
