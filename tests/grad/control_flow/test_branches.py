from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from onnxgrad import check_gradient, gradient, jvp
from onnxgrad.ir.protobufs import every_node
from onnxgrad.verify.running.session import run
from tests.helpers import parse

# as the classic exporter of PyTorch writes scatter_reduce: the last If lies about its result
SCATTER = """g (float[2,3] x, float[2,3] v) => (float l) <int64[2,3] i = {0, 1, 0, 0, 1, 1}> {
  s = Shape (x) n = Size (s) o = Constant <value = int64 {0}> () c = Equal (n, o)
  a, k, b = If (c) <
    then_branch = t () => (float[6] a1, int64[6] k1, float[6] b1) {
      m = Constant <value_ints = [-1]> () a1 = Reshape (x, m) k1 = Reshape (i, m) b1 = Reshape (v, m) },
    else_branch = e () => (float[2,3] a2, int64[2,3] k2, float[2,3] b2) {
      a2 = Identity (x) k2 = Identity (i) b2 = Identity (v) }>
  d = ScatterElements <axis = 0, reduction = "REDUCTION"> (a, k, b)
  r = If (c) <then_branch = t2 () => (float[6] r1) { r1 = Squeeze (d) },
              else_branch = e2 () => (float[6] r2) { r2 = Identity (d) }>
  p = Mul (r, r) l = ReduceSum <keepdims = 0> (p) }"""


@pytest.mark.parametrize("reduction", ["add", "mul", "max", "min"])
def test_a_scatter_that_lies_about_its_shape(reduction: str) -> None:
    model = parse(SCATTER.replace("REDUCTION", reduction), opset=18)
    graph = gradient(model, ["x", "v"], "l")
    assert "If" not in {n.op_type for n in every_node(graph.graph.node)}
    rng = np.random.default_rng(0)
    feeds = {n: rng.uniform(0.5, 2, (2, 3)).astype(np.float32) for n in "xv"}
    found, moved = run(graph, feeds), 1e-3
    for name in "xv":
        for place in ((0, 0), (1, 2)):
            steps = []
            for sign in (1, -1):
                near = {n: a.copy() for n, a in feeds.items()}
                near[name][place] += sign * moved
                steps.append(float(run(graph, near)["l"]))  # type: ignore[arg-type]
            slope = (steps[0] - steps[1]) / (2 * moved)
            assert np.asarray(found[f"{name}_grad"])[place] == pytest.approx(slope, 2e-2, 2e-2)


BRANCHES = """<then_branch = t () => (float[N,4] a) { a = Tanh (x) },
              else_branch = e () => (float[N,4] b) { b = Sin (x) }>"""


@pytest.mark.parametrize(
    ("condition", "op"),
    [
        ("c = Constant <value = bool {1}> ()", "Tanh"),
        ("s = Shape <start = 1> (x) k = Constant <value_ints = [4]> () c = Equal (s, k)", "Tanh"),
        ("s = Shape <start = 1> (x) k = Constant <value_ints = [4]> () c = Less (s, k)", "Sin"),
        ("s = Shape <end = 1> (x) k = Constant <value_ints = [4]> () c = Equal (s, k)", "If"),
        ("k = ReduceSum <keepdims = 0> (x) z = Sub (k, k) c = Greater (k, z)", "If"),
    ],
)
def test_only_what_is_decided_is_opened(condition: str, op: str) -> None:
    model = parse(f"g (float[N,4] x) => (float[N,4] y) {{ {condition} y = If (c) {BRANCHES} }}")
    graph = gradient(model, "x", "y", adjoint="input")
    kinds = {n.op_type for n in graph.graph.node} & {"If", "Tanh", "Sin"}
    assert kinds == {op} and [v.name for v in graph.graph.output] == ["y", "x_grad"]
    assert check_gradient(model, "x", "y")


def test_its_results_may_be_asked_for() -> None:
    model = parse(
        f"""g (float[N,4] x) => (float[N,4] z) {{
              c = Constant <value = bool {{0}}> () y = If (c) {BRANCHES} z = Exp (y) }}"""
    )
    graph = gradient(model, ["x", "y"], "z", adjoint="input")
    x = np.float32([[0.1, 0.2, 0.3, 0.4]])
    feeds: dict[str, Any] = {"x": x, "z_grad": np.ones((1, 4), np.float32)}
    found = run(graph, feeds)
    np.testing.assert_allclose(found["y_grad"], np.exp(np.sin(x)), rtol=1e-5)  # type: ignore[arg-type]
    wanted = np.exp(np.sin(x)) * np.cos(x)
    np.testing.assert_allclose(found["x_grad"], wanted, rtol=1e-5)  # type: ignore[arg-type]
    assert onnx.checker.check_model(graph) is None


@pytest.mark.parametrize("rows", [1, 3])
def test_derivatives_through_branches_of_other_ranks(rows: int) -> None:
    """As TorchScript writes `squeeze(1)`. In one branch the adjoint of the If has the rank of its
    operand; the second walk through the adjoint, which is the tangent, must not take it for that
    of the other branch, too.
    """
    model = parse("""g (float[b,c,t] x) => (float[] y) <int64[1] one = {1}> {
      w = Sigmoid (x)  s = Shape (w)  n = Gather (s, one)  e = Equal (n, one)
      i = If (e) <then_branch = a () => (float[] p) { p = Squeeze (w, one) },
                  else_branch = d () => (float[] q) { q = Identity (w) }>
      y = ReduceMean <keepdims = 0> (i, one) }""")
    rng = np.random.default_rng(0)
    x, v = rng.standard_normal((2, 2, rows, 5)).astype(np.float32)
    sides = [np.asarray(run(model, {"x": x + step * v})["y"]) for step in (1e-2, -1e-2)]
    found = np.asarray(run(jvp(model), {"x": x, "x_tangent": v})["y_tangent"])
    np.testing.assert_allclose(found, (sides[0] - sides[1]) / 2e-2, atol=1e-4)
    g = rng.standard_normal(found.shape).astype(np.float32)
    back = run(gradient(model, target="y", adjoint="input"), {"x": x, "y_grad": g})["x_grad"]
    assert float((np.asarray(back) * v).sum()) == pytest.approx(float((g * found).sum()), 1e-4)
