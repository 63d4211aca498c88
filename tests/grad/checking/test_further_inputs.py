"""onnxgrad/grad/checking/further_inputs.py: rules that are wrong in a part of their range are refused, right ones agree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

from onnxgrad import check_gradient, op, temporary_rules
from onnxgrad.grad import vjp
from onnxgrad.grad.checking.further_inputs import FurtherInputs
from onnxgrad.grad.checking.looks import Look
from tests.helpers import parse

CONSTANTS = "float low = {0}, float six = {6}, float big = {1000000}, int64 at = {0}"
VECTOR = "g (float[N,8] x) => (float y) <%s> { %s y = ReduceSum <keepdims = 0> (u) }"
IMAGE = "g (float[N,3,8,8] x) => (float y) <%s> { %s y = ReduceSum <keepdims = 0> (u) }"


def model(nodes: str, text: str = VECTOR) -> onnx.ModelProto:
    return parse(text % (CONSTANTS, nodes))


def rows_after_the_first(x: Any) -> Any:
    """1 in the first row, 0 in all others."""
    return op.Cast(op.Less(op.CumSum(x * 0.0 + 1.0, np.array(0)), 1.5), to=1)


# name: the nodes, the operator, its wrong rule, and the model around the nodes if it is none of vectors
WRONG: dict[str, tuple[str, str, Callable[..., Any]] | tuple[str, str, Callable[..., Any], str]] = {
    "Tanh 1.001": ("u = Tanh (x)", "Tanh", lambda g, y, x: g * (1.001 - y * y)),
    "Tanh 1.0002": ("u = Tanh (x)", "Tanh", lambda g, y, x: g * 1.0002 * (1.0 - y * y)),
    "Sin 0 above 6": ("u = Sin (x)", "Sin", lambda g, y, x: op.Where(op.Greater(x, 6.0), g * 0.0, g * op.Cos(x))),
    "Sin 0 below -3": ("u = Sin (x)", "Sin", lambda g, y, x: op.Where(op.Less(x, -3.0), g * 0.0, g * op.Cos(x))),
    "Sin 0 above 40": ("u = Sin (x)", "Sin", lambda g, y, x: op.Where(op.Greater(x, 40.0), g * 0.0, g * op.Cos(x))),
    "Sin 0 above 1000": ("u = Sin (x)", "Sin", lambda g, y, x: op.Where(op.Greater(x, 1000.0), g * 0.0, g * op.Cos(x))),
    "Sin 0 between 5 and 5.5": ("u = Sin (x)", "Sin", lambda g, y, x: op.Where(op.Less(op.Abs(x - 5.25), 0.25), g * 0.0, g * op.Cos(x))),
    "Sin NaN above 5": ("u = Sin (x)", "Sin", lambda g, y, x: op.Where(op.Greater(x, 5.0), g / (g - g), g * op.Cos(x))),
    "Sin infinite below -6": ("u = Sin (x)", "Sin", lambda g, y, x: op.Where(op.Less(x, -6.0), 1.0 / (x - x), g * op.Cos(x))),
    "Sin 0 near 0": ("u = Sin (x)", "Sin", lambda g, y, x: op.Where(op.Less(op.Abs(x), 1e-3), g * 0.0, g * op.Cos(x))),
    "Sin 0 at negative rows": ("u = Sin (x)", "Sin", lambda g, y, x: g * op.Cos(x) * op.Where(op.Less(op.ReduceMax(x, [1], keepdims=1), -2.0), 0.0, 1.0)),
    "Abs of dark pixels": ("u = Abs (x)", "Abs", lambda g, y, x: g, IMAGE),
    "Relu from -1 on, images": ("u = Relu (x)", "Relu", lambda g, y, x: op.Where(op.Greater(x, -1.0), g, g * 0.0), IMAGE),
    "Relu passes all": ("u = Relu (x)", "Relu", lambda g, y, x: g),
    "Relu passes far below": ("u = Relu (x)", "Relu", lambda g, y, x: op.Where(op.Or(op.Greater(x, 0.0), op.Less(x, -25.0)), g, g * 0.0)),
    "Clip without its upper bound": ("u = Clip (x, low, six)", "Clip", lambda g, y, x, low, six: op.Where(op.Greater(x, low), g, g * 0.0)),
    "Clip without its lower bound": ("c = Sub (x, six) u = Clip (c, low, six)", "Clip", lambda g, y, x, low, six: op.Where(op.Less(x, six), g, g * 0.0)),
    "Erf with 1.128": ("u = Erf (x)", "Erf", lambda g, y, x: g * 1.128 * op.Exp(op.Neg(x * x))),
    "Erf with 1.12835": ("u = Erf (x)", "Erf", lambda g, y, x: g * 1.12835 * op.Exp(op.Neg(x * x))),
    "Softmax without its sum": ("s = Softmax (x) q = Mul (s, s) u = Mul (q, x)", "Softmax", lambda g, y, x, axis: g * y),
    "Sinh beside 1e6": ("b = Mul (x, big) s = Sinh (x) u = Add (b, s)", "Sinh", lambda g, y, x: g * 3.0),
    "Cos off by 1e-5": ("u = Cos (x)", "Cos", lambda g, y, x: op.Neg(g * op.Sin(x + 1e-5))),
    "Log with 1e-3": ("a = Exp (x) u = Log (a)", "Log", lambda g, y, x: g / (x + 1e-3)),
    "Log wrong below .05": ("u = Log (x)", "Log", lambda g, y, x: g / op.Max(x, 0.05)),
    "Log wrong above 50": ("u = Log (x)", "Log", lambda g, y, x: g / op.Min(x, 50.0)),
    "Sqrt wrong above 6": ("u = Sqrt (x)", "Sqrt", lambda g, y, x: g * 0.5 / op.Sqrt(op.Min(x, 6.0))),
    "Sqrt wrong below 1e-3": ("u = Sqrt (x)", "Sqrt", lambda g, y, x: g * 0.5 / op.Sqrt(op.Max(x, 1e-3))),
    "Exp wrong above 20": ("u = Exp (x)", "Exp", lambda g, y, x: g * op.Min(y, 4.85e8)),
    "Softplus 0 below -5": ("u = Softplus (x)", "Softplus", lambda g, y, x: op.Where(op.Less(x, -5.0), g * 0.0, g * op.Sigmoid(x))),
    "Softplus 1 above 15": ("u = Softplus (x)", "Softplus", lambda g, y, x: op.Where(op.Greater(x, 8.0), g * 0.999, g * op.Sigmoid(x))),
    "Atan 0 beyond 15": ("u = Atan (x)", "Atan", lambda g, y, x: op.Where(op.Greater(op.Abs(x), 15.0), g * 0.0, g / (x * x + 1.0))),
    "Softsign beyond 4": ("u = Softsign (x)", "Softsign", lambda g, y, x: g / ((op.Abs(x) + 1.0) * op.Min(op.Abs(x) + 1.0, 5.0))),
    "Sigmoid with Abs": ("a = Sigmoid (x) u = Mul (a, a)", "Sigmoid", lambda g, y, x: g * op.Max(y, 1e-3) * (1.0 - y)),
    "Elu of far values": ("u = Elu (x)", "Elu", lambda g, y, x, alpha: op.Where(op.Less(x, 0.0), g * op.Max(y + 1.0, 1e-2), g)),
    "LeakyRelu beyond -10": ("u = LeakyRelu (x)", "LeakyRelu", lambda g, y, x, alpha: op.Where(op.Less(x, 0.0), op.Where(op.Less(x, -10.0), g, g * alpha), g)),
    "Abs wrong at batch 1": ("u = Abs (x)", "Abs", lambda g, y, x: g * op.Sign(x) * op.Cast(op.Greater(op.Size(x), np.array(8)), to=1)),
    "Abs wrong after the first row": ("u = Abs (x)", "Abs", lambda g, y, x: g * op.Sign(x) * rows_after_the_first(x)),
    "Mul wrong for large products": ("u = Mul (x, x)", "Mul", lambda g, y, a, b: op.Where(op.Greater(y, 100.0), g * 0.0, g * b)),
    "Reciprocal off far away": ("a = Exp (x) u = Reciprocal (a)", "Reciprocal", lambda g, y, x: op.Neg(g * op.Max(y, 1e-4) * y)),
    "HardSwish wrong above 3": ("u = HardSwish (x)", "HardSwish", lambda g, y, x: op.Where(op.Less(x, -3.0), g * 0.0, g * (x / 3.0 + 0.5))),
}  # fmt: skip
QUICK = ["Sin 0 above 40", "Sin NaN above 5", "Sin 0 near 0", "Log wrong below .05", "Abs wrong at batch 1", "Cos off by 1e-5"]  # fmt: skip


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in WRONG])  # fmt: skip
def test_a_rule_that_is_wrong_in_a_part_of_its_range_is_refused(name: str) -> None:
    nodes, operator, rule, *text = WRONG[name]
    given = model(nodes, *text)
    with temporary_rules():
        vjp(operator, rule, replace=True)
        report = check_gradient(given, "x")
    assert report.verdict == "differs", str(report)


@pytest.mark.slow
def test_the_right_rules_of_the_same_models_agree() -> None:
    for nodes, _, _, *text in WRONG.values():
        report = check_gradient(model(nodes, *text), "x")
        assert report.verdict == "agrees", f"{nodes}: {report}"


def test_the_report_says_what_was_looked_at_and_reached() -> None:
    looks = check_gradient(
        model("b = Clip (x, low, six) k = Greater (b, big) u = Where (k, x, b)")
    ).looks
    assert len(looks.inputs) >= 5 and "at scale 8" in looks.inputs and not looks.ended
    (missed,) = looks.coverage.missed
    assert "never true" in missed
    assert looks.line.startswith(f"looked at {len(looks.inputs)} further inputs; covered: ")
    assert looks.line.endswith(f"; not reached: {missed}")
    found = looks.to_dict()
    assert found["inputs"] == list(looks.inputs) and found["coverage"]["share"] < 1


def test_inputs_that_the_user_gave_leave_nothing_to_look_at() -> None:
    x = np.ones((2, 8), np.float32)
    looks = check_gradient(model("u = Clip (x, low, six)"), inputs={"x": x}).looks
    assert looks.inputs == () and not looks.ended
    assert looks.line.startswith("looked at 0 further inputs; covered: 0 of ")


@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_comparison_that_the_time_ended_is_not_said(
    after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time ends within a comparison, whose run of the graph was counted already."""
    given = model("u = Clip (x, low, six)")
    plain = check_gradient(given).looks
    joint, init, turns = Look.joint, FurtherInputs.__init__, iter(range(100))
    made: list[FurtherInputs] = []

    def remembered(self: FurtherInputs, *args: Any, **options: Any) -> None:
        init(self, *args, **options)
        made.append(self)

    def ending(self: Look) -> None:
        joint(self)
        if next(turns) == after:
            made[0].deadline = 0.0

    monkeypatch.setattr(FurtherInputs, "__init__", remembered)
    monkeypatch.setattr(Look, "joint", ending)
    looks = check_gradient(given).looks
    # the first comparison is at the usual inputs
    assert looks.ended and looks.inputs == plain.inputs[: max(after - 1, 0)]
    assert ", then the time was up; covered: " in looks.line
    assert not plain.ended and plain.coverage.share == 1.0
    assert (looks.coverage.why == "nothing ran") == (after == 0)
    if after == 1:  # the run at scale 8 reached the upper bound, but its comparison came late
        assert 0 < (looks.coverage.share or 0.0) < 1


def test_sizes_at_which_the_model_does_not_run_are_left_out() -> None:
    # the reference computes a kernel of 64 over 8 positions, which no runtime accepts
    conv = parse(
        """g (float[N,1,T] x, float[2,1,64] w) => (float y) {
        a = Conv<kernel_shape = [64]>(x, w) y = ReduceSum<keepdims = 0>(a) }"""
    )
    assert check_gradient(conv, "w").ok


LOSSES = {
    "cross_entropy": "l = SoftmaxCrossEntropyLoss (y, t)",
    "a sum of logarithms": "a = ReduceLogSumExp <axes = [1]> (y) b = ReduceMax <axes = [1]> (y) "
    "c = Sub (a, b) l = ReduceMean <keepdims = 0> (c)",
    "the logarithm of a softmax": "p = Softmax (y) q = Log (p) l = ReduceMean <keepdims = 0> (q)",
}


@pytest.mark.parametrize(
    ("loss", "seed"),
    [
        ("cross_entropy", 4), ("cross_entropy", 9), ("cross_entropy", 28),
        ("a sum of logarithms", 13),
        ("the logarithm of a softmax", 1), ("the logarithm of a softmax", 12),
    ],
)  # fmt: skip
def test_classifiers_are_certain_at_large_inputs(loss: str, seed: int) -> None:
    """The loss there is nearly 0, and differences are less than its last digit."""
    rng = np.random.default_rng(seed + (0 if loss == "cross_entropy" else 1000))
    text = f"""g (float[2,2] x, int64[2] t) => (float l) {{
      h = MatMul (x, w) z = Relu (h) y = MatMul (z, v) {LOSSES[loss]} }}"""
    classifier = parse(text, opset=17)
    for name, shape in {"w": (2, 3), "v": (3, 3)}.items():
        value = rng.standard_normal(shape).astype(np.float32)
        classifier.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    assert check_gradient(classifier, "params", "l", seed=seed).ok
