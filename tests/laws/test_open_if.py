"""If with a constant condition: the branch that is taken stands in the enclosing block."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, numpy_helper, parser

from onnxgrad.verify import run
from tests.rewriting import apply, assert_same_bits, rewritten, special

TWO = """g (float[N] x) => (float[N] o, float[N] q) {
    w = Neg(x)
    o, p = If (c) <
      then_branch = a () => (float[N] u, float[N] v) { t = Abs(w) u = Relu(t) v = Neg(t) },
      else_branch = b () => (float[N] u, float[N] v) { t = Sin(w) u = Cos(t) v = Relu(x) }
    >
    q = Sqrt(p)
  }"""


@pytest.mark.parametrize("opset", [11, 12, 13, 16, 20])
@pytest.mark.parametrize(
    ("says", "left"),
    [(True, ["Neg", "Abs", "Relu", "Neg", "Sqrt"]), (False, ["Neg", "Sin", "Cos", "Relu", "Sqrt"])],
)
def test_the_branch_is_opened(says: bool, left: list[str], opset: int) -> None:
    for condition in (np.array(says), np.array([says])):
        done = rewritten(TWO, "open-if", {"c": condition}, opset=opset)
        assert sorted(done.ops) == sorted(left)
        assert [o.name for o in done.after.graph.output] == ["o", "q"]
        names = [name for n in done.after.graph.node for name in n.output]
        assert len(set(names)) == len(names)
        assert_same_bits(done, x=special(5))


def test_a_branch_that_returns_what_is_outside_and_one_value_twice() -> None:
    text = """g (float[N] x) => (float[N] o, float[N] p, float[N] q) {
        w = Neg(x)
        e = Abs(w)
        o, p, r = If (c) <
          then_branch = a () => (float[N] e, float[N] u, float[N] u) { u = Relu(w) },
          else_branch = b () => (float[N] s, float[N] t, float[N] v) { s = Neg(x) t = Neg(s) v = Neg(t) }
        >
        q = Sqrt(r)
      }"""
    done = rewritten(text, "open-if", {"c": np.array(True)})
    assert done.count("If") == 0
    names = dict(zip(("o", "p", "q"), run(done.after, {"x": special(5)}, optimize=False).values()))
    x = special(5)
    np.testing.assert_array_equal(names["o"], np.abs(x))
    np.testing.assert_array_equal(names["p"], np.maximum(-x, 0))
    np.testing.assert_array_equal(names["q"], np.sqrt(np.maximum(-x, 0)))


def test_constants_and_nested_blocks_of_the_branch() -> None:
    text = """g (float[3] x, bool k) => (float[3] o) {
        y = If (c) <
          then_branch = a () => (float[3] u) <float[3] w = {1, 2, 3}> {
            h = Mul(x, w)
            u = If (k) <
              then_branch = d () => (float[3] e) { e = Mul(h, w) },
              else_branch = f () => (float[3] e) { e = Neg(h) }
            >
          },
          else_branch = b () => (float[3] w) { w = Neg(x) }
        >
        o = Relu(y)
      }"""
    done = rewritten(text, "open-if", {"c": np.array(True)})
    assert done.ops == ["Mul", "If", "Relu"]
    for k in (True, False):
        assert_same_bits(done, x=special(3), k=np.array(k))


def test_if_in_if_and_in_a_loop() -> None:
    text = """g (float[3] x, int64 n) => (float[3] o) {
        o = Loop (n, , x) <body = l (int64 i, bool m, float[3] s) => (bool k, float[3] r) {
          k = Identity(m)
          r = If (c) <
            then_branch = a () => (float[3] u) {
              u = If (c) < then_branch = d () => (float[3] e) { e = Neg(s) }, else_branch = f () => (float[3] e) { e = Abs(s) } >
            },
            else_branch = b () => (float[3] u) { u = Sin(s) }
          >
        }>
      }"""
    done = apply(_with(text, c=np.array(True)), "open-if", rounds=3)
    assert done.count("If") == 0
    assert_same_bits(done, x=special(3), n=np.array(3))


def test_in_a_function() -> None:
    text = """<ir_version: 10, opset_import: ["" : 20, "d" : 1]>
      g (float[3] x) => (float[3] o) { o = d.f(x) }
      <domain: "d", opset_import: ["" : 20]>
      f (x) => (o) {
        c = Constant<value = bool {1}>()
        y = If (c) <
          then_branch = a () => (float[3] u) <float[3] w = {1, 2, 3}> { u = Mul(x, w) },
          else_branch = b () => (float[3] u) { u = Neg(x) }
        >
        o = Relu(y)
      }"""
    done = apply(parser.parse_model(text), "open-if,remove-unused")
    assert done.count("If") == 0 and done.count("Mul") == 1
    assert_same_bits(done, x=special(3))


def test_a_condition_that_a_caller_gives_stays() -> None:
    text = "g (float[3] x, bool c = {1}) => (float[3] o) { o = If (c) <then_branch = a () => (float[3] u) { u = Neg(x) }, else_branch = b () => (float[3] u) { u = Abs(x) }> }"
    assert rewritten(text, "open-if").ops == ["If"]


def test_the_condition_is_found_by_folding() -> None:
    text = """g (float[3] x) => (float[3] o) {
        s = Shape(x) n = Size(s) c = Equal(n, one)
        o = If (c) <then_branch = a () => (float[3] u) { u = Neg(x) }, else_branch = b () => (float[3] u) { u = Abs(x) }>
      }"""
    done = apply(_with(text, one=np.array(1)), preset="clean", rounds=2)
    assert done.ops == ["Neg"]


def _with(text: str, **constants: np.ndarray) -> ModelProto:
    model = parser.parse_model('<ir_version: 10, opset_import: ["" : 20]> ' + text)
    model.graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in constants.items())
    return model
