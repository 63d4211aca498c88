"""Feeds that reach more: scales, signs, counts, masks, rows, other defaults."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper

from onnxgrad.verify.feeds.generate import Feeder
from onnxgrad.verify.feeds.variations import SEARCH, SMALL, Variation, overridden
from tests.helpers import parse


def feed(text: str, how: Variation, name: str = "x") -> Any:
    feeder = Feeder(parse(text))
    return feeder.feeds(seed=0, how=how)[name], feeder.feeds(seed=0)[name]


@pytest.mark.parametrize("scale", [1e-3, 10.0, 100.0])
def test_floats_are_scaled(scale: float) -> None:
    varied, usual = feed("g (float[N,4] x) => (float[N,4] y) { y = Tanh(x) }", Variation(scale))
    np.testing.assert_allclose(varied, usual * np.float32(scale), rtol=1e-6)


def test_floats_with_bounds_are_not() -> None:
    varied, usual = feed("g (float[N,4] x) => (float[N,4] y) { y = Log(x) }", Variation(100.0))
    np.testing.assert_array_equal(varied, usual)


@pytest.mark.parametrize("sign", [1, -1])
def test_one_sign(sign: int) -> None:
    varied, _ = feed("g (float[N,4] x) => (float[N,4] y) { y = Abs(x) }", Variation(sign=sign))
    assert (np.sign(varied) == sign).all()


@pytest.mark.parametrize("value", [0, 1])
def test_masks_and_counts(value: int) -> None:
    mask = "g (bool[N,4] m, float[N,4] x) => (float[N,4] y) { z = Neg(x) y = Where(m, x, z) }"
    varied, usual = feed(mask, Variation(mask=value), "m")
    assert (varied == value).all() and usual.any() and not usual.all()
    tile = "g (float[4] x, int64[1] n) => (float[K] y) { y = Tile(x, n) }"
    assert feed(tile, Variation(count=3 * value), "n")[0] == [3 * value]


def test_rows_of_a_table_come_through_arithmetic() -> None:
    model = parse("""g (int64[N,4] ids) => (float[N,4,2] y) <int64 two = {2}> {
        moved = Add(ids, two) y = Gather(t, moved) }""")
    table = numpy_helper.from_array(np.zeros((90, 2), np.float32), "t")
    model.graph.initializer.append(table)
    rows = Feeder(model).feeds(seed=0, how=Variation(rows={"t": [40, 70, 1]}))["ids"]
    assert isinstance(rows, np.ndarray)
    assert set(rows.reshape(-1)) == {38, 68}  # no id is below 0
    untouched = Feeder(model).feeds(seed=0, how=Variation(rows={"u": [40]}))["ids"]
    assert isinstance(untouched, np.ndarray)
    np.testing.assert_array_equal(untouched, Feeder(model).feeds(seed=0)["ids"])


@pytest.mark.parametrize(
    "default",
    [np.ones(3, np.float32), np.zeros((2, 2), np.float64), np.array([2, -1]), np.array(True),
     np.array(["a", "b"], object), np.array(7, np.uint8)],
)  # fmt: skip
def test_every_default_has_another_value(default: np.ndarray[Any, Any]) -> None:
    for other in overridden(default, 0):
        assert other.dtype == default.dtype and other.shape == default.shape
        assert not np.array_equal(other, default)


def test_each_says_what_it_does() -> None:
    texts = [str(how) for how in (SMALL, *SEARCH)]
    assert all(texts) and len(set(texts)) == len(texts)
    assert str(SMALL) == "scale 0.001"
