"""Relu and Clip in a row: the same bits, for NaN and zeros of both signs too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.rewriting import NUMPY, assert_same_bits, rewritten, special

BOUNDS = {
    "z": 0.0,
    "c": 6.0,
    "m": -2.0,
    "p": 1.0,
    "q": 5.0,
    "n": -0.0,
    "nan": np.nan,
    "inf": np.inf,
    "two": -1.0,
}

ONE = [
    ("Relu(x)", "Relu(y)", ["Relu"]),
    ("Relu(x)", "Clip(y, z, c)", ["Clip"]),
    ("Relu(x)", "Clip(y, m, c)", ["Clip"]),
    ("Relu(x)", "Clip(y, p, c)", ["Clip"]),
    ("Relu(x)", "Clip(y, m)", ["Clip"]),
    ("Relu(x)", "Clip(y)", ["Clip"]),
    ("Relu(x)", "Clip(y, , inf)", ["Clip"]),
    ("Clip(x, z, c)", "Relu(y)", ["Clip"]),
    ("Clip(x, m, c)", "Relu(y)", ["Clip"]),
    ("Clip(x, , c)", "Relu(y)", ["Clip"]),
    ("Clip(x, m, c)", "Clip(y, z, q)", ["Clip"]),
    ("Clip(x, z, c)", "Clip(y, m, q)", ["Clip"]),
    ("Clip(x, m)", "Clip(y, , q)", ["Clip"]),
    ("Clip(x)", "Clip(y)", ["Clip"]),
]
TWO = [
    ("Relu(x)", "Clip(y, n, c)"),  # a zero of the other sign
    ("Relu(x)", "Clip(y, m, two)"),  # the intervals do not meet
    ("Relu(x)", "Clip(y, m, z)"),
    ("Clip(x, m, two)", "Relu(y)"),
    ("Clip(x, c, m)", "Clip(y, z, q)"),  # in no order
    ("Clip(x, z, p)", "Clip(y, q, c)"),
    ("Clip(x, nan, c)", "Clip(y, z, q)"),
    ("Clip(x, s, c)", "Relu(y)"),  # a bound that a caller gives
]


def clipped(first: str, second: str, dtype: str = "float", **options: Any) -> Any:
    kind = NUMPY[dtype]
    text = f"g ({dtype}[N] x, {dtype} s) => ({dtype}[N] o) {{ y = {first} o = {second} }}"
    return rewritten(
        text, "remove-noops,merge-consecutive", {k: kind(v) for k, v in BOUNDS.items()}, **options
    )


@pytest.mark.covering(2)
@pytest.mark.parametrize("opset", [14, 20])
@pytest.mark.parametrize("dtype", ["float", "double"])
@pytest.mark.parametrize(("first", "second", "left"), ONE)
def test_one_is_left(first: str, second: str, left: list[str], dtype: str, opset: int) -> None:
    done = clipped(first, second, dtype, opset=opset)
    assert done.ops == left
    for size in (1, 3, 8, 16, 33, 61):
        for seed in range(2):
            assert_same_bits(
                done, x=special(size, dtype=NUMPY[dtype], seed=seed), s=NUMPY[dtype](0)
            )


@pytest.mark.parametrize(("first", "second"), TWO)
def test_both_stay(first: str, second: str) -> None:
    assert len(clipped(first, second).ops) == 2


@pytest.mark.parametrize("opset", [6, 10])
def test_bounds_as_attributes(opset: int) -> None:
    for first, second in (
        ("Relu(x)", "Clip<min=-1.0,max=6.0>(y)"),
        ("Clip<min=-1.0>(x)", "Clip<max=6.0>(y)"),
        ("Clip<max=6.0>(x)", "Relu(y)"),
    ):
        done = rewritten(
            f"g (float[N] x) => (float[N] o) {{ y = {first} o = {second} }}",
            "merge-consecutive",
            opset=opset,
        )
        assert done.ops == ["Clip"]
        for size in (3, 8, 33):
            assert_same_bits(done, x=special(size))


@pytest.mark.parametrize("opset", [11, 12, 13])
def test_bounds_as_operands_of_older_operators(opset: int) -> None:
    done = clipped("Relu(x)", "Clip(y, m, c)", opset=opset)
    assert done.ops == ["Clip"]
    assert_same_bits(done, x=special(33), s=np.float32(0))


def test_another_reader_keeps_both() -> None:
    text = "g (float[N] x) => (float[N] o, float[N] p) { y = Relu(x) o = Clip(y, z, c) p = Neg(y) }"
    done = rewritten(text, "merge-consecutive", {"z": np.float32(0), "c": np.float32(6)})
    assert sorted(done.ops) == ["Clip", "Neg", "Relu"]
    text = "g (float[N] x) => (float[N] o, float[N] y) { y = Relu(x) o = Clip(y, z, c) }"
    assert sorted(
        rewritten(text, "merge-consecutive", {"z": np.float32(0), "c": np.float32(6)}).ops
    ) == [
        "Clip",
        "Relu",
    ]


def test_integers_stay() -> None:
    text = "g (int32[N] x) => (int32[N] o) { y = Clip(x, a) o = Clip(y, a) }"
    assert len(rewritten(text, "merge-consecutive", {"a": np.int32(1)}).ops) == 2
