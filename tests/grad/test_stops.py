"""onnxgrad/grad/stops.py: gradients that stop, against differences with the stopped value held fixed."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from onnxgrad import check_gradient, gradient, mark_checkpoints
from onnxgrad.errors import InputError
from onnxgrad.grad import differentiate
from onnxgrad.ir.load import load
from onnxgrad.train import training_step
from onnxgrad.verify.running.session import run
from tests.helpers import MODELS_DIR, parse, stored_arrays, unindented

# h reaches y twice, once through t
TEXT = """g (float[2,3] x, int64[1] i) => (float[2,2] y)
  <float[3,3] w = {1, -1, 0.5, 0.25, 2, -1, 1, 0.5, -2}, float[3,2] v = {1, 2, -1, 0.5, 1, -2}> {
  h = MatMul (x, w)  t = Tanh (h)  p = Mul (h, t)  y = MatMul (p, v)
}"""
X = np.array([[0.1, -0.4, 0.3], [0.7, 0.2, -0.6]], np.float32)
FEEDS = {"x": X, "i": np.zeros(1, np.int64)}


def adjoints(**options: Any) -> dict[str, Any]:
    graph = gradient(parse(TEXT), adjoint="input", **options)
    onnx.checker.check_model(graph, full_check=True)
    assert all(node.domain == "" for node in graph.graph.node)
    return run(graph, {**FEEDS, "y_grad": np.ones((2, 2), np.float32)})


def w_and_v() -> tuple[Any, Any]:
    w, v = (onnx.numpy_helper.to_array(t) for t in parse(TEXT).graph.initializer)
    return w, v


def test_a_stopped_value_is_a_constant_to_what_is_behind_it() -> None:
    """y = (h t) v with t fixed: only the factor h passes."""
    w, v = w_and_v()
    found = adjoints(wrt=["x", "w", "h"], stop="t")
    h = X @ w
    to_h = np.ones((2, 2)) @ v.T * np.tanh(h)
    np.testing.assert_allclose(found["h_grad"], to_h, rtol=1e-5)
    np.testing.assert_allclose(found["x_grad"], to_h @ w.T, rtol=1e-5)
    np.testing.assert_allclose(found["w_grad"], X.T @ to_h, rtol=1e-5)


def test_the_adjoint_of_the_stopped_value_itself_is_whole() -> None:
    free, stopped = adjoints(wrt="h"), adjoints(wrt=["h", "x"], stop="h")
    np.testing.assert_allclose(stopped["h_grad"], free["h_grad"], rtol=1e-6)
    assert not stopped["x_grad"].any()


@pytest.mark.parametrize("checkpoint", [None, "auto", ["h"]])
@pytest.mark.parametrize(
    ("stop", "wrt"),
    [
        ("t", ["x", "w", "v"]), ("h", ["x", "h", "v"]), (["t", "p"], ["p", "v"]), ("p", ["x", "p", "v", "t"]), ("[htp]", "v"),
        ("y", ["y", "v"]), (["t", "h"], ["t", "h", "w"]),
    ],
)  # fmt: skip
def test_against_differences(stop: Any, wrt: Any, checkpoint: Any) -> None:
    report = check_gradient(parse(TEXT), wrt, stop=stop, checkpoint=checkpoint, inputs={"x": X})
    assert report.ok, str(report)


def test_the_check_would_notice_a_gradient_that_did_not_stop() -> None:
    """Differences with and without the stop are two numbers, or the check would prove nothing."""
    with_stop = check_gradient(parse(TEXT), "x", stop="t", inputs={"x": X})
    without = check_gradient(parse(TEXT), "x", inputs={"x": X})
    assert with_stop.ok and without.ok
    assert abs(with_stop.values[0].difference - without.values[0].difference) > 0.01


def test_what_is_only_before_a_stop_is_zero_and_said_to_be() -> None:
    found = differentiate(load(parse(TEXT)), ["x", "w", "v"], adjoint="input", stop="h")
    assert found.notes == ("the gradient of 2 values ('x' and others) is zero: it stops at 'h'",)
    with pytest.warns(UserWarning, match="all gradients are zero.*gradients stop at 'h'"):
        gradient(parse(TEXT), "x", adjoint="input", stop="h")
    with pytest.warns(UserWarning, match="all gradients are zero"):
        assert check_gradient(parse(TEXT), "x", stop="h").ok  # no path: the zero is proved


def test_params_leaves_out_frozen_weights() -> None:
    assert list(differentiate(load(parse(TEXT)), "params", adjoint="input", stop="h").adjoints) == [
        "v"
    ]


def test_the_graph() -> None:
    """What is left of a stop: nothing."""
    model = parse("g (float[2] x) => (float[2] y) { h = Exp (x) y = Mul (h, x) }")
    found = differentiate(load(model), ["x"], adjoint="input", stop="h")
    assert str(found.program.main) == unindented("""
        g(x: f32[2], y_grad: f32[2]) {
          h: f32[2] = Exp(x)
          y: f32[2] = Mul(h, x)
          x_grad: f32[2] = Mul(y_grad, h)
          return y, x_grad
        }
        """)


def test_a_value_that_branches_read() -> None:
    text = """g (float[3] x, bool c) => (float[3] y) { h = Exp (x)
      y = If (c) <then_branch = a () => (float[3] p) { p = Mul (h, x) }, else_branch = b () => (float[3] q) { q = Sub (h, x) }> }"""
    for c in (True, False):
        assert check_gradient(parse(text), "x", stop="h", inputs={"c": np.array(c)}).ok
    with pytest.raises(
        InputError, match=r"stop 'p' is not a value of the model.*local to then_branch"
    ):
        gradient(parse(text), "x", adjoint="input", stop="p")


def test_a_value_that_a_branch_returns_is_refused() -> None:
    text = """g (float[3] x, bool c) => (float[3] y) { h = Exp (x)
      y = If (c) <then_branch = a () => (float[3] h) { }, else_branch = b () => (float[3] q) { q = Sin (h) }> }"""
    with pytest.raises(InputError, match="stop 'h' is returned by a nested graph"):
        gradient(parse(text), "x", adjoint="input", stop="h")


def test_a_loop_that_reads_it_and_a_branch_that_gives_it() -> None:
    loop = """g (float[3] x, int64 n) => (float[3] y) <bool go = {1}> { h = Exp (x)
      y = Loop (n, go, x) <body: graph = b (int64 i, bool c, float[3] s) => (bool c, float[3] s2) {
        s1 = Mul (s, h) s2 = Add (s1, x) }> }"""
    given = """g (float[3] x, bool c) => (float[3] y) {
      h = If (c) <then_branch = a () => (float[3] p) { p = Exp (x) },
                  else_branch = b () => (float[3] q) { q = Sin (x) }>
      y = Mul (h, x) }"""
    assert check_gradient(parse(loop), ["x", "h"], stop="h", inputs={"n": np.array(3)}).ok
    assert check_gradient(parse(given), ["x", "h"], stop="h").ok


@pytest.mark.parametrize("stop", ["a", "c", ["a", "c"]])
def test_before_and_behind_a_call(stop: Any) -> None:
    """The call is opened, and another value takes the place of its result."""
    model = parse("g (float[2] x) => (float[2] y) { a = Exp (x) c = Sin (a) y = Mul (c, a) }")
    nodes = [helper.make_node("Exp", ["p"], ["r"]), helper.make_node("Mul", ["r", "p"], ["q"])]
    opsets = [helper.make_opsetid("", 20)]
    model.functions.append(helper.make_function("f", "F", ["p"], ["q"], nodes, opsets))
    model.opset_import.add(domain="f", version=1)
    model.graph.node[1].op_type, model.graph.node[1].domain = "F", "f"
    assert check_gradient(model, ["x", "a", "c"], stop=stop).ok


def test_an_opset_that_is_raised() -> None:
    text = "g (float[3] x) => (float[3] y) { h = Exp (x) k = Clip <min=-1.0,max=2.0> (h) y = Mul (k, h) }"
    report = check_gradient(parse(text, opset=9), ["x", "h"], stop=["k", "h"])
    assert report.ok and report.values[0].unreachable


def test_marks_that_stand_in_the_file() -> None:
    path = MODELS_DIR / "training" / "mlp.onnx"
    reference = stored_arrays(path.with_suffix(".npz"))
    feeds = {k.removeprefix("in:"): reference[k] for k in reference if k.startswith("in:")}
    marked = mark_checkpoints(onnx.load(path), "params", "loss")
    for stop in ("relu", "linear_1", "val_1"):
        plain, recomputed = (
            run(gradient(m, "params", "loss", stop=stop), feeds) for m in (path, marked)
        )
        assert plain.keys() == recomputed.keys()
        for name in plain:
            np.testing.assert_allclose(recomputed[name], plain[name], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("stop", ["d", "e", "h"])
def test_beside_straight_through(stop: str) -> None:
    """y = d e with d = h rounded, e = exp(h), h = x w; straight through, d is h."""
    text = """g (float[2] x) => (float[2] y) <float s = {0.1}, int8 z = {0}, float[2] w = {0.5, 0.2}> {
      h = Mul (x, w) q = QuantizeLinear (h, s, z) d = DequantizeLinear (q, s, z) e = Exp (h) y = Mul (d, e) }"""
    graph = gradient(parse(text), ["h", "x"], adjoint="input", ste=True, stop=stop)
    assert {node.domain for node in graph.graph.node} == {""}
    ones, h = np.ones(2, np.float32), np.array([0.5, 0.2])
    found = run(graph, {"x": ones, "y_grad": ones})
    through = {"d": h * np.exp(h), "e": np.exp(h), "h": (1 + h) * np.exp(h)}[stop]
    np.testing.assert_allclose(found["h_grad"], through, rtol=1e-5)
    np.testing.assert_allclose(found["x_grad"], 0 * h if stop == "h" else through * h, rtol=1e-5)


def test_a_sequence() -> None:
    text = """g (float[3] x) => (float[3] y) { e = Exp (x) s = SequenceConstruct (x, e) z = Constant <value = int64 {0}> ()
      f = SequenceAt (s, z) y = Mul (f, e) }"""
    assert check_gradient(parse(text), "x", stop="s").ok
    assert not check_gradient(parse(text), ["x", "s"], stop="e", allow_empty=["x"]).values[0].zero


@pytest.mark.parametrize(
    ("stop", "message"),
    [
        ("q", "stop 'q' is not a value of the model"),
        ("q*", "stop 'q\\*' matches no computed floating-point value"),
        ("x", "stop 'x' is an input or weight.*leave it out of wrt \\(!x\\)"),
        ("w", "stop 'w' is an input or weight"),
        ("i", "stop 'i' is i64\\[1\\]: nothing flows"),
        ("h,q", "stop 'q' is not a value"),
    ],
)
def test_bad_stops(stop: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        gradient(parse(TEXT), adjoint="input", stop=stop)


def test_frozen_embeddings_of_a_real_model() -> None:
    """Everything before the first layer is frozen in the step, and no update reads a gradient of it."""
    path = MODELS_DIR / "training" / "bert.onnx"
    reference = stored_arrays(path.with_suffix(".npz"))
    program = load(path)
    embedded = next(b.out.name for b in program.main.bindings if b.op == "LayerNormalization")
    step = training_step(path, "loss", stop=embedded)
    assert len(step.initial) < 3 * 73 and not any("embeddings" in name for name in step.initial)
    graph = gradient(path, "params", "loss", stop=embedded)
    feeds = {k.removeprefix("in:"): reference[k] for k in reference if k.startswith("in:")}
    found = run(graph, feeds)
    worst = max(float(np.abs(reference[k]).max()) for k in reference if k.startswith("grad:"))
    weights = [name.removesuffix("_grad") for name in found if name.endswith("_grad")]
    assert len(weights) == 68
    for name in weights:  # behind the stop the gradients are those of the whole model
        assert np.abs(found[f"{name}_grad"] - reference[f"grad:{name}"]).max() <= 5e-6 * worst
