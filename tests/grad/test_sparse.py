"""Sparse initializers and Constants in gradients, at every opset and in nested graphs; onnx's converter knows none."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from onnxgrad import check_gradient, gradient
from onnxgrad.errors import InputError
from onnxgrad.verify.running.session import run
from tests.grad.numeric import normal

DENSE = np.array([[2, 0], [0, 0], [-1, 3]], np.float32)
FEEDS = {"x": normal(4, 3), "c": np.array(True), "y_grad": normal(4, 2, seed=1)}


def weight() -> onnx.SparseTensorProto:
    at = np.flatnonzero(DENSE)
    values = numpy_helper.from_array(DENSE.ravel()[at], "w")
    return helper.make_sparse_tensor(values, numpy_helper.from_array(at, "at"), DENSE.shape)


def product(constant: bool, name: str = "y") -> onnx.GraphProto:
    """y = x @ w."""
    nodes = (
        [helper.make_node("Constant", [], ["w"], "k", "said", sparse_value=weight())]
        if constant
        else []
    )
    nodes.append(helper.make_node("MatMul", ["x", "w"], [name]))
    y = helper.make_tensor_value_info(name, 1, [4, 2])
    return helper.make_graph(nodes, "g", [], [y], sparse_initializer=[] if constant else [weight()])


def in_a_branch(constant: bool) -> onnx.GraphProto:
    """y = x @ w where c, x @ v elsewhere."""
    graph = onnx.parser.parse_graph(
        "g (float[4,3] x, bool c) => (float[4,2] y) { y = If (c) <else_branch = e () => (float[4,2] q) {"
        "v = Constant <value = float[3,2] {1, 1, 1, 1, 1, 1}> () q = MatMul (x, v) }> }"
    )
    graph.node[0].attribute.append(helper.make_attribute("then_branch", product(constant, "p")))
    return graph


def model(graph: onnx.GraphProto, opset: int) -> onnx.ModelProto:
    if not graph.input:
        graph.input.append(helper.make_tensor_value_info("x", 1, [4, 3]))
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=6 if opset < 12 else 8
    )


def answers(model: onnx.ModelProto, wrt: str) -> dict[str, np.ndarray]:
    graph = gradient(model, wrt, adjoint="input")
    names = {v.name for v in graph.graph.input}
    return run(graph, {n: v for n, v in FEEDS.items() if n in names})


@pytest.mark.parametrize("constant", [True, False], ids=["Constant", "initializer"])
@pytest.mark.parametrize("opset", range(11, 26))
def test_every_opset(opset: int, constant: bool) -> None:
    """Below 18 onnx.version_converter said "Sparse tensors not supported" or "Input w is undefined"."""
    given = model(product(constant), opset)
    np.testing.assert_allclose(answers(given, "x")["x_grad"], FEEDS["y_grad"] @ DENSE.T, rtol=1e-5)
    found = gradient(given, "params", adjoint="input")
    assert [v.name for v in found.graph.output] == ["y", "w_grad"]
    if constant:
        assert found.graph.node[0] == given.graph.node[0]
    else:
        assert found.graph.sparse_initializer == given.graph.sparse_initializer
    np.testing.assert_allclose(
        answers(given, "w*")["w_grad"], FEEDS["x"].T @ FEEDS["y_grad"], rtol=1e-5
    )


@pytest.mark.parametrize("constant", [True, False], ids=["Constant", "initializer"])
@pytest.mark.parametrize("opset", [13, 18])
def test_in_a_branch(opset: int, constant: bool) -> None:
    """The branch that runs backwards read a sparse initializer of the other one; "params" passed over both."""
    given = model(in_a_branch(constant), opset)
    np.testing.assert_allclose(answers(given, "x")["x_grad"], FEEDS["y_grad"] @ DENSE.T, rtol=1e-5)
    found = answers(given, "params")
    assert set(found) == {"y", "v_grad", "w_grad"}
    np.testing.assert_allclose(found["w_grad"], FEEDS["x"].T @ FEEDS["y_grad"], rtol=1e-5)
    assert set(answers(given, "w")) == {"y", "w_grad"}


@pytest.mark.parametrize("opset", [13, 18])
def test_one_that_an_input_may_replace(opset: int) -> None:
    given = model(product(constant=False), opset)
    given.graph.input.append(helper.make_tensor_value_info("w", 1, DENSE.shape))
    found = gradient(given, "x", adjoint="input")
    assert [t.values.name for t in found.graph.sparse_initializer] == ["w"]
    assert [v.name for v in found.graph.input] == ["x", "w", "y_grad"]
    assert check_gradient(given, "w").ok


@pytest.mark.parametrize("value", ["", "<value = float[3,2] {1, 2, 3, 4, 5, 6}>"])
def test_constants_of_a_function_that_raising_opens(value: str) -> None:
    """They are none of the model's values, at no opset; the check asked the model for them: a KeyError."""
    text = f"""<ir_version: 8, opset_import: ["" : 16, "my" : 1]>
    m (float[4,3] x) => (float[4] y) {{ y = my.F (x) }}
    <domain: "my", opset_import: ["" : 16]> F (x) => (y) {{
        w = Constant {value} () m = MatMul (x, w) y = ReduceMean <axes = [1], keepdims = 0> (m)
    }}"""
    given = onnx.parser.parse_model(text)
    if not value:
        given.functions[0].node[0].attribute.append(helper.make_attribute("sparse_value", weight()))
    assert check_gradient(given, "x").ok
    with pytest.raises(
        InputError, match="no float initializer or Constant that reaches the target"
    ):
        check_gradient(given, "params")
