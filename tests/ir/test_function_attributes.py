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
from onnxgrad.verify.running.session import run
from tests.handing_on import failures, single_nodes
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
    assert onnxgrad.optimize(model).graph.node  # which proves it
    assert onnxgrad.verify(model, onnxgrad.optimize(model, passes="inline", verify=False))
    assert onnxgrad.check_gradient(model)


POOL = """<ir_version: 10, opset_import: ["" : OPSET, "my" : 1]>
g (float[1,1,7,7] x) => (float[1,1,H,W] y) { y = my.F <k = [2, 2], c = CEIL> (x) }
<domain: "my", opset_import: ["" : OPSET]> F <k, c, p> (x) => (y) {
  y = POOL <kernel_shape: ints = @k, strides = [2, 2], ceil_mode: int = @c, pads: ints = @p> (x) }"""


@pytest.mark.parametrize("ceil", [0, 1])
@pytest.mark.parametrize("opset", [19, 22])
@pytest.mark.parametrize("pool", ["MaxPool", "AveragePool", "LpPool"])
def test_a_pool_takes_its_window_from_the_call(pool: str, opset: int, ceil: int) -> None:
    text = POOL.replace("OPSET", str(opset)).replace("POOL", pool).replace("CEIL", str(ceil))
    model = onnx.parser.parse_model(text)
    assert str(onnxgrad.inspect(model))
    assert onnxgrad.verify(model, onnxgrad.optimize(model, passes="inline", verify=False))
    assert onnxgrad.check_gradient(model, "x", "y")


def test_upsampling_by_a_mode_of_the_call_keeps_its_nearest_element() -> None:
    """Resize needs the mode to know which element Upsample took: the function is opened first."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 9, "my" : 1]>
        g (float[1,1,2,2] x) => (float[1,1,4,6] y) <float[4] s = {1, 1, 2, 3}> { y = my.F <m = "nearest"> (x, s) }
        <domain: "my", opset_import: ["" : 9]> F <m> (x, s) => (y) { y = Upsample <mode: string = @m> (x, s) }""")
    x = np.arange(4, dtype=np.float32).reshape(1, 1, 2, 2)
    gradient = onnxgrad.gradient(model, "x", "y", adjoint="input")
    found = run(gradient, {"x": x, "y_grad": np.ones((1, 1, 4, 6), np.float32)})
    np.testing.assert_array_equal(found["y"], x.repeat(2, 2).repeat(3, 3))
    np.testing.assert_array_equal(found["x_grad"], np.full((1, 1, 2, 2), 6, np.float32))
    with pytest.raises(InputError, match="'mode' is given by calls: inline the function first"):
        onnxgrad.optimize(model, target_opset=18)


def schemas() -> list[onnx.defs.OpSchema]:
    """Each operator's newest schema, of those with attributes."""
    newest = {
        (s.domain, s.name): s
        for s in sorted(
            onnx.defs.get_all_schemas_with_history(), key=lambda s: int(s.since_version)
        )
    }
    return [s for s in newest.values() if s.attributes and not s.deprecated]


@pytest.mark.parametrize("domain", ["", "ai.onnx.ml"])
def test_every_attribute_of_every_operator_may_be_the_calls(domain: str) -> None:
    """Reading and inlining; scripts/sweep_attributes.py compares results."""
    for schema in [s for s in schemas() if s.domain == domain]:
        operands = [f"i{i}" for i in range(schema.min_input)]
        node = helper.make_node(schema.name, operands, ["y"], domain=domain)
        for name, a in schema.attributes.items():
            node.attribute.add(name=name, ref_attr_name=name, type=a.type.value)
        opset = helper.make_opsetid(domain, schema.since_version)
        opsets = [opset] if domain == "" else [opset, helper.make_opsetid("", 21)]
        function = helper.make_function(
            "my", "F", operands, ["y"], [node], opsets, list(schema.attributes)
        )
        x = [helper.make_tensor_value_info(n, 1, [1, 1, 4, 4]) for n in operands]
        call = helper.make_node("F", operands, ["y"], domain="my")
        graph = helper.make_graph([call], "g", x, [onnx.ValueInfoProto(name="y")])
        graph.output[0].type.tensor_type.elem_type = 1
        opsets.append(helper.make_opsetid("my", 1))
        model = helper.make_model(graph, functions=[function], opset_imports=opsets, ir_version=10)
        program = onnxgrad.load(model)
        assert list(program.functions)
        try:
            onnxgrad.optimize(model, passes="inline", verify=False)
        except InputError:  # operands that the operator does not take
            continue


def test_a_loop_may_take_its_body_from_the_call() -> None:
    body = onnx.parser.parse_graph(
        "b (int64 i, bool c, float[2] v) => (bool d, float[2] w) { d = Identity (c) w = Neg (v) }"
    )
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21, "my" : 1]>
        g (float[2] x) => (float[2] y) { y = my.F (x) }
        <domain: "my", opset_import: ["" : 21]> F <body> (x) => (y) {
          n = Constant <value_int = 3> () y = Loop <body: graph = @body> (n, , x) }""")
    model.graph.node[0].attribute.append(helper.make_attribute("body", body))
    assert str(onnxgrad.inspect(model)) and onnxgrad.verify(model, model)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:no requested value reaches")  # of operators without a gradient
def test_a_call_is_treated_as_its_node() -> None:
    found = {case.name: list(failures(case)) for case in single_nodes()[::4]}
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


def test_a_reference_outside_a_function_is_refused() -> None:
    model = parse("g (float[3] x) => (float[3] y) { y = LeakyRelu(x) }")
    model.graph.node[0].attribute.add(name="alpha", ref_attr_name="a", type=AttributeProto.FLOAT)
    with pytest.raises(
        InputError,
        match="LeakyRelu '': the attribute 'alpha' refers to a function's attribute outside of any",
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
    assert "function 'F': the dtype of 'x' is that of each call" in reason and not trace.rewrites


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
