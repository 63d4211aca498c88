"""Values that are computed alike have one number; any difference in the computation gives another."""

from __future__ import annotations

import onnx

from onnxgrad.verify.value_numbers import Numbers
from tests.helpers import parse

TWO = """g (float[4] x, float[4] z) => (float[4] y) <float w = {1.00001}, float v = {1.00002}, float u = {2}> {
  a = Mul (x, w)  b = Mul (x, w)  c = Mul (w, x)  d = Mul (x, v)  e = Mul (z, w)  f = Mul (x, u)
  k = Constant <value = float {2}> ()  l = Constant <value = float {3}> ()  n = Constant <value = float {2}> ()
  f2 = Mul (x, k)  f3 = Mul (x, l)  f4 = Mul (x, n)  p = RandomNormalLike (x)  q = RandomNormalLike (x)
  s = Softmax <axis = 0> (a)  t = Softmax <axis = 0> (b)  r = Softmax (a)  y = Add (s, t) }"""


def numbers(model: onnx.ModelProto, **options: bool) -> dict[str, int]:
    return Numbers(**options).of(model.graph)


def test_equal_computations_and_others() -> None:
    found = numbers(parse(TWO))
    assert found["a"] == found["b"] and found["s"] == found["t"]
    assert found["f4"] == found["f2"] != found["f3"]
    others = ("a", "c", "d", "e", "f", "p", "q", "s", "r")
    assert len({found[name] for name in others}) == len(others)


def test_constants_that_float16_does_not_tell_apart() -> None:
    found = numbers(parse(TWO), rounding=True)
    assert found["a"] == found["d"] != found["f"]


def test_inputs_by_the_other_models_names_and_what_is_captured() -> None:
    text = """g (float[4] x, bool c) => (float[4] y) { k = %s (x)  y = If (c) <
      then_branch = t () => (float[4] p) { p = Abs (k) }, else_branch = e () => (float[4] q) { q = Neg (k) }> }"""
    shared = Numbers()
    first = shared.of(parse(text % "Exp").graph)
    renamed = parse((text % "Exp").replace("(x)", "(x2)").replace("] x,", "] x2,"))
    assert shared.of(renamed.graph, {"x2": "x"})["y"] == first["y"]
    assert shared.of(parse(text % "Log").graph)["y"] != first["y"]
