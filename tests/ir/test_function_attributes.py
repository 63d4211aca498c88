"""References to a function's attributes, of every kind: read, kept, optimised, proved and differentiated."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, ModelProto, helper, numpy_helper

import onnxgrad
from onnxgrad import P, capture, op, rewrite_call
from onnxgrad.errors import InputError
from onnxgrad.rewrite.trace import Trace
from onnxgrad.verify.running.run import run
from tests.helpers import parse

KINDS: list[tuple[str, str, int, Any]] = [
    ("Constant", "value_float", AttributeProto.FLOAT, 2.0),
    ("Constant", "value_int", AttributeProto.INT, 2),
    ("Constant", "value_floats", AttributeProto.FLOATS, [1.0, 2.0, 3.0]),
    ("Constant", "value_ints", AttributeProto.INTS, [1, 2, 3]),
    (
        "Constant",
        "value",
        AttributeProto.TENSOR,
        numpy_helper.from_array(np.array([1, 2, 3], np.float32)),
    ),
    ("LeakyRelu", "alpha", AttributeProto.FLOAT, 0.5),
    ("Softmax", "axis", AttributeProto.INT, 0),
    ("Transpose", "perm", AttributeProto.INTS, [0]),
]


def calling(kind: str, name: str, type_: int, value: Any) -> ModelProto:
    """x * F's attribute, or F's operator with it, twice with other values where that is a number."""
    inner = helper.make_node(kind, [] if kind == "Constant" else ["x"], ["c"])
    inner.attribute.add(name=name, ref_attr_name="a", type=type_)  # type: ignore[arg-type]  # the stub wants the enum
    nodes = [
        inner,
        helper.make_node("Cast", ["c"], ["d"], to=1),
        helper.make_node("Mul", ["x", "d"], ["y"]),
    ]
    body = helper.make_function(
        "my", "F", ["x"], ["y"], nodes, [helper.make_opsetid("", 21)], ["a"]
    )
    model = parse(
        "g (float[3] x) => (float l) { k = Neg(x) m = Neg(x) s = Add(k, m) l = ReduceSum<keepdims = 0>(s) }",
        opset=21,
    )
    other = value + 1 if isinstance(value, float) else value
    model.graph.node[0].CopyFrom(helper.make_node("F", ["x"], ["k"], domain="my", a=value))
    model.graph.node[1].CopyFrom(helper.make_node("F", ["x"], ["m"], domain="my", a=other))
    model.opset_import.append(helper.make_opsetid("my", 1))
    model.functions.append(body)
    return model


@pytest.mark.parametrize(
    ("kind", "name", "type_", "value"), KINDS, ids=[f"{k[0]}-{k[1]}" for k in KINDS]
)
def test_everything_takes_a_referred_attribute(
    kind: str, name: str, type_: int, value: Any
) -> None:
    model = calling(kind, name, type_, value)
    assert onnxgrad.verify(model, model)
    for passes in (None, "inline"):
        optimised = onnxgrad.optimize(model, passes=passes)  # which proves it
        assert onnxgrad.verify(model, optimised)
    assert onnxgrad.check_gradient(model)


def test_a_reference_outside_a_function_is_refused() -> None:
    model = parse("g (float[3] x) => (float[3] y) { y = LeakyRelu(x) }")
    model.graph.node[0].attribute.add(name="alpha", ref_attr_name="a", type=AttributeProto.FLOAT)
    with pytest.raises(
        InputError,
        match="LeakyRelu '': the attribute 'alpha' refers to a function's, outside of any",
    ):
        onnxgrad.load(model)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_a_rule_may_write_numbers_in_untyped_bodies(dtype: Any) -> None:
    """The number takes the dtype that the call has, exactly: 0.1 in float64 is not 0.1 in float32."""
    elem = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    text = """<ir_version: 10, opset_import: ["" : 21, "f" : 1]> g (float[3] x) => (float[3] y) { y = f.F(x) }
        <domain: "f", opset_import: ["" : 21]> F (x) => (y) { y = Neg(x) }"""
    model = parse(text)
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.elem_type = elem
    a = capture("a")
    rewritten = rewrite_call(P.Neg(a), lambda a: op.Mul(a, -0.1), model)
    x = np.array([1, 2, 3], dtype)
    np.testing.assert_array_equal(run(rewritten, {"x": x})["y"], x * dtype(-0.1))


def test_a_number_in_an_untyped_body_without_castlike_is_a_decline() -> None:
    model = parse(
        """<ir_version: 10, opset_import: ["" : 21, "f" : 1]> g (float[3] x) => (float[3] y) { y = f.F(x) }
        <domain: "f", opset_import: ["" : 14]> F (x) => (y) { y = Neg(x) }"""
    )
    a, trace = capture("a"), Trace(explain=True)
    rewrite_call(P.Neg(a), lambda a: op.Mul(a, -1.0), model, trace=trace)
    ((_, _, reason),) = trace.declined
    assert "function 'F': the dtype of 'x' is that of each call" in reason and not trace.firings


@pytest.mark.parametrize("ir_version", [3, 4])
@pytest.mark.parametrize("opset", [7, 8, 9, 13])
def test_integers_fold_in_old_files(ir_version: int, opset: int) -> None:
    """Below IR 4 what is folded becomes a Constant, whose schema before version 9 knows floats only."""
    model = onnx.parser.parse_model(
        f"""<ir_version: {ir_version}, opset_import: ["" : {opset}]> g (float[2,3,4] x) => (float[2,12] y) {{
        s = Shape(x) k = Constant<value = int64[1] {{12}}>() i = Constant<value = int64[1] {{0}}>()
        b = Gather(s, i) t = Concat<axis = 0>(b, k) y = Reshape(x, t) }}"""
    )
    optimised = onnxgrad.optimize(model)
    assert {n.op_type for n in optimised.graph.node} <= {"Constant", "Reshape"}
    assert {n.op_type for n in onnxgrad.optimize(optimised).graph.node} <= {"Constant", "Reshape"}


def test_shape_arithmetic_beyond_int64_stays() -> None:
    model = parse(
        "g (float[7] x) => (int64[1] z) <int64[1] k = {1099511627776}, int64[1] o = {1}> { s = Shape(x) q = Mul(s, k) r = Mul(q, k) z = Add(r, o) }"
    )
    assert onnxgrad.optimize(model).graph.node
