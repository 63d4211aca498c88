"""onnxgrad/verify/feeds/edge_cases.py, `_widened`: values beyond N(0, 1), {0, 1} and [0, 1]."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from onnxgrad import verify
from onnxgrad.verify.feeds.edge_cases import Variation
from onnxgrad.verify.feeds.generate import Feeder
from tests.helpers import parse

NUMBERS = "<int64 seven = {7}, int64 ten = {10}, int64 zero = {0}, int64 one = {1}, int64 three = {3}, int64 m = {1000}, float f = {7}, float big = {50}>"
# wrong models that agree on integers in {0, 1}, or on |x| < 4
WRONG = {
    "Mod": ("int64", "y = Mod (i, seven)", "y = Identity (i)"),
    "Div": ("int64", "y = Div (i, seven)", "y = Mul (i, zero)"),
    "square": ("int64", "y = Mul (i, i)", "y = Identity (i)"),
    "cube": ("int64", "y = Pow (i, three)", "y = Identity (i)"),
    "absolute value": ("int64", "y = Abs (i)", "y = Identity (i)"),
    "sign": ("int64", "y = Sign (i)", "y = Identity (i)"),
    "through int8": ("int64", "a = Cast <to = 3> (i) y = Cast <to = 7> (a)", "y = Identity (i)"),
    "through bool": ("int64", "a = Cast <to = 9> (i) y = Cast <to = 7> (a)", "y = Identity (i)"),
    "a polynomial": ("int64", "a = Mul (i, seven) b = Mul (i, i) e = Mul (b, three) y = Add (a, e)", "y = Mul (i, ten)"),
    "a bit": ("int64", "y = BitwiseAnd (i, one)", "y = Identity (i)"),
    "digits": ("int64", "a = Div (i, ten) y = Mul (a, ten)", "y = Mul (i, zero)"),
    "a hash": ("int64", "a = Mul (i, seven) b = Add (a, seven) y = Mod (b, m)", "a = Mul (i, seven) y = Add (a, seven)"),
    "int32 ends": ("int32", "y = Abs (i)", "z = Cast <to = 6> (zero) n = Neg (i) y = Max (i, n, z)"),
    "wraps": ("int64", "a = Cast <to = 6> (i) y = Cast <to = 7> (a)", "y = Identity (i)"),
    "fmod": ("float", "y = Mod <fmod = 1> (i, f)", "y = Identity (i)"),
    "clipped far out": ("float", "y = Identity (i)", "n = Neg (big) y = Clip (i, n, big)"),
    "saturated": ("float", "y = Tanh (i)", "n = Neg (f) c = Clip (i, n, f) h = HardSigmoid (c) t = Tanh (c) y = Sub (t, h)"),
}  # fmt: skip
RIGHT = {
    "shift": ("uint64", "k = Cast <to = 13> (three) y = BitShift <direction = \"LEFT\"> (i, k)", "e = Constant <value = uint64 {8}> () y = Mul (i, e)"),
    "Neg twice": ("int64", "a = Neg (i) y = Neg (a)", "y = Identity (i)"),
    "associative": ("int64", "a = Mul (i, seven) y = Mul (a, ten)", "k = Mul (seven, ten) y = Mul (i, k)"),
    "distributive": ("float", "a = Add (i, f) y = Mul (a, f)", "a = Mul (i, f) b = Mul (f, f) y = Add (a, b)"),
    "softmax": ("float", "y = Softmax (i)", "k = ReduceMax (i, axis) d = Sub (i, k) e = Exp (d) s = ReduceSum (e, axis) y = Div (e, s)"),
    "logistic": ("float", "y = Sigmoid (i)", "n = Neg (i) e = Exp (n) u = Constant <value_float = 1.0> () d = Add (e, u) y = Div (u, d)"),
}  # fmt: skip


def _pair(dtype: str, first: str, second: str) -> list[onnx.ModelProto]:
    numbers = NUMBERS.replace(">", ", int64[1] axis = {1}>")
    return [
        parse(f"g ({dtype}[4,6] i) => ({dtype}[4,6] y) {numbers} {{ {nodes} }}", opset=18)
        for nodes in (first, second)
    ]


@pytest.mark.parametrize("name", WRONG)
def test_a_difference_outside_the_usual_range_is_found(name: str) -> None:
    assert verify(*_pair(*WRONG[name])).verdict == "different"


@pytest.mark.parametrize("name", RIGHT)
def test_no_false_alarm_at_wide_values(name: str) -> None:
    assert verify(*_pair(*RIGHT[name])).verdict == "equal"


def _widened(text: str, level: int) -> dict[str, Any]:
    return Feeder(parse(text)).feeds(seed=0, how=Variation(wide=level))


def test_kinds_of_values() -> None:
    free = "g (int32[64] i) => (int32[64] y) { y = Neg (i) }"
    ranges = [(int(v.min()), int(v.max())) for v in (_widened(free, k)["i"] for k in (1, 2, 3))]
    assert ranges[0] == (-3, 4) and ranges[1][0] < -10_000 and ranges[1][1] > 10_000
    assert ranges[2] == (-(2**31), 2**31 - 1)
    image = "g (float[1,3,4,4] x) => (float[1,3,4,4] y) { y = Neg (x) }"
    assert _widened(image, 1)["x"].min() < 0 and _widened(image, 2)["x"].max() > 100
    real = _widened("g (float[4,8] x) => (float[4,8] y) { y = Neg (x) }", 1)["x"]
    sizes = np.abs(real).max(1)
    assert sizes.max() > 50 and sizes.min() < 0.01
    ties = _widened("g (float[4,8] x) => (float[4,8] y) { y = Neg (x) }", 2)["x"]
    assert (ties == 0).any() and np.signbit(ties[ties == 0]).any() and len(np.unique(ties)) < 30
    text = _widened(
        'g (string[12] s) => (string[12] t) { t = StringNormalizer <case_change_action = "UPPER"> (s) }',
        1,
    )["s"]
    assert {"ALPHA", "ÀÉÎ", "straße"} <= set(text)


def test_what_restricts_an_input_stays() -> None:
    """Indices, counts and sizes: a wide value would fail, or take all memory."""
    text = """g (int64[4] i, int64[1] n, float[3] x) => (float[4,2] y, float[K] z)
        <float[5,2] table = {0,1,2,3,4,5,6,7,8,9}> { y = Gather (table, i)  z = Expand (x, n) }"""
    feeder = Feeder(parse(text))
    usual = feeder.feeds(seed=0)
    for level in (1, 2, 3):
        made = feeder.feeds(seed=0, how=Variation(wide=level))
        assert all(np.array_equal(made[name], usual[name]) for name in ("i", "n"))


def test_padding_is_in_front_of_new_tokens() -> None:
    """A mask over past and new tokens keeps the new ones: otherwise no new key or value matters."""
    text = """g (float[batch,seq,4] x, int64[batch,total] attention_mask, float[batch,past,4] cache) => (float[batch,total,4] y) {
        y = Concat <axis = 1> (cache, x) }"""
    sizes = {"batch": 2, "seq": 3, "past": 5, "total": 8}
    mask = Feeder(parse(text)).feeds(seed=0, dims=sizes)["attention_mask"]
    assert mask[:, -3:].all() and not mask[:, 0].any()
