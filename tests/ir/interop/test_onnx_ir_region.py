"""A part of an onnx_ir graph as a program."""

from __future__ import annotations

import onnx
import onnx_ir
import pytest

from onnxgrad.errors import InputError
from onnxgrad.ir.interop.onnx_ir_region import OnnxIrRegion
from tests.helpers import parse, unindented

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
