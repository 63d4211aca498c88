"""The smallest graph of each wrong gradient that was found, and of what onnxruntime does to gradients."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import ModelProto

from onnxgrad import gradient
from onnxgrad.verify.reference.evaluate import Reference
from onnxgrad.verify.running.session import run
from tests.grad.numeric import check_model, normal, op_model


def parsed(text: str) -> ModelProto:
    """A model of opset 20 whose branches declare no shapes."""
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20, "my" : 1]>\n{text}')
    for node in model.graph.node:
        for attribute in node.attribute:
            for v in attribute.g.output:
                v.type.tensor_type.ClearField("shape")
    return model


def test_a_branch_that_returns_one_adjoint_for_two_values() -> None:
    """onnxruntime 1.31 mixes up the results of an If one of whose branches returns the same value twice."""
    text = """g (float[3,4] a, float[3,4] b, bool c) => (float[3,4] y) {
       y = If (c) <then_branch: graph = t () => (float[] p) { p = Add (a, b) },
                   else_branch: graph = e () => (float[] q) { q = Mul (a, b) }>
    }"""
    model = parsed(text)
    for c in (True, False):
        check_model(
            model, {"a": normal(3, 4), "b": normal(3, 4, seed=1), "c": np.array(c)}, wrt=["a", "b"]
        )
    graph = gradient(model, ["a", "b"], adjoint="input")
    for node in graph.graph.node:
        for attribute in node.attribute:
            names = [v.name for v in attribute.g.output]
            assert len(set(names)) == len(names)


def test_nothing_unused_is_computed_in_a_branch() -> None:
    text = """g (float[3] a, bool c) => (float[3] y) {
       y = If (c) <then_branch: graph = t () => (float[] p) { o = Exp (a) p = Sin (o) },
                   else_branch: graph = e () => (float[] q) { q = Neg (a) }>
    }"""
    graph = gradient(parsed(text), ["a"], adjoint="input")
    (inner,) = [n for n in graph.graph.node if n.op_type == "If" and n.output[0] == "a_grad"]
    (branch,) = [a.g for a in inner.attribute if a.name == "then_branch"]
    assert sorted(n.op_type for n in branch.node) == ["Cos", "Exp", "Mul", "Mul"]


@pytest.mark.parametrize("wrt", ["v", "w", "y"])
@pytest.mark.filterwarnings("ignore:.*is taken")
def test_a_function_that_returns_its_operand(wrt: str) -> None:
    """Readers of v must not be taken for readers of x: the adjoint of v is that of its own uses."""
    text = """g (float[3] x) => (float[3] y) { v = my.same (x) w = my.bend (v) p = Mul (v, w) y = Add (p, x) }
    <domain: "my", opset_import: ["" : 20]> same (a) => (a) { b = Neg (a) }
    <domain: "my", opset_import: ["" : 20]> bend (a) => (c) { c = Sin (a) }"""
    x, u = normal(3), normal(3, seed=1)
    graph = gradient(parsed(text), [wrt], adjoint="input")
    found = Reference(graph).run({"x": x, "y_grad": u})  # onnxruntime refuses such functions
    adjoint = {"v": u * (np.sin(x) + x * np.cos(x)), "w": u * x, "y": u}[wrt]
    np.testing.assert_allclose(found[graph.graph.output[-1].name], adjoint, rtol=1e-5)


def test_functions_go_with_their_last_call_and_no_others() -> None:
    text = """g (float[3] x) => (float[3] y) { y = my.bend (x) }
    <domain: "my", opset_import: ["" : 20]> bend (a) => (c) { c = Sin (a) }
    <domain: "my", opset_import: ["" : 20]> spare (a) => (c) { c = Cos (a) }"""
    graph = gradient(parsed(text), adjoint="input")
    assert [f.name for f in graph.functions] == ["spare"]


def test_a_call_whose_result_is_returned_by_a_loop_body() -> None:
    text = """g (float[3] x) => (float[3] y) <int64 n = {2}> {
       y = Loop (n, "", x) <body: graph = b (int64 i, bool go, float[3] s) => (bool on, float[3] t) {
          on = Identity (go) t = my.bend (s) }>
    }
    <domain: "my", opset_import: ["" : 20]> bend (a) => (c) { c = Sin (a) }"""
    check_model(parsed(text), {"x": normal(3)}, wrt=["x"])


def test_a_loop_state_keeps_its_shape_for_what_follows() -> None:
    """onnx gives the final state of a Loop no shape; the gradient of MatMul needs its rank."""
    text = """g (float[2,3] x, float[3,4] w) => (float[2,4] y) <int64 n = {2}> {
       z = Loop (n, "", x) <body: graph = b (int64 i, bool go, float[2,3] s) => (bool on, float[] t) {
          on = Identity (go) t = Sin (s) }>
       y = MatMul (z, w)
    }"""
    check_model(parsed(text), {"x": normal(2, 3), "w": normal(3, 4)}, wrt=["x", "w"])


def test_a_value_of_a_nested_call_that_is_not_reached_has_a_typed_adjoint() -> None:
    """onnx types neither what follows the Loop nor the calls, and the checker wants every output's rank."""
    text = """g (float[3] x) => (float[3] y) <int64 n = {2}> {
       z = Loop (n, "", x) <body: graph = b (int64 i, bool go, float[3] s) => (bool on, float[] t) {
          on = Identity (go) t = Sin (s) }>
       v = my.outer (z)
       y = Neg (x)
    }
    <domain: "my", opset_import: ["" : 20, "my" : 1]> outer (a) => (c) { b = my.bend (a) c = Add (b, a) }
    <domain: "my", opset_import: ["" : 20]> bend (a) => (c) { c = Sin (a) }"""
    graph = gradient(parsed(text), ["x", "v"], adjoint="input")
    onnx.checker.check_model(graph)
    assert [d.dim_value for d in graph.graph.output[-1].type.tensor_type.shape.dim] == [3]


def test_a_branch_over_values_that_only_the_outputs_declare_has_a_typed_adjoint() -> None:
    """What the file declares of an output reaches the branches that read it."""
    text = """g (float x, bool c) => (float z, float y) <int64 n = {2}> {
       z = Loop (n, "", x) <body: graph = b (int64 i, bool go, float s) => (bool on, float[] t) {
          on = Identity (go) t = Sin (s) }>
       v = If (c) <then_branch: graph = t () => (float[] p) { p = Mul (z, z) },
                   else_branch: graph = e () => (float[] q) { q = Neg (z) }>
       y = Neg (x)
    }"""
    graph = gradient(parsed(text), ["x", "v"], "y")
    onnx.checker.check_model(graph)


def test_neighbouring_rows_of_an_inner_axis() -> None:
    """onnxruntime 1.31 moves a Transpose through a Pad of some axes as if it were one of all: the graph fails to run."""
    check_model(
        op_model(
            "v = Gather <axis = -2> (x, i)\n y = Sin (v)",
            {"x": normal(3, 2, 4, 5)},
            constants={"i": np.array([2, 3])},
        ),
        {"x": normal(3, 2, 4, 5)},
        wrt=["x"],
    )


def test_repeated_rows_on_two_threads() -> None:
    """ScatterND with reduction="add" races in onnxruntime 1.31 when indices repeat: Gather's gradient may not use it."""
    rows = np.random.default_rng(0).integers(0, 5, 4096)
    x, u = normal(8, 64), normal(4096, 64)
    graph = gradient(op_model("y = Gather (x, i)", {"x": x, "i": rows}), ["x"], adjoint="input")
    expected = np.zeros(x.shape)
    np.add.at(expected, rows, u.astype(np.float64))
    for _ in range(5):
        found = run(graph, {"x": x, "i": rows, "y_grad": u}, threads=2)["x_grad"]
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-3)
