"""Steps of a graph: scopes, the budget of time between them, and what jitter moves."""

from __future__ import annotations

import numpy as np
import pytest

from onnxgrad.verify.reference import evaluate
from onnxgrad.verify.reference.evaluate import Reference, Unsupported, reference
from onnxgrad.verify.reference.kernels import CONTRACTIONS, DEPLOYED, ROUNDED
from tests.helpers import parse


def test_captured_values_overloads_and_optional_inputs() -> None:
    text = """<ir_version: 10, opset_import: ["": 20, "f": 1]>
        g (float[2] x, bool c) => (float[2] y) <float[2] w = {3, 4}> {
          p = f.scale <k = 2.0> (x)
          y = If (c) <then_branch = t () => (float[2] z) { z = Mul(p, w) },
                      else_branch = e () => (float[2] z) { n = Neg(p) z = Add(n, w) }>
        }
        <domain: "f", opset_import: ["": 20]> scale <k: float = 5.0> (a, b) => (r) {
          v = Constant <value_float: float = @k> () r = Mul(a, v) }"""
    model = parse(text)
    x = np.array([1.0, 10.0], np.float32)
    assert reference(model, {"x": x, "c": np.array(True)})["y"].tolist() == [6, 80]
    assert reference(model, {"x": x, "c": np.array(False)})["y"].tolist() == [1, -16]
    del model.graph.node[0].attribute[:]
    assert reference(model, {"x": x, "c": np.array(True)})["y"].tolist() == [15, 200]


def test_time_budget() -> None:
    text = """g (int64 n, float[99,99] x) => (float[99,99] y) {
      y = Loop(n, , x) <body = b (int64 i, bool c, float[99,99] v) => (bool d, float[99,99] w) {
        d = Identity(c) w = MatMul(v, v) }> }"""
    with pytest.raises(Unsupported, match="budget"):
        Reference(parse(text)).run(
            {"n": np.array(10**9), "x": np.zeros((99, 99), np.float32)}, seconds=0.2
        )


def test_jitter_moves_sums_in_their_last_bits_only() -> None:
    model = parse(
        "g (float[9,9] x) => (float[9,9] y, float[9,9] z) { y = MatMul(x, x) z = Neg(x) }"
    )
    x = {"x": np.random.default_rng(0).standard_normal((9, 9)).astype(np.float32)}
    plain, shaken = reference(model, x), Reference(model).run(x, jitter=1e-12)
    moved = np.abs(plain["y"] - shaken["y"]).max()
    assert 0 < moved < 1e-10
    assert np.array_equal(plain["z"], shaken["z"])


def test_runs_that_differ_in_one_input_compute_what_is_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same bits as a whole run, of the outputs wanted alone; anew under another mark."""
    text = """g (float[3] x, float[3] d, bool c) => (float[3] y, float[3] h, float[3] dead) <float[3] w = {1, 2, 3}> {
      h = Tanh (x) m = Add (w, d) dead = Exp (x)
      y = If (c) <then_branch = t () => (float[3] z) { z = Mul (h, m) }, else_branch = e () => (float[3] z) { z = Neg (m) }> }"""
    model, x = parse(text), np.array([0.5, -1, 2], np.float32)
    compiled = Reference(model)
    early, late = compiled.compiled.split(["d"], ["y"])
    assert [s.call.op_type for s in early.steps] == ["Tanh"]
    assert [s.call.op_type for s in late.steps] == ["Add", "If"]
    for mark, shift in enumerate((0.0, 1.0, 2.0)):
        still = {"x": x + np.float32(shift), "d": np.zeros(3), "c": np.array(True)}
        if mark:  # without it, what is before is computed with the first
            monkeypatch.setattr(evaluate, "_MOST_KEPT", 10**6 if mark == 1 else 30)
            base = compiled.run(still, outputs=["h"], moved=(mark, ""))
            assert np.array_equal(base["h"], reference(model, still)["h"])
        for d in (0.0, 1e-5, -1e-5):
            feeds = {"x": x + np.float32(shift), "d": np.full(3, d), "c": np.array(True)}
            if mark == 1:  # what the run before kept is not computed again
                assert compiled._behind((mark, "d"), ("y",)).kept is not None
            found = compiled.run(feeds, outputs=["y"], moved=(mark, "d"))
            assert list(found) == ["y"] and np.array_equal(found["y"], reference(model, feeds)["y"])


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("swapped", [False, True])
def test_a_step_is_late_if_it_follows_the_input_that_moves(count: int, swapped: bool) -> None:
    """However many steps lie between, and whichever of two branches they are on."""
    names = ("d", "x") if swapped else ("x", "d")
    body = "".join(f"a{i + 1} = Tanh (a{i}) b{i + 1} = Exp (b{i}) " for i in range(count))
    model = parse(
        f"g (float[3] x, float[3] d) => (float[3] y) {{ a0 = Neg ({names[0]}) b0 = Abs ({names[1]}) {body}"
        f" y = Add (a{count}, b{count}) }}"
    )
    early, late = Reference(model).compiled.split(["d"], ["y"])
    branch = ["Abs", *["Exp"] * count], ["Neg", *["Tanh"] * count]
    assert [s.call.op_type for s in early.steps] == branch[not swapped]
    assert [s.call.op_type for s in late.steps] == [*branch[swapped], "Add"]


def test_rounding_everywhere_moves_the_terms_of_sums_and_onnxruntimes_tanh_by_four_units() -> None:
    """What cancels was rounded too: a sum of nothing is not exact."""
    model = parse(
        "g (float[2] x) => (float s, float[2] t) { s = ReduceSum <keepdims = 0> (x) t = Tanh (x) }"
    )
    compiled, x = Reference(model), {"x": np.array([40, -40], np.float32)}
    summed, rounded, deployed = (
        compiled.run(x, jitter=1e-9, jittered=kind) for kind in (CONTRACTIONS, ROUNDED, DEPLOYED)
    )
    assert summed["s"] == 0.0 and 0 < abs(rounded["s"]) < 8e-8
    far = [float(np.abs(np.abs(run["t"]) - 1).max()) for run in (rounded, deployed)]
    assert 0 < far[0] < 2e-9 < far[1] < 5e-9


def test_a_result_that_is_left_out_is_no_operand_that_is() -> None:
    model = parse("""g (float[2,3] x, float[3] w) => (float[2,3] y, float[2,3] z) {
        y, , t = LayerNormalization (x, w)  z = Clip (x, , )  }""")
    feeds = {"x": np.arange(6.0).reshape(2, 3), "w": np.ones(3)}
    assert (reference(model, feeds)["z"] == feeds["x"]).all()
    shown = parse("""g (float[2,3] x, float[3] w) => (float[2,1] t, float[2,3] z) {
        y, , t = LayerNormalization (x, w)  u, , = LayerNormalization (x, w)  z = Clip (x, , )  }""")
    assert (reference(shown, feeds)["z"] == feeds["x"]).all()
