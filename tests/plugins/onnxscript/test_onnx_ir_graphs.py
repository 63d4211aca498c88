"""A program as an onnx_ir model beside it."""

from __future__ import annotations

import onnx
import onnx_ir
import pytest

from onnxgrad.errors import InputError
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.load import load
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var
from onnxgrad.plugins.onnxscript.onnx_ir_graphs import OnnxIrRegion, OnnxIrView
from tests.helpers import parse, unindented

NESTED = """
    <ir_version: 10, opset_import: ["" : 20, "my" : 1]>
    g (float[N,3] x, bool c, float[3] w) => (float[N,3] y) <float[3] w = {1.0, 2.0, 3.0}, float[3] v = {1.0, 2.0, 3.0}> {
      b = If (c) <then_branch = t () => (float[N,3] p) { p = Add(x, w) },
                  else_branch = e () => (float[N,3] q) { q = my.F(x, v) }>
      y = Relu(b)
    }
    <domain: "my", opset_import: ["" : 20]>
    F (r, s) => (z) { z = Mul(r, s) }"""


def test_every_node_has_its_binding_and_every_value_its_var() -> None:
    program = load(parse(NESTED))
    view = OnnxIrView.of(program)
    found = [b.op for b in view.bindings.values()]
    assert sorted(found) == ["Add", "F", "If", "Mul", "Relu"]
    assert all(node.op_type == b.op for node, b in view.bindings.items())
    assert all(value.name == v.name for value, v in view.values.items())
    assert len(view.blocks) == 4 and set(view.blocks.values()) == set(program.blocks())


def test_its_values_have_our_types_and_no_constant_that_a_caller_may_override() -> None:
    view = OnnxIrView.of(load(parse(NESTED)))
    values = {v.name: value for value, v in view.values.items()}
    assert str(values["b"].shape) == "[N,3]" and values["b"].dtype == onnx_ir.DataType.FLOAT
    assert values["w"].const_value is None
    assert values["v"].const_value.numpy().tolist() == [1.0, 2.0, 3.0]


def test_it_follows_a_replacement() -> None:
    program = load(parse("g (float[3] x) => (float[3] y) { n = Neg(x) a = Abs(n) y = Relu(a) }"))
    view = OnnxIrView.of(program)
    by_op = {node.op_type: node for node in view.bindings}
    new = onnx_ir.Node("", "Abs", [by_op["Neg"].inputs[0]])
    old: Var = view.values[by_op["Abs"].outputs[0]]
    with emitting(program.main):
        var = op.Abs(program.main.inputs[0])
    program.main.replace(old, var)
    program.main.remove_unused()
    view.bindings[new] = var.definition  # type: ignore[assignment]
    view.replace(by_op["Abs"], [new], {by_op["Abs"].outputs[0]: new.outputs[0]})
    assert [node.op_type for node, _ in view.nodes(view.model.graph)] == ["Abs", "Relu"]
    assert by_op["Relu"].inputs[0] is new.outputs[0]
    assert [use.node for use in by_op["Neg"].outputs[0].uses()] == []


def test_what_onnx_ir_does_not_hold_is_said() -> None:
    text = '<ir_version: 10, opset_import: ["" : 20]> g (float[3] x, map(int64, float) m) => (float[3] y) { y = Relu(x) }'
    with pytest.raises(InputError, match=r"onnx_ir cannot read this model: \w+"):
        OnnxIrView.of(load(parse(text)))


CHAIN = """g (float[N,3] x, float[3] v) => (float[N,3] y, float[N,3] a) <float[3] w = {1.0, 2.0, 3.0}, float[3] v = {0.0, 0.0, 0.0}> {
  a = Exp(x) b = Add(a, v) c = Mul(b, w) d = Relu(c) y = Neg(d)
}"""


def region(text: str, op: str, depth: int, *, infer: bool = True) -> OnnxIrRegion:
    proto = parse(text)
    model = onnx_ir.from_proto(onnx.shape_inference.infer_shapes(proto) if infer else proto)
    root = next(n for n in model.graph if n.op_type == op)
    return OnnxIrRegion.of(model, model.graph, root, depth)


def test_it_has_inputs_constants_and_outputs_where_it_is_cut() -> None:
    found = region(CHAIN, "Mul", 2)
    assert str(found.program.main) == unindented("""
        region(v3: f32[N,3], v4: f32[3], v1: f32[3] const = [1, 2, 3]) {
          v0: f32[N,3] = Add(v3, v4)
          v2: f32[N,3] = Mul(v0, v1)
          return v2, v3
        }""")
    assert found.root.op == "Mul"
    assert {b.op: node.op_type for b, node in found.nodes.items()} == {"Add": "Add", "Mul": "Mul"}
    assert {v.name: value.name for v, value in found.values.items()}["v1"] == "w"


def test_a_value_of_unknown_type_is_no_input() -> None:
    found = region(CHAIN, "Neg", 1, infer=False)
    (outer,) = [v for v in found.program.main.vars() if v.definition is not found.root]
    assert outer.type is None and not outer.is_constant and not outer.is_input


def test_a_constant_is_one_step_further() -> None:
    text = "g (float[3] x) => (float[3] y) { w = Constant <value_float = 2.0> () m = Mul(x, w) y = Neg(m) }"
    assert sorted(b.op for b in region(text, "Neg", 1).nodes) == ["Neg"]
    found = region(text, "Mul", 1)
    assert sorted(b.op for b in found.nodes) == ["Constant", "Mul"]


def test_what_is_no_program_is_an_error() -> None:
    text = "g (float[3] x) => (float[3] y) { y = NoSuchOperator(x) }"
    with pytest.raises(InputError, match="NoSuchOperator"):
        region(text, "NoSuchOperator", 1, infer=False)
