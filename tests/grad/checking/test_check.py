"""onnxgrad/grad/checking/check.py: right gradients pass, wrong ones are named, kinks are not judged."""

import json
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxgrad import check_gradient, op, temporary_rules
from onnxgrad.errors import InputError
from onnxgrad.grad import vjp
from onnxgrad.grad.checking.check import branches_not_taken
from onnxgrad.grad.checking.looks import Checked
from onnxgrad.ir.storage import shared_weights
from tests.grad.numeric import normal
from tests.helpers import parse

TEXT = """<ir_version: 10, opset_import: ["" : 18]> m (float[N,3] x) => (float[N,4] y, float s) {
  h = MatMul (x, w) t = Tanh (h) y = Mul (t, t) s = ReduceMean <keepdims = 0> (y) }"""


def model() -> onnx.ModelProto:
    found = onnx.parser.parse_model(TEXT)
    found.graph.initializer.append(numpy_helper.from_array(normal(3, 4), "w"))
    return found


@pytest.fixture
def wrong_tanh() -> None:
    vjp("Tanh", lambda g, y, x: g * (1.01 - y * y), replace=True)


@pytest.mark.parametrize("wrt", [None, "params", ["h", "w", "s"]])
def test_a_right_gradient_passes(wrt: object) -> None:
    report = check_gradient(model(), wrt, "s")
    assert report.ok, str(report)
    assert report.worst is not None
    assert report.worst.error < 1e-5


def test_targets_that_are_no_scalars_get_a_random_adjoint() -> None:
    assert check_gradient(model(), ["x", "w"], "y").ok
    assert check_gradient(model(), ["x"], ["y", "t"]).ok


def test_a_wrong_rule_fails_and_the_worst_value_is_named(wrong_tanh: None) -> None:
    report = check_gradient(model(), ["y", "w"], "s")
    assert not report.ok
    assert report.worst is not None
    assert report.worst.name == "w"
    assert "DIFFERS" in str(report)
    assert report.to_dict()["values"][0]["error"] < 1e-5  # that of y does not pass through Tanh


def test_a_kink_is_not_judged() -> None:
    text = """<ir_version: 10, opset_import: ["" : 18]> m (float[2] x) => (float s) <float[2] z = {0, 0}> {
      h = Mul (x, z) a = Abs (h) s = ReduceSum <keepdims = 0> (a) }"""
    report = check_gradient(onnx.parser.parse_model(text), ["h"])
    assert not report.values[0].judged or report.values[0].error == 0


def test_errors_are_those_of_gradient() -> None:
    with pytest.raises(InputError, match="wrt 'q' is not a value"):
        check_gradient(model(), "q", "s")


def graph(body: str, inputs: str = "float[4] x", extra: str = "") -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 18]> m ({inputs}) => (float s) {extra} {{ {body} }}'
    )


DEAD = "a = Abs (x) z = Neg (a) r = Relu (z) s = ReduceSum <keepdims = 0> (r)"


def test_zero_against_zero_proves_nothing() -> None:
    """A dead Relu hides a wrong rule: every gradient and every difference is 0."""
    report = check_gradient(graph(DEAD))
    assert not report and report.verdict == "not proved"
    assert "every gradient and every difference is 0 (x)" in str(
        report
    ) and "allow_empty=['x']" in str(report)
    assert report.to_dict()["values"][0]["zero"] is True
    assert check_gradient(graph(DEAD), allow_empty=["x"])
    with pytest.raises(InputError, match="allow_empty: q"):
        check_gradient(graph(DEAD), allow_empty=["q"])


def test_one_value_that_is_not_zero_is_enough_and_the_others_are_listed() -> None:
    report = check_gradient(
        graph(DEAD.replace("(r)", "(t)") + " t = Add (r, w)", "float[4] x, float[4] w")
    )
    assert report.ok and "0 = 0 for x" in str(report)


def test_values_without_a_path_to_the_target_are_proved_zero() -> None:
    text = "i = Cast <to = 7> (w) k = Cast <to = 1> (i) f = Floor (v) t = Add (x, k) u = Add (t, f) s = ReduceSum <keepdims = 0> (u)"
    report = check_gradient(graph(text, "float[4] x, float[4] w, float[4] v"))
    assert report.ok and "no path to the target from w, v" in str(report)
    with pytest.warns(UserWarning, match="no requested value reaches"):
        report = check_gradient(graph(text, "float[4] x, float[4] w, float[4] v"), ["w", "v"])
    assert report.ok and [v.unreachable for v in report.values] == [True, True]
    # what a branch reads is reached
    text = """s = If (c) <then_branch = t () => (float p) { p = ReduceSum <keepdims = 0> (x) },
                          else_branch = e () => (float q) { n = Neg (x) q = ReduceSum <keepdims = 0> (n) }>"""
    report = check_gradient(graph(text, "float[4] x, bool c"), ["x"])
    assert report.ok and not report.values[0].unreachable


def test_a_gradient_of_nan_is_called_nan() -> None:
    hidden = "a = Abs (x) n = Neg (a) l = Log (n) s = ReduceSum <keepdims = 0> (l)"
    report = check_gradient(graph(hidden.replace("Abs (x)", "Exp (x)")))
    assert (
        report.verdict == "not proved"
        and "differences are not finite" in str(report)
        and "kink" not in str(report)
    )
    vjp("Tanh", lambda g, y, x: g * (y - y) / (y - y), replace=True)
    report = check_gradient(graph("t = Tanh (x) s = ReduceSum <keepdims = 0> (t)"))
    assert report.verdict == "differs" and "the gradient is all NaN" in str(report)
    assert json.dumps(report.to_dict(), allow_nan=False)


BRANCHES = """<ir_version: 8, opset_import: ["" : 18]>
g (float[4,5] x, bool c, bool d) => (float s) {
  y = If <then_branch = t () => (float[4,5] u) { u = Tanh (x) }, else_branch = e () => (float[4,5] v) {
    v = If (d) <then_branch = f () => (float[4,5] p) { p = Sigmoid (x) },
                else_branch = h () => (float[4,5] q) { q = Neg (x) }> }> (c)
  z = Mul (y, y) s = ReduceSum <keepdims = 0> (z) }"""
X = np.linspace(-1, 1, 20, dtype=np.float32).reshape(4, 5)


@pytest.mark.parametrize(
    ("c", "d", "missing"),
    [(True, True, {"else not taken: If → 'y'"}), (False, True, {"then not taken: If → 'y'", "else not taken: If → 'v'"}), (False, False, {"then not taken: If → 'y'", "then not taken: If → 'v'"})],
)  # fmt: skip
def test_branches_that_did_not_run(c: bool, d: bool, missing: set[str]) -> None:
    """An inner one is named where the branch around it ran."""
    model = onnx.parser.parse_model(BRANCHES)
    feeds = {"x": X, "c": np.array(c), "d": np.array(d)}
    assert set(branches_not_taken(model, feeds)) == missing


def test_a_branch_that_one_turn_of_a_loop_takes_ran() -> None:
    text = """<ir_version: 8, opset_import: ["" : 18]> g (float[3] x) => (float[3] y)
      <int64 n = {3}, bool yes = {1}, int64 one = {1}> { y = Loop (n, yes, x) <body = b (int64 i, bool k, float[3] h)
        => (bool ko, float[3] ho) { ko = Identity (k) first = Less (i, one)
          ho = If (first) <then_branch = t () => (float[3] u) { u = Tanh (h) },
                           else_branch = e () => (float[3] v) { v = Sin (h) }> }> }"""
    assert branches_not_taken(onnx.parser.parse_model(text), {"x": X[0, :3]}) == ()


def test_a_wrong_rule_in_a_branch_that_did_not_run_is_announced() -> None:
    def wrong(g: Any, y: Any, x: Any) -> Any:
        return g

    vjp("Sigmoid", wrong, replace=True)
    report = check_gradient(onnx.parser.parse_model(BRANCHES), ["x"], inputs={"c": np.array(True)})
    assert report.untaken == ("else not taken: If → 'y'",) and "else not taken: If → 'y'" in str(
        report
    )
    assert report.to_dict()["untaken"] == ["else not taken: If → 'y'"]
    given = {"c": np.array(False), "d": np.array(True)}
    assert not check_gradient(onnx.parser.parse_model(BRANCHES), ["x"], inputs=given).ok


TWO_SCALES = """g (float[16] x, float[16] u) => (float s) <float k = {SMALL}> { a = Mul (x, x) t = Tanh (u)
  e = Mul (t, k) q = Add (a, e) s = ReduceSum <keepdims = 0> (q) }"""
BESIDE = """g (float[8,16] x) => (float s, float[8,16] o) { t = Tanh (x) c = Mul (t, t)
  s = ReduceSum <keepdims = 0> (c) h = Cast <to = TYPE> (x) o = Cast <to = 1> (h) }"""
HALF = "g (float16[8,16] x) => (float16 s) { t = Tanh (x) c = Mul (t, t) s = ReduceSum <keepdims = 0> (c) }"
INJECTED = [
    *((TWO_SCALES.replace("SMALL", k), f) for k in ("1e-7", "1e-8") for f in (-1.0, 0.0)),
    *((BESIDE.replace("TYPE", t), f) for t in ("10", "16") for f in (-1.0, 0.0, 1.04)),
    *((HALF, f) for f in (-1.0, 0.0, 1.1, 1.5)),
]


@pytest.mark.parametrize(("text", "factor"), INJECTED)
def test_a_wrong_rule_is_found_with_every_seed(text: str, factor: float) -> None:
    """By the value's own scale, by the types on its own paths, and along the gradient itself."""
    model = parse(text)
    assert check_gradient(model, target="s").ok
    vjp("Tanh", lambda g, y, x: g * (1.0 - y * y) * factor, replace=True)
    wrong = [check_gradient(model, target="s", seed=seed).verdict for seed in (1, 5, 11)]
    assert wrong == ["differs"] * 3


def test_a_gradient_that_rounding_hides_is_listed() -> None:
    """A bias before a Softmax moves nothing: its gradient is rounding, in float32 and in float64."""
    text = """g (float[4,6] x, float[4,1] b) => (float s) { h = Add (x, b) p = Softmax (h) q = Mul (p, x)
      s = ReduceSum <keepdims = 0> (q) }"""
    report = check_gradient(parse(text))
    assert report.ok and "too small to judge: b" in str(report)
    alone = check_gradient(parse(text), "b")
    assert alone.verdict == "not proved" and "too small to judge" in alone.unproved


CANCELS = """g (float[8,16] x) => (float s) { t = Tanh (x) u = Tanh (x) p = Mul (t, a) q = Mul (u, b) d = Sub (p, q)
  s = ReduceSum <keepdims = 0> (d) }"""


@pytest.mark.slow
@pytest.mark.parametrize("part", [1e-4, 1e-6])
def test_a_small_wrong_factor_is_found_where_gradients_cancel(part: float) -> None:
    """There float32 loses most digits, and float64 none: a factor of 1.001 agreed."""
    model, a = parse(CANCELS), normal(8, 16)
    for name, value in (("a", a), ("b", a * (1 + part * normal(8, 16)))):
        model.graph.initializer.append(numpy_helper.from_array(value.astype(np.float32), name))
    assert check_gradient(model, ["x"], "s").verdict != "differs"
    vjp("Tanh", lambda g, y, x: g * (1.0 - y * y) * 1.001, replace=True)
    assert [check_gradient(model, ["x"], "s", seed=s).verdict for s in (1, 2)] == ["differs"] * 2


# a right rule but for a part of the range: the model, the operator, the wrong formula
BEYOND = {
    "above 6": ("u = Sin (x)", "Sin", lambda g, y, x: op.Where(op.Greater(x, 6.0), g * 0.0, g * op.Cos(x))),
    "below -3": ("u = Sin (x)", "Sin", lambda g, y, x: op.Where(op.Less(x, -3.0), g * 0.0, g * op.Cos(x))),
    "above an upper bound": ("u = Clip (x, low, six)", "Clip", lambda g, y, x, low, high: op.Where(op.Greater(x, low), g, 0.0)),
    "far from 0": ("u = Softsign (x)", "Softsign", lambda g, y, x: g / op.Max(1.0, (op.Abs(x) + 1.0) * op.Min(op.Abs(x) + 1.0, 5.0))),
}  # fmt: skip


@pytest.mark.parametrize("name", BEYOND)
def test_a_rule_that_is_wrong_beyond_usual_values_is_found(name: str) -> None:
    nodes, operator, formula = BEYOND[name]
    model = parse(
        f"g (float[N,8] x) => (float y) <float low = {{0}}, float six = {{6}}> {{ {nodes} y = ReduceSum <keepdims = 0> (u) }}"
    )
    assert check_gradient(model, "x").ok
    with temporary_rules():
        vjp(operator, formula, replace=True)
        assert not check_gradient(model, "x").ok


def test_a_rule_that_is_wrong_for_dark_pixels_is_found() -> None:
    """Images are drawn from [0, 1], where Abs is the identity."""
    model = parse(
        "g (float[1,3,4,4] x) => (float y) { u = Abs (x) y = ReduceSum <keepdims = 0> (u) }"
    )
    with temporary_rules():
        vjp("Abs", lambda g, y, x: g, replace=True)
        assert not check_gradient(model, "x").ok


def test_a_quantised_model_is_checked_as_it_is_written() -> None:
    """onnxruntime's optimisations round the bias c to the product of two scales: a fiftieth of the
    gradient by v, which was called wrong.
    """
    quantised = parse(
        """g (float[N,4] x) => (float[N,3] y)
        <float xs = {0.05}, float ws = {0.1}, float hs = {0.05}, int8 z = {0}> {
        xq = QuantizeLinear (x, xs, z)  xd = DequantizeLinear (xq, xs, z)
        w = DequantizeLinear (wq, ws, z)  p = MatMul (xd, w)  a = Add (p, b)  h = Relu (a)
        hq = QuantizeLinear (h, hs, z)  hd = DequantizeLinear (hq, hs, z)
        v = DequantizeLinear (vq, ws, z)  r = MatMul (hd, v)  y = Add (r, c) }"""
    )
    rng = np.random.default_rng(0)
    for name, shape in (("wq", (4, 16)), ("vq", (16, 3))):
        values = np.rint(5 * rng.standard_normal(shape)).astype(np.int8)
        quantised.graph.initializer.append(numpy_helper.from_array(values, name))
    for name, size in (("b", 16), ("c", 3)):
        bias = rng.standard_normal(size).astype(np.float32)
        quantised.graph.initializer.append(numpy_helper.from_array(bias, name))
    report = check_gradient(quantised, ["v"], adjoint="input")
    assert report.ok, str(report)


LAYERS = """<ir_version: 10, opset_import: ["" : 18]> m (float[4,N] x, int64[5] i) => (float s) {
  a = MatMul (x, v) b = Tanh (a) c = Gemm <transB = 1> (b, w) r = Gather (table, i)
  d = MatMul (c, u) e = Sum (d, z) q = ReduceSum <keepdims = 0> (r) p = Mul (e, q)
  t = Mul (p, p) s = ReduceMean <keepdims = 0> (t) }"""


def layers(size: int = 3) -> onnx.ModelProto:
    found = onnx.parser.parse_model(LAYERS.replace("N", str(size)))
    shapes = {"v": (size, size), "w": (size, size), "table": (size, 4), "u": (size, 5), "z": (4, 5)}
    for name, shape in shapes.items():
        array = normal(*shape) * shape[-1] ** -0.5
        found.graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), name))
    return found


@pytest.fixture
def on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are held as those of models of gigabytes are."""
    monkeypatch.setattr(shared_weights, "LARGE", 1)
    monkeypatch.setattr(shared_weights, "LARGE_FILE", 1)


@pytest.mark.parametrize("size", [256, 600])
def test_weights_in_files_are_judged_as_those_in_memory(
    monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Of 600 x 600 numbers, gradients and directions are computed by blocks as well."""
    inside = check_gradient(layers(size), "params", "s")
    monkeypatch.setattr(shared_weights, "LARGE_FILE", 1)
    outside = check_gradient(layers(size), "params", "s")
    assert [v.name for v in outside.values] == [v.name for v in inside.values]
    assert outside.ok and inside.ok and len(inside.values) == 5
    for a, b in zip(inside.values, outside.values):
        assert a.judged and b.judged and a.why == b.why
        assert a.gradient == pytest.approx(b.gradient, rel=1e-9)
        assert a.difference == pytest.approx(b.difference, rel=1e-6)


def test_weights_in_files_move_in_groups(on_disk: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The further looks move a few of them at once; every value takes part."""
    moved: list[list[str]] = []
    along = Checked.along

    def noted(check: Any, *arguments: Any, **options: Any) -> Any:
        moved.append([*(options.get("names") or ())])
        return along(check, *arguments, **options)

    monkeypatch.setattr(Checked, "along", noted)
    assert check_gradient(layers(), "params", "s").ok
    groups = [names for names in moved if names]
    assert {"v", "w", "table", "u", "z"} == {name for names in groups for name in names}
    assert max(map(len, groups)) < 5


@pytest.mark.parametrize("size", [3, 600])
def test_a_wrong_rule_of_weights_in_files(on_disk: None, wrong_tanh: None, size: int) -> None:
    report = check_gradient(layers(size), "params", "s")
    assert not report.ok
    off = {v.name for v in report.values if v.judged and v.error > report.tolerance}
    assert off == {"v"}
