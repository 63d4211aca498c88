"""onnxgrad/grad/branch_regions.py: what a selection rejects passes 0, at every order, through operators of every kind."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from onnxgrad import gradient, hessian, hessian_vector_product, jvp, vmap
from onnxgrad.verify.running.session import run
from tests.helpers import parse

NAN = np.nan
ZERO = "z = Constant <value_float = 0.0> () one = Constant <value_float = 1.0> () last = Constant <value_ints = [1]> () "
LABELS = "g (float[2,2] x, float[2,1] t, float[2,2] W) => (float y) {" + ZERO + "c = IsNaN (t) "
NORM = (
    "g (float[2,3] x) => (float y) {"
    + ZERO
    + "q = Mul (x, x) n0 = ReduceSum (q, last) n = Sqrt (n0) d = Div (x, n) c = Equal (n0, z) "
)
ROW = "g (float[3] x) => (float y) {" + ZERO
SUM = " y = ReduceSum <keepdims = 0> (r) }"
X, T, W = [[1, 2], [3, 4]], [[0], [NAN]], [[0.1, 0.2], [0.3, -0.4]]
ROWS = [[0, 0, 0], [1, 2, 3]]

# a region, the values that enter it, the row or element of x that no selected result reads
REGIONS: dict[str, tuple[str, dict[str, Any], Any]] = {
    "square of a missing label": (LABELS + "d = Sub (x, t) s = Mul (d, d) r = Where (c, z, s)", {"x": X, "t": T, "W": W}, 1),
    "its absolute value": (LABELS + "d = Sub (x, t) s = Abs (d) r = Where (c, z, s)", {"x": X, "t": T, "W": W}, 1),
    "a product with it": (LABELS + "s = Mul (x, t) r = Where (c, z, s)", {"x": X, "t": T, "W": W}, None),
    "a matrix product": (LABELS + "a = Add (x, t) h = MatMul (a, W) e = Tanh (h) r = Where (c, z, e)", {"x": X, "t": T, "W": W}, 1),
    "a Gemm": (LABELS + "a = Add (x, t) h = Gemm <transB = 1> (a, W) e = Tanh (h) r = Where (c, z, e)", {"x": X, "t": T, "W": W}, 1),
    "the other way": (LABELS + "k = Not (c) d = Sub (x, t) s = Mul (d, d) r = Where (k, s, z)", {"x": X, "t": T, "W": W}, 1),
    "two selections by one condition": (LABELS + "d = Sub (x, t) s = Mul (d, d) u = Where (c, z, s) e = Abs (d) v = Where (c, one, e) r = Mul (u, v)", {"x": X, "t": T, "W": W}, 1),
    "flat rows": (
        NORM + "m = Constant <value_ints = [-1]> () o = Constant <value_ints = [-1, 3]> () f = Reshape (x, m) l = Log (f) e = Mul (l, f) "
        "h = Reshape (e, o) w = Where (c, z, h) v = ReduceSum (w, last) r = Mul (v, v)", {"x": ROWS}, 0
    ),
    "a sum": (NORM + "f = ReduceSum (d, last) r = Where (c, z, f)", {"x": ROWS}, 0),
    "a Softmax": (NORM + "f = Softmax (d) r = Where (c, z, f)", {"x": ROWS}, 0),
    "a concatenation": (NORM + "f = Concat <axis = 1> (d, d) r = Where (c, z, f)", {"x": ROWS}, 0),
    "a transposition": (NORM + "f = Transpose <perm = [1, 0]> (d) k = Transpose <perm = [1, 0]> (c) r = Where (k, z, f)", {"x": ROWS}, 0),
    "a joined axis": (NORM + "s = Constant <value_ints = [-1]> () w = Constant <value_ints = [2, 3]> () f = Reshape (d, s) h = Reshape (f, w) r = Where (c, z, h)", {"x": ROWS}, 0),
    "two readers": (NORM + "e = Where (c, z, d) f = Add (d, d) r = Where (c, e, f)", {"x": ROWS}, 0),
    "Min of an overflow": (ROW + "e = Exp (x) s = Sub (e, one) r = Min (s, z)", {"x": [100, -1, -2]}, 0),
    "Clip of an overflow": (ROW + "e = Exp (x) n = Neg (one) s = Sub (e, one) r = Clip (s, n, z)", {"x": [100, -1, -2]}, 0),
    "Max of a logarithm": (ROW + "l = Log (x) s = Add (l, l) n = Neg (one) r = Max (s, n)", {"x": [0, 1, 2]}, 0),
    "a root between bounds": (ROW + "k = Constant <value_float = 0.4> () a = Max (x, z) b = Min (a, one) r = Pow (b, k)", {"x": [0, 0.25, 0.5]}, 0),
}  # fmt: skip


def _model(region: str) -> onnx.ModelProto:
    return parse('<ir_version: 10, opset_import: ["" : 20]> ' + region + SUM)


def _fed(model: onnx.ModelProto, values: dict[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    return {
        v.name: np.asarray(values[v.name], np.float32)
        if v.name in values
        else np.ones([d.dim_value for d in v.type.tensor_type.shape.dim], np.float32)
        for v in model.graph.input
    }


@pytest.mark.parametrize("name", REGIONS)
def test_what_is_rejected_passes_0(name: str) -> None:
    region, values, rejected = REGIONS[name]
    model, wrt = _model(region), ["x", "W"] if "W" in values else ["x"]
    safe, plain = (gradient(model, wrt, "y", safe=safe) for safe in (True, False))
    found, raw = run(safe, _fed(safe, values)), run(plain, _fed(plain, values))
    unguarded = name in ("two selections by one condition",)
    assert unguarded or not all(np.isfinite(raw[f"{w}_grad"]).all() for w in wrt), (
        "nothing to guard"
    )
    for w in wrt:
        assert np.isfinite(found[f"{w}_grad"]).all()
    if rejected is not None:
        assert not found["x_grad"][rejected].any()
    finite = np.isfinite(raw["x_grad"])
    np.testing.assert_allclose(found["x_grad"][finite], raw["x_grad"][finite], rtol=1e-5)


FLAT = """f0 = Constant <value_ints = [-1, 3]> () all = Constant <value_ints = [-1]> () a1 = Constant <value_ints = [1]> ()
a2 = Constant <value_ints = [2]> () a12 = Constant <value_ints = [1, 2]> () c = Greater (t, z) rows = ReduceMax <keepdims = 0> (t, a1) """
BACK = "sh = Shape (s) b = Reshape (l, sh) "
TURNED = (
    "s = Transpose <perm = [1, 0, 2]> (x) f = Reshape (s, f0) l = Log (f) "
    + BACK
    + "u = Transpose <perm = [1, 0, 2]> (b) "
)
# log x of some of [batch, time, 3], flattened to rows before or behind the logarithm; whether whole rows are selected
FLATTENED: dict[str, tuple[str, bool]] = {
    "a flat mask": ("l = Log (x) f = Reshape (l, f0) k0 = Reshape (c, all) k = Unsqueeze (k0, a1) r = Where (k, f, z)", False),
    "flat rows": ("s = Identity (x) f = Reshape (s, f0) l = Log (f) " + BACK + "k = Unsqueeze (c, a2) r = Where (k, b, z)", False),
    "flat elements": ("s = Identity (x) f = Reshape (s, all) l = Log (f) " + BACK + "k = Unsqueeze (c, a2) r = Where (k, b, z)", False),
    "time first": (TURNED + "k = Unsqueeze (c, a2) r = Where (k, u, z)", False),
    "a mask of time first": (
        "l = Log (x) s = Transpose <perm = [1, 0, 2]> (l) f = Reshape (s, f0) k0 = Transpose <perm = [1, 0]> (c) "
        "k1 = Reshape (k0, all) k = Unsqueeze (k1, a1) r = Where (k, f, z)", False,
    ),
    "samples": ("s = Identity (x) f = Reshape (s, f0) l = Log (f) " + BACK + "d = Greater (rows, z) k = Unsqueeze (d, a12) r = Where (k, b, z)", True),
    "samples, time first": (TURNED + "d = Greater (rows, z) k = Unsqueeze (d, a12) r = Where (k, u, z)", True),
}  # fmt: skip


@pytest.mark.parametrize("sizes", ["B,T", "2,4"])
@pytest.mark.parametrize("name", FLATTENED)
def test_a_condition_follows_axes_that_a_reshape_joins(name: str, sizes: str) -> None:
    """The sum of the selected log x, its gradient, and the gradient of that."""
    nodes, of_samples = FLATTENED[name]
    model = parse(
        f"g (float[{sizes},3] x, float[{sizes}] t) => (float y) {{{ZERO}{FLAT}{nodes}{SUM}"
    )
    t = np.float32([[1, 0, 1, 0], [0, 0, 0, 0]] if of_samples else [[1, 0, 0, 1], [0, 1, 1, 0]])
    chosen = (
        np.broadcast_to(t.max(axis=1, keepdims=True) if of_samples else t, t.shape)[..., None] > 0
    )
    x = np.where(chosen, np.arange(1, 25).reshape(2, 4, 3), 0).astype(np.float32)
    once = gradient(model, "x", "y")
    inverse = np.where(chosen, 1 / np.where(chosen, x, 1), 0)
    np.testing.assert_allclose(run(once, {"x": x, "t": t})["x_grad"], inverse, rtol=1e-6)
    twice = gradient(once, "x", "x_grad", adjoint="input")
    found = run(twice, {"x": x, "t": t, "x_grad_grad": np.ones_like(x)})["x_grad_2"]
    np.testing.assert_allclose(found, -(inverse**2), rtol=1e-6)


def test_the_gradient_of_the_weight_behind_a_missing_row() -> None:
    """d/dW sum over the rows with a label of tanh(x W): the others add nothing, though x is NaN there."""
    region, values, _ = REGIONS["a matrix product"]
    graph = gradient(_model(region), "W", "y")
    found = run(graph, _fed(graph, values))["W_grad"]
    x, w = np.float64(X)[:1], np.float64(W)
    np.testing.assert_allclose(found, x.T @ (1 - np.tanh(x @ w) ** 2), rtol=1e-5)


@pytest.mark.covering
@pytest.mark.filterwarnings("ignore:no requested value reaches")
@pytest.mark.parametrize("name", REGIONS)
@pytest.mark.parametrize("how", ["second", "third", "jvp", "hvp", "hessian", "checkpoint", "vmap"])
def test_every_derivative_is_finite(name: str, how: str) -> None:
    region, values, _ = REGIONS[name]
    model = _model(region)
    values = dict(values)
    if how in ("second", "third"):
        graph, target = gradient(model, "x", "y"), "x_grad"
        for _ in range({"second": 1, "third": 2}[how]):
            graph = gradient(graph, "x", target, adjoint="input")
            target = next(
                v.name for v in reversed(graph.graph.output) if v.name.startswith("x_grad")
            )
    elif how == "vmap":
        graph = vmap(gradient(model, "x", "y"), "x", verify=False)
        values["x"] = np.stack([np.float32(values["x"])] * 2)
    else:
        form = {"jvp": jvp, "hvp": hessian_vector_product, "hessian": hessian}.get(how)
        graph = form(model, "x", "y") if form else gradient(model, "x", "y", checkpoint="nothing")
    for result, array in run(graph, _fed(graph, values)).items():
        assert np.isfinite(array).all(), result


def test_second_derivatives_of_a_checkpointed_gradient() -> None:
    """The recomputed selection reads another value of the same condition."""
    model = parse(
        ROW + "c = Greater (x, z) p = Sqrt (x) q = Sin (x) w = Where (c, p, q) r = Mul (w, w)" + SUM
    )
    once = gradient(model, "x", "y", checkpoint="nothing")
    twice = gradient(once, "x", "x_grad", adjoint="input")
    found = run(twice, {"x": np.float32([1, -1, 0]), "x_grad_grad": np.ones(3, np.float32)})
    expected = [0, 2 * np.cos(-2), 2]  # of x and sin(x)^2
    np.testing.assert_allclose(found["x_grad_2"], expected, atol=1e-6)


def test_gradient_of_a_mapped_if() -> None:
    """A mapped If becomes a Where over both branches: the branch that a row does not take passes nothing."""
    model = parse("""<ir_version: 10, opset_import: ["" : 20]>
    g (float[3] x) => (float y) {
      z = Constant <value_float = 0.0> () q = Mul (x, x) s = ReduceSum <keepdims = 0> (q) c = Equal (s, z)
      y = If (c) <then_branch = a () => (float u) { u = Constant <value_float = 0.0> () },
                  else_branch = b () => (float v) { n = Sqrt (s) d = Div (x, n) v = ReduceSum <keepdims = 0> (d) }> }""")
    x = np.float32(ROWS)
    one = gradient(vmap(model, ["x"], verify=False), "x", "y", adjoint="input")
    other = vmap(gradient(model, "x", "y"), ["x"], verify=False)
    found = run(one, {"x": x, "y_grad": np.ones(2, np.float32)})["x_grad"]
    np.testing.assert_allclose(found, run(other, {"x": x})["x_grad"], atol=1e-6)
    assert not found[0].any()


def test_an_element_that_feeds_both_sides_is_not_guarded() -> None:
    """The logarithm of the sum reaches a selected and a rejected element."""
    model = parse("""<ir_version: 10, opset_import: ["" : 20]>
    g (float[2] x, bool[2] c) => (float y) {
      z = Constant <value_float = 0.0> () s = ReduceSum <keepdims = 1> (x) l = Log (s) m = Add (l, x)
      r = Where (c, m, z) y = ReduceSum <keepdims = 0> (r) }""")
    graph = gradient(model, "x", "y")
    assert not any(n.op_type == "Where" and "l" in n.input for n in graph.graph.node)
    found = run(graph, {"x": np.float32([0, 0]), "c": np.array([True, False])})["x_grad"]
    assert np.isinf(found).all()


PICKS = {
    "Compress": "s = Compress <axis = 0> (d, k)",
    "Compress of all elements": "w = Unsqueeze (d, last) v = Unsqueeze (k, last) m = Constant <value_ints = [-1]> () f = Reshape (v, m) s = Compress (w, f)",
    "indices of a mask": "n = NonZero (k) p = Transpose (n) s = GatherND (d, p)",
    "positions of a mask": "n = NonZero (k) p = Squeeze (n) s = Gather (d, p)",
    "a mask of numbers": "m = Cast <to = 7> (k) n = NonZero (m) p = Transpose (n) s = GatherND (d, p)",
}


@pytest.mark.parametrize("name", PICKS)
def test_what_a_mask_does_not_pick_passes_0(name: str) -> None:
    """sum of (a / b)[b != 0], by a and b, and the gradient of that by b."""
    model = parse(
        '<ir_version: 10, opset_import: ["" : 20]> g (float[3] a, float[3] b) => (float y) {'
        + f"{ZERO} d = Div (a, b) e = Equal (b, z) k = Not (e) {PICKS[name]} "
        + "q = Mul (s, s) y = ReduceSum <keepdims = 0> (q) }"
    )
    graph = gradient(model, ["a", "b"], "y")
    feeds = {"a": np.float32([0, 3, 2]), "b": np.float32([0, 2, 4])}
    found = run(graph, feeds)
    np.testing.assert_allclose(found["a_grad"], [0, 1.5, 0.25], rtol=1e-6)
    np.testing.assert_allclose(found["b_grad"], [0, -2.25, -0.125], rtol=1e-6)
    twice = gradient(graph, "b", "b_grad", adjoint="input")
    found = run(twice, {**feeds, "b_grad_grad": np.ones(3, np.float32)})
    np.testing.assert_allclose(found["b_grad_2"], [0, 27 / 8, 6 * 4 / 4**4], rtol=1e-6)


@pytest.mark.parametrize("nodes", ["s = Gather (d, i)", "s = Slice (d, one_, two_)"])
def test_positions_that_no_mask_decides_guard_nothing(nodes: str) -> None:
    """As `help gradients` says: the entry in front is not read, and its gradient is NaN."""
    model = parse(
        '<ir_version: 10, opset_import: ["" : 20]> g (float[3] a, float[3] b, int64[2] i) => (float y) {'
        + f"{ZERO} one_ = Constant <value_ints = [1]> () two_ = Constant <value_ints = [3]> () d = Div (a, b) {nodes} "
        + "y = ReduceSum <keepdims = 0> (s) }"
    )
    feeds = {"a": np.float32([0, 3, 2]), "b": np.float32([0, 2, 4]), "i": np.array([1, 2])}
    graph = gradient(model, "b", "y")
    found = run(graph, {v.name: feeds[v.name] for v in graph.graph.input})["b_grad"]
    assert np.isnan(found[0]) and np.isfinite(found[1:]).all()
