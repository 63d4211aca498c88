"""A program as an onnx_ir model beside it."""

from __future__ import annotations

import onnx_ir
import pytest

from onnxgrad.errors import InputError
from onnxgrad.ir.emission.emit import emitting
from onnxgrad.ir.interop.onnx_ir_view import OnnxIrView
from onnxgrad.ir.load import load
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var
from tests.helpers import parse

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
