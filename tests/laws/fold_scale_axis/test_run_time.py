"""A scale known only at run time emits what a constant one computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from onnxgrad.ir.ops import op
from onnxgrad.laws.fold_scale_axis.scale import RunTimeScale, Scale
from tests.helpers import parse
from tests.rewriting import emitted

MODEL = "g (float[2,4,3] x, float[4,1] s) => (float[2,4,3] y) { y = Mul(x, s) }"
S = np.array([2, -1, 0.5, 3], np.float32)
FEEDS = {"x": np.arange(24, dtype=np.float32).reshape(2, 4, 3), "s": S.reshape(4, 1)}


@pytest.mark.parametrize(
    "of",
    [
        lambda scale: [scale.lined_up(0)],
        lambda scale: [scale.lined_up(2)],
        lambda scale: [scale.grouped(2, 3, 0)],
        lambda scale: [scale.grouped(2, 1, 2)],
        lambda scale: [p.lined_up(1) for p in scale.parts([1, 3])],
        lambda scale: [scale.among(1, [2, 4, 1]).lined_up(0)],
        lambda scale: [scale.among(0, [4, 1]).parts([2, 3])[1].lined_up(0)],
    ],
)
def test_the_same_numbers_as_a_constant_one(of: Callable[[Scale], list[Any]]) -> None:
    found = emitted(parse(MODEL), lambda v: of(RunTimeScale.of(v["s"], 4, 1)), FEEDS)
    expected = of(Scale(S, 1))
    assert len(found) == len(expected)
    for got, want in zip(found, expected, strict=True):
        np.testing.assert_array_equal(got, want)


def test_times() -> None:
    (found,) = emitted(
        parse(MODEL), lambda v: [RunTimeScale.of(v["s"], 4, 1).times(v["x"], 1)], FEEDS
    )
    np.testing.assert_array_equal(found, FEEDS["x"] * FEEDS["s"])


def test_one_factor_of_any_rank() -> None:
    model = parse("g (float[2] x, float[1,1] s, float t) => (float[2] y) { y = Neg(x) }")
    feeds = {"x": np.float32([1, 2]), "s": np.float32([[3]]), "t": np.float32(4)}
    found = emitted(model, lambda v: [RunTimeScale.one(v[n]).times(v["x"], 0) for n in "st"], feeds)
    assert [f.tolist() for f in found] == [[3, 6], [4, 8]]


def test_a_vector_is_read_as_it_is() -> None:
    def build(v: dict[str, Any]) -> list[Any]:
        scale = RunTimeScale.of(v["s"], 4, 0)
        assert scale.vector is v["s"] and scale.lined_up(0) is v["s"]
        return [op.Neg(scale.vector)]

    (found,) = emitted(parse("g (float[4] s) => (float[4] y) { y = Neg(s) }"), build, {"s": S})
    assert found.tolist() == (-S).tolist()
