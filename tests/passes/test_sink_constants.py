"""onnxgrad/passes/sink_constants.py: what one branch alone reads is its own."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from onnxgrad import gradient
from onnxgrad.jobs.inspection.contents import weights
from tests.helpers import unindented
from tests.rewriting import Done, apply, model_of

TEXT = """g (bool p, float[N,2] x) => (float[N,2] y) {
    {head}
    y = If (p) <then_branch = t () => (float[N,2] a) { {then} },
                else_branch = e () => (float[N,2] b) { {other} }> }"""
ARRAYS = {"w": np.array([[1, 2], [3, 4]], np.float32), "c": np.array([1, -1], np.float32)}


def graph(then: str, other: str = "b = Neg (x)", head: str = "", text: str = TEXT) -> str:
    for name, value in (("{then}", then), ("{other}", other), ("{head}", head)):
        text = text.replace(name, value)
    return text


def sunk(text: str, **options: int) -> Done:
    return apply(model_of(text, ARRAYS, **options), "sink-constants")


def test_a_constant_of_one_branch() -> None:
    done = sunk(graph("m = MatMul (x, w)  a = Add (m, c)", "b = Add (x, c)"))
    assert done.fired("constant_of_a_branch") == 1
    assert done.text == unindented("""
        g(p: bool[], x: f32[N,2], c: f32[2] const = [1, -1]) {
          y: f32[N,2] = If(p, then_branch={...}, else_branch={...})
            then_branch(w: f32[2,2] const = [[1, 2], [3, 4]]) {
              m: f32[N,2] = MatMul(x, w)
              a: f32[N,2] = Add(m, c)
              return a
            }
            else_branch() {
              b: f32[N,2] = Add(x, c)
              return b
            }
          return y
        }""")
    done.prove()
    assert apply(done.after, "sink-constants").trace.rewrites == []


def test_as_deep_as_it_can() -> None:
    inner = "a = If (p) <then_branch = u () => (float[N,2] d) { d = MatMul (x, w) }, else_branch = v () => (float[N,2] f) { f = Abs (x) }>"
    done = sunk(graph(inner))
    (outer,) = done.after.graph.node
    (branch,) = [a.g for a in outer.attribute if a.name == "then_branch"]
    (deepest,) = [a.g for a in branch.node[0].attribute if a.name == "then_branch"]
    assert [t.name for t in deepest.initializer] == ["w"] and not branch.initializer
    assert [t.name for t in done.after.graph.initializer] == ["c"]
    done.prove()


@pytest.mark.parametrize(
    "text",
    [
        graph("a = MatMul (x, w)", "b = MatMul (x, w)"),
        graph("a = MatMul (x, w)").replace("=> (float[N,2] y)", "=> (float[N,2] y, float[2,2] w)"),
        graph("a = MatMul (x, w)").replace("bool p,", "bool p, float[2,2] w,"),
        graph("a = MatMul (x, z)", head="z = Neg (w)"),
        graph("a = MatMul (x, w)", head="z = Neg (w)").replace("(float[N,2] y)", "(float[N,2] y, float[2,2] z)"),
        graph("k = Identity (x)  a = Identity (k)", "b = Abs (x)"),
    ],
)  # fmt: skip
def test_what_others_read_stays(text: str) -> None:
    assert sunk(text).trace.rewrites == []


def test_what_a_loop_reads_stays() -> None:
    text = """g (float[2] x) => (float[2] y) {
        n = Constant <value_int = 3> ()  t = Constant <value = bool {1}> ()
        y = Loop (n, t, x) <body = l (int64 i, bool k, float[2] s) => (bool q, float[2] r) { q = Identity (k)  r = Add (s, c) }> }"""
    assert sunk(text).trace.rewrites == []


def test_what_is_large_or_outside_or_old_stays() -> None:
    model = model_of(graph("a = MatMul (x, w)"), ARRAYS)
    model.ir_version = 3
    model.graph.input.extend(
        onnx.helper.make_tensor_value_info(t.name, t.data_type, t.dims)
        for t in model.graph.initializer
    )
    assert apply(model, "sink-constants").trace.rewrites == []
    large = {**ARRAYS, "w": np.zeros((2, 131073), np.float32)}
    text = graph("m = MatMul (x, w)  a = Slice (m, zero, two, one)")
    number = {n: np.array([v]) for n, v in (("zero", 0), ("two", 2), ("one", 1))}
    done = apply(model_of(text, large | number), "sink-constants")
    assert {t.name for t in done.after.graph.initializer} == {"w", "c"}


def test_weights_in_branches_are_weights_as_before() -> None:
    model = model_of(graph("m = MatMul (x, w)  a = Add (m, c)"), ARRAYS)
    after = sunk(graph("m = MatMul (x, w)  a = Add (m, c)")).after
    assert not after.graph.initializer
    names = [{w.name for w in weights(m).values if w.is_weight} for m in (model, after)]
    assert names[0] == names[1] == {"w", "c"}
    grads = [gradient(m, "params", adjoint="input") for m in (model, after)]
    assert [o.name for o in grads[0].graph.output] == [o.name for o in grads[1].graph.output]
