"""Relu, Clip, Min and Max in a row, rounding twice: the same bits, for NaN and zeros of both signs too."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from onnxgrad.verify import run
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


@pytest.mark.parametrize("opset", [12, 14, 20])
@pytest.mark.parametrize("dtype", [*NUMPY, "int8", "uint8", "int32", "int64"])
@pytest.mark.parametrize(
    "body",
    [
        "y = Max(x, a) o = Min(y, b)",
        "y = Min(b, x) o = Max(a, y)",
        "y = Max(x, a1) o = Min(y, b)",
    ],
)
def test_min_of_max(body: str, dtype: str, opset: int) -> None:
    kind = NUMPY.get(dtype) or np.dtype(dtype).type
    text = f"g ({dtype}[N] x) => ({dtype}[N] o) {{ {body} }}"
    bounds = {"a": kind(1), "b": kind(6), "a1": np.ones(1, kind)}
    done = rewritten(text, "merge-consecutive", bounds, opset=opset)
    assert done.ops == ["Clip"] and done.fired("min_of_max") == 1
    for size in (1, 3, 8, 33, 61):
        floats = special(size, dtype=kind) if dtype in NUMPY else None
        x = np.arange(size).astype(kind) if floats is None else floats
        assert_same_bits(done, x=x)


@pytest.mark.parametrize("dtype", list(NUMPY))
def test_min_of_max_at_zero(dtype: str) -> None:
    """onnxruntime's Max(-0.0, 0.0) has the sign that its place in memory brings; all else is the same bit for bit."""
    kind = NUMPY[dtype]
    text = f"g ({dtype}[N] x) => ({dtype}[N] o) {{ y = Max(x, a) o = Min(y, b) }}"
    done = rewritten(text, "merge-consecutive", {"a": kind(0), "b": kind(6)})
    assert done.ops == ["Clip"]
    for size in (1, 8, 33):
        x = special(size, dtype=kind)
        assert_same_bits(done, x=np.where(np.signbit(x) & (x == 0), kind(0), x))
        before, after = (run(m, {"x": x}, optimize=False)["o"] for m in (done.before, done.after))
        np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize(
    ("body", "opset"),
    [
        ("y = Max(x, c) o = Min(y, m)", 20),  # in no order
        ("y = Max(x, nan) o = Min(y, c)", 20),
        ("y = Max(x, s) o = Min(y, c)", 20),  # a bound that a caller gives
        ("y = Max(x, wide) o = Min(y, c)", 20),
        ("y = Max(x, z) o = Min(y, c)", 11),  # Clip of float alone
        ("y = Max(x, z, p) o = Min(y, c)", 20),
        ("y = Max(x, z) o = Min(y, c) t = Neg(y)", 20),
    ],
)
def test_min_and_max_stay(body: str, opset: int) -> None:
    constants = {**{k: np.float32(v) for k, v in BOUNDS.items()}, "wide": np.zeros(3, "f4")}
    more = ", float[3] t" if "t =" in body else ""
    done = rewritten(
        f"g (float[3] x, float s) => (float[3] o{more}) {{ {body} }}",
        "merge-consecutive",
        {k: v for k, v in constants.items() if k in body},
        opset=opset,
    )
    assert {"Min", "Max"} <= {*done.ops}


def test_a_bound_that_broadcasts_x_stays() -> None:
    text = "g (float x) => (float[1] o) { y = Max(x, a) o = Min(y, b) }"
    bounds = {"a": np.zeros(1, "f4"), "b": np.float32(6)}
    assert rewritten(text, "merge-consecutive", bounds).ops == ["Max", "Min"]


WHOLE = ["Ceil", "Floor", "Round"]


@pytest.mark.parametrize("dtype", list(NUMPY))
@pytest.mark.parametrize(
    ("first", "second"), [*product(WHOLE, WHOLE), ("Abs", "Abs"), ("Sign", "Sign")]
)
def test_once_is_enough(first: str, second: str, dtype: str) -> None:
    kind = NUMPY[dtype]
    text = f"g ({dtype}[N] x) => ({dtype}[N] o) {{ y = {first}(x) o = {second}(y) }}"
    done = rewritten(text, "remove-noops")
    assert done.ops == [first]
    for size in (1, 8, 33):
        assert_same_bits(done, x=special(size, dtype=kind))


def test_another_function_stays() -> None:
    for first, second in (("Abs", "Relu"), ("Relu", "Sign"), ("Neg", "Neg"), ("Ceil", "Abs")):
        text = f"g (float[N] x) => (float[N] o) {{ y = {first}(x) o = {second}(y) }}"
        assert rewritten(text, "remove-noops").ops == [first, second]


def test_clip_of_integers_twice() -> None:
    for dtype in ("int8", "int32", "int64", "uint8"):
        kind = np.dtype(dtype).type
        text = f"g ({dtype}[N] x, {dtype} a) => ({dtype}[N] o) {{ y = Clip(x, a, b) o = Clip(y, a, b) }}"
        done = rewritten(text, "remove-noops", {"b": kind(5)})
        assert done.ops == ["Clip"]
        for low in (2, 7):  # in order, and in none
            assert_same_bits(done, x=np.arange(20).astype(kind), a=kind(low))
        other = text.replace("Clip(y, a, b)", "Clip(y, a)")
        assert len(rewritten(other, "remove-noops", {"b": kind(5)}).ops) == 2


def test_integers_stay() -> None:
    text = "g (int32[N] x) => (int32[N] o) { y = Clip(x, a) o = Clip(y, a) }"
    assert len(rewritten(text, "merge-consecutive", {"a": np.int32(1)}).ops) == 2
