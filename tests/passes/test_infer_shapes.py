"""infer-shapes: what it declares, and what it leaves as it is."""

from __future__ import annotations

import onnx

from onnxgrad.functions import optimize
from onnxgrad.ir.load import load
from onnxgrad.ir.types import type_from_proto
from tests.helpers import parse
from tests.rewriting import apply


def declared(graph: onnx.GraphProto) -> dict[str, str]:
    return {v.name: str(type_from_proto(v.type)) for v in graph.value_info}


TEXT = """g (float[N,?] x, bool c) => (float[K,L] y) {
  f = Flatten<axis = 0>(x)
  n = NonZero(f)
  t = Concat<axis = 1>(x, x)
  q = If (c) <then_branch = a () => (float[?,?] p) { r = Relu(t) p = Neg(r) },
              else_branch = b () => (float[?,?] s) { s = Identity(t) }>
  z = Cast<to = 1>(n)
  w = ReduceSum(z)
  y = Add(q, w) }"""


def test_expressions_of_the_inputs_sizes() -> None:
    done = apply(parse(TEXT), "infer-shapes")
    found = declared(done.after.graph)
    assert found == {
        "f": "f32[1,N*x.1]", "t": "f32[N,2*x.1]", "q": "f32[N,2*x.1]", "n": "i64[2,?]", "z": "f32[2,?]",
        "w": "f32[1,1]",
    }  # fmt: skip
    branch = next(n for n in done.after.graph.node if n.op_type == "If").attribute[0].g
    assert declared(branch) == {"r": "f32[N,2*x.1]"}
    # the interface keeps what it says
    assert done.after.graph.input == done.before.graph.input
    assert done.after.graph.output == done.before.graph.output
    onnx.checker.check_model(done.after, full_check=True)
    assert load(done.after).main.text() == load(done.before).main.text()
    done.prove()


def test_a_second_run_changes_nothing() -> None:
    once = apply(parse(TEXT), "infer-shapes")
    again = apply(once.after, "infer-shapes")
    assert again.after == once.after and not again.trace.rewrites


def test_a_false_declaration_is_replaced() -> None:
    model = parse("g (float[N,4] x) => (float[N,4] y) { r = Relu(x) y = Neg(r) }")
    wrong = onnx.helper.make_tensor_value_info("r", onnx.TensorProto.FLOAT, [3, 4])
    model.graph.value_info.append(wrong)
    after = apply(model, "infer-shapes").after
    assert declared(after.graph)["r"] in ("f32[?,4]", "f32[N,4]")


def test_what_is_declared_and_cannot_be_inferred_stays() -> None:
    model = parse(
        """g (float[B,S,8] x) => (float[rows,8] y) <int64[2] t = {-1, 8}, int64[3,k] n, float[r,8] f> {
          f = Reshape(x, t)  n = NonZero(x)  c = Cast<to = 1>(n)  y = Relu(f) }"""
    )
    after = apply(model, "infer-shapes").after
    assert declared(after.graph) == {"n": "i64[3,k]", "c": "f32[3,?]", "f": "f32[B*S,8]"}
    assert after.graph.output == model.graph.output


def test_the_option_of_optimize() -> None:
    model = parse(
        "g (float[N,M] x) => (float[K] y) { r = Relu(x) f = Flatten<axis = 0>(r) y = Neg(f) }"
    )
    assert declared(optimize(model, infer_shapes=True).graph) == {
        "r": "f32[N,M]",
        "f": "f32[1,M*N]",
    }
    assert not optimize(model).graph.value_info
