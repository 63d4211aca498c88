"""jvp against central differences, and against the vjp: <u, J v> = <J'u, v>."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import onnxgrad
from onnxgrad.grad import gradient
from onnxgrad.grad.forward import jvp
from onnxgrad.ir.load import load
from onnxgrad.verify.reference.evaluate import reference
from onnxgrad.verify.running.run import run
from tests.grad.numeric import normal
from tests.helpers import parse

MODELS = {
    "mlp": """g (float[B,4] x, float[4,5] w, float[5] b) => (float[B,5] y) {
        p = MatMul (x, w)  q = Add (p, b)  t = Tanh (q)  y = Softmax <axis = -1> (t) }""",
    "conv": """g (float[1,2,5,5] x, float[3,2,3,3] w) => (float[K] y) {
        p = Conv <pads = [1,1,0,1], strides = [2,1]> (x, w)  q = Relu (p)
        s = Constant <value_ints = [-1]> ()  y = Reshape (q, s) }""",
    "gather": """g (float[6,3] x, int64[4] i) => (float[4,3] y) { p = Gather (x, i)  q = Exp (p)  y = Mul (q, p) }""",
}


@pytest.mark.parametrize("name", MODELS)
def test_jvp_agrees_with_differences_and_with_the_vjp(name: str) -> None:
    model = parse(MODELS[name])
    sizes = {"B": 3}
    feeds: dict[str, np.ndarray] = {}
    for v in model.graph.input:
        shape = [d.dim_value or sizes.get(d.dim_param, 1) for d in v.type.tensor_type.shape.dim]
        integer = v.type.tensor_type.elem_type == onnx.TensorProto.INT64
        feeds[v.name] = np.array([0, 5, 2, 5]) if integer else normal(*shape)
    wrt = [n for n, v in feeds.items() if v.dtype == np.float32]
    graph = jvp(model)
    onnx.checker.check_model(graph, full_check=True)
    assert [v.name for v in graph.graph.input] == [*feeds, *(f"{w}_tangent" for w in wrt)]
    assert [v.name for v in graph.graph.output] == ["y", "y_tangent"]
    v = {w: normal(*feeds[w].shape, seed=7) for w in wrt}
    tangent = run(graph, {**feeds, **{f"{w}_tangent": v[w] for w in wrt}})["y_tangent"]
    step = 1e-6
    ends = [
        reference(model, {**feeds, **{w: feeds[w].astype(np.float64) + s * v[w] for w in wrt}})["y"]
        for s in (step, -step)
    ]
    np.testing.assert_allclose(tangent, (ends[0] - ends[1]) / (2 * step), rtol=1e-3, atol=1e-4)
    u = normal(*tangent.shape, seed=9)
    pulled = run(gradient(model, adjoint="input"), {**feeds, "y_grad": u})
    expected = sum(float((pulled[f"{w}_grad"].astype(np.float64) * v[w]).sum()) for w in wrt)
    assert float((u.astype(np.float64) * tangent).sum()) == pytest.approx(
        expected, rel=1e-4, abs=1e-4
    )


def test_nothing_of_the_first_vjp_is_left() -> None:
    graph = jvp(parse("g (float[3] x) => (float[3] y) { y = Tanh (x) }"))
    ops = sorted(n.op_type for n in graph.graph.node)
    assert ops == ["Mul", "Mul", "Sub", "Tanh"]


def test_no_derivative_leaves_constants_that_nothing_reads() -> None:
    """onnxruntime warns of each when it loads the file; what the model itself leaves unread stays."""
    text = """g (float[2,4] x) => (float y) <float[2] unread = {1, 2}> {
        a = Tanh (x) z = Softmax (a) y = ReduceSum <keepdims = 0> (z) }"""
    made = [
        onnxgrad.jvp(parse(text), "x", "y"),
        onnxgrad.gradient(parse(text), "x", "y"),
        onnxgrad.hessian_vector_product(parse(text), "x", "y"),
        onnxgrad.jacobian(parse(text), "x", "z", mode="forward"),
        onnxgrad.jacobian(parse(text), "x", "z", mode="reverse"),
    ]
    for model in made:
        block = load(model).main
        assert [v.name for v in block.initializers.values() if not v.use_count] == ["unread"]
