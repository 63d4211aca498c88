"""What nothing reads goes; the interface and what others name stay."""

from __future__ import annotations

from typing import Any

import onnx
from onnx import helper

from tests.helpers import parse, unindented
from tests.rewriting import Done, apply, assert_same_results, model_of, weights

PASSES = "remove-unused"


def swept(text: str, constants: dict[str, Any] | None = None, **options: Any) -> Done:
    done = apply(model_of(text, constants, **options), PASSES)
    assert_same_results(done)
    return done


def test_what_is_left_of_a_graph() -> None:
    text = """g (float[2] x, float[2] unread) => (float[2] o) <float[2] w = {1, 2}, float[2] v = {3, 4}> {
        a = Mul(x, w)
        b = Exp(a)
        c = Neg(b)
        o = Relu(x)
      }"""
    assert swept(text).text == unindented("""
        g(x: f32[2], unread: f32[2]) {
          o: f32[2] = Relu(x)
          return o
        }
    """)


def test_graph_inputs_and_defaults_stay() -> None:
    done = swept("g (float[2] x, float[2] y, float[2] d = {1, 2}) => (float[2] o) { o = Relu(x) }")
    assert [i.name for i in done.after.graph.input] == ["x", "y", "d"] and len(
        done.after.graph.initializer
    ) == 1
    assert done.after == done.before


def test_a_binding_is_needed_while_one_result_is() -> None:
    done = swept(
        "g (float[4] x) => (float[2] o) { a, b = Split<axis=0, num_outputs=2>(x) o = Relu(b) n = Neg(a) }"
    )
    assert [b.op for b in done.block.bindings] == ["Split", "Relu"]


def test_what_only_a_removed_branch_captured_goes_too() -> None:
    text = """g (bool k, float[2] x) => (float[2] o) {
      r = Exp(x) s = Neg(x)
      u = If (k) <then_branch = t () => (float[2] a) { a = Mul(r, w) }, else_branch = e () => (float[2] b) { b = Abs(s) }>
      o = If (k) <then_branch = t2 () => (float[2] c) { d = Mul(r, x) c = Tanh(s) }, else_branch = e2 () => (float[2] f) { f = Abs(s) }> }"""
    done = swept(text, weights(w=(2,)))
    assert (done.count("If"), done.count("Exp"), done.count("Mul")) == (
        1,
        0,
        0,
    ) and not done.block.initializers


def test_values_that_training_info_names_stay() -> None:
    model = parse(
        "g (float[2] x) => (float[2] o) <float[2] w = {1, 2}, float[2] v = {1, 2}> { keep = Neg(x) drop = Exp(x) o = Relu(x) }"
    )
    info = model.training_info.add()
    info.algorithm.CopyFrom(
        helper.make_graph(
            [helper.make_node("Add", ["w", "keep"], ["w_new"])],
            "step",
            [],
            [helper.make_empty_tensor_value_info("w_new")],
        )
    )
    info.update_binding.add(key="w", value="w_new")
    done = apply(model, PASSES)
    assert [n.op_type for n in done.after.graph.node] == ["Neg", "Relu"]
    assert [t.name for t in done.after.graph.initializer] == [
        "w"
    ] and done.after.training_info == model.training_info


def test_inside_functions() -> None:
    text = """<ir_version: 10, opset_import: ["" : 20, "my" : 1]>
    g (float[2] x) => (float[2] o) { o = my.f(x) }
    <domain: "my", opset_import: ["" : 20]> f (u) => (v) { a = Exp(u) b = Neg(a) v = Abs(u) }"""
    done = apply(parse(text), PASSES)
    assert_same_results(done)
    assert [n.op_type for n in done.after.functions[0].node] == ["Abs"]


def test_metadata_names_and_docs_of_what_stays_are_untouched() -> None:
    model = parse("g (float[2] x) => (float[2] o) { a = Exp(x) b = Neg(x) o = Relu(b) }")
    for i, node in enumerate(model.graph.node):
        node.name, node.doc_string = f"n{i}", "doc"
        node.metadata_props.add(key="namespace", value=str(i))
    model.graph.metadata_props.add(key="k", value="v")
    model.metadata_props.add(key="alphabet", value="abc")
    expected = onnx.ModelProto()
    expected.CopyFrom(model)
    del expected.graph.node[0]
    assert apply(model, PASSES).after == expected
