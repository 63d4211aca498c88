"""Functions whose nodes take attributes of the call, in the form in which onnxscript writes parameters with defaults."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, helper, numpy_helper

from onnxgrad import check_gradient, gradient, verify
from onnxgrad.errors import InputError
from onnxgrad.functions import optimize
from onnxgrad.ir.load import load

SPARSE = helper.make_sparse_tensor(
    numpy_helper.from_array(np.float32([2, 3]), "s"),
    numpy_helper.from_array(np.array([0, 2]), "i"),
    [3],
)
BRANCH = onnx.parser.parse_graph(
    "b () => (float[3] bb) { bb = Constant <value = float[3] {1, 2, 3}> () }"
)
# each kind of Constant, by the attribute that it takes from the call
CONSTANTS: dict[str, Any] = {
    "value_float": 2.0,
    "value_int": 2,
    "value_floats": [1.0, 2.0, 3.0],
    "value_ints": [1, 2, 3],
    "value_string": "2.5",
    "value_strings": ["2.5", "1", "-3"],
    "value": numpy_helper.from_array(np.float32([1, 2, 3])),
    "sparse_value": SPARSE,
}


def model(
    body: str, refers: dict[int, str], value: Any, *, default: bool, opset: int = 18
) -> onnx.ModelProto:
    """l = sum(F(x)), F with `body`, in which the nodes at these places take the named attribute from the call's `a`."""
    a = helper.make_attribute("a", value)
    nodes = list(onnx.parser.parse_graph(f"g (float[3] x) => (float[3] y) {{ {body} }}").node)
    for i, name in refers.items():
        nodes[i].attribute.add(name=name, ref_attr_name="a", type=a.type)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("my", 1)]
    f = helper.make_function(
        "my", "F", ["x"], ["y"], nodes, opsets[:1], [] if default else ["a"], [a] if default else []
    )
    graph = onnx.parser.parse_graph(
        "g (float[3] x) => (float l) { k = my.F (x) l = ReduceSum <keepdims = 0> (k) }"
    )
    if not default:
        graph.node[0].attribute.append(a)
    return helper.make_model(graph, functions=[f], ir_version=8, opset_imports=opsets)


@pytest.mark.covering
@pytest.mark.parametrize("default", [True, False], ids=["default", "given"])
@pytest.mark.parametrize("kind", CONSTANTS)
def test_a_constant_from_an_attribute(kind: str, default: bool) -> None:
    body = "c = Constant () d = Cast <to = 1> (c) y = Mul (x, d)"
    given = model(body, {0: kind}, CONSTANTS[kind], default=default, opset=15 if default else 18)
    if kind == "sparse_value":  # onnxruntime itself dies of that now and then, whatever optimises
        assert any(n.op_type == "Constant" for n in gradient(given).graph.node)
        opened = optimize(given, passes=["inline{names=F}"], verify=False)
        assert "F" not in {n.op_type for n in opened.graph.node}
        assert verify(given, opened, checks=("float64",)).ok
        return
    assert verify(given, given).ok
    assert check_gradient(given).ok
    opened = optimize(given, passes=["inline{names=F}"])
    assert "F" not in {n.op_type for n in opened.graph.node}
    assert {n.op_type for n in optimize(given).graph.node} == {"F", "ReduceSum"}


def test_a_mode_from_an_attribute() -> None:
    body = (
        "p = Constant <value_ints = [0, 1, 0, 1]> () i = Constant <value_ints = [0]> () u = Unsqueeze (x, i) "
        "q = Pad (u, p) y = ReduceSum <keepdims = 0> (q)"
    )
    found = check_gradient(model(body, {3: "mode"}, "reflect", default=False), "x")
    assert found.ok and found.values[0].difference != 0
    constant = check_gradient(model(body, {3: "mode"}, "constant", default=False), "x")
    assert constant.ok and constant.values[0].difference != found.values[0].difference


@pytest.mark.parametrize("default", [True, False], ids=["default", "given"])
@pytest.mark.parametrize("opset", [15, 18])
def test_a_branch_from_an_attribute(opset: int, default: bool) -> None:
    """It runs and is kept; opened the If would have no branch, which came out as an internal error."""
    body = "s = ReduceSum <keepdims = 0> (x) c = Cast <to = 9> (s) d = If (c) y = Mul (x, d)"
    given = model(body, {2: "then_branch"}, BRANCH, default=default, opset=opset)
    a = given.functions[0].node[2].attribute.add(name="else_branch", ref_attr_name="a")
    a.type = AttributeProto.GRAPH
    assert [n.op_type for n in optimize(given, passes=["inline{names=F}"]).graph.node] == [
        "F",
        "ReduceSum",
    ]
    assert load(given).functions
    with pytest.raises(
        InputError, match="the then_branch of its If is a graph that calls give as an attribute"
    ):
        gradient(given)


def test_a_sparse_attribute_of_a_call_stays_below_opset_18() -> None:
    """onnx.version_converter knows none: "Sparse tensors not supported"."""
    given = model(
        "c = Constant () y = Mul (x, c)", {0: "sparse_value"}, SPARSE, default=False, opset=15
    )
    given.graph.input.append(helper.make_tensor_value_info("z", 1, [3]))
    given.graph.node.append(helper.make_node("Tanh", ["z"], ["t"]))
    given.graph.output.append(helper.make_tensor_value_info("t", 1, [3]))
    call = gradient(given, "z", "t", adjoint="input").graph.node[0]
    assert (call.op_type, list(call.attribute)) == ("F", list(given.graph.node[0].attribute))
