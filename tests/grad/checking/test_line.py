"""onnxgrad/grad/checking/line.py: a slope by differences knows how far off it may be, and why."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from onnxgrad import check_gradient
from onnxgrad.grad import vjp
from onnxgrad.grad.checking.line import Line, place, smooth_elements
from onnxgrad.grad.checking.probe import probe_of
from onnxgrad.grad.checking.report import TOO_SMALL, ValueCheck
from onnxgrad.ir.ops import op
from onnxgrad.verify.reference.client import Float64
from tests.helpers import parse

X = np.array([0.5, 0.0, -0.7], np.float32)


def line(body: str, direction: list[float]) -> Line:
    """The sum of y along a direction of x."""
    model = parse(f"g (float[3] x) => (float[3] y) <float k = {{1e-12}}, float big = {{1e6}}, float far = {{18.0}}, float one = {{1.0}}, float half = {{0.5}}> {{ {body} }}")  # fmt: skip
    probe = probe_of(model, ["x"], ["x"], ["y"])
    reference = Float64(probe.model)
    feeds = {"x": X, probe.deltas["x"]: np.zeros(())}
    at = place(reference, feeds, {probe.outputs["y"]: np.ones(3)}, reference.run(feeds))
    return Line(at, probe.deltas["x"], np.array(direction), 0.7)


def test_a_smooth_slope_is_known_from_the_first_step() -> None:
    at = line("y = Sin (x)", [1, 2, 3])
    found = at.slope(1e-4, 1e-4)
    assert found.value == pytest.approx(np.cos(X.astype(float)) @ [1, 2, 3], rel=1e-9)
    assert found.doubt < 1e-8 and found.step == at.step
    assert at.forward(1e-7) == pytest.approx(found.value, rel=1e-6)
    assert not at.has_kink(1e-6)


def test_a_kink_at_the_value_makes_the_doubt() -> None:
    at = line("y = Relu (x)", [1, 1, 1])
    found = at.slope(1e-4, 1e-4)
    assert found.value == pytest.approx(1.5) and found.doubt == pytest.approx(0.5, rel=1e-3)
    assert found.why.startswith("a kink within") and at.has_kink(1e-6)
    assert at.sides(1e-5) == (pytest.approx(1), pytest.approx(2))
    smooth = at.moving(np.array([True, False, True]))
    assert smooth.slope(1e-4, 1e-4).doubt < 1e-8 and not smooth.has_kink(1e-6)
    assert at.alone(1).sides(1e-5) == (pytest.approx(0), pytest.approx(1))


def test_a_function_that_hardly_moves_is_looked_at_from_afar() -> None:
    at = line("s = Mul (x, k) b = Add (s, big) t = Sub (b, big) y = Sin (t)", [1, 2, 3])
    assert at.slope(1e-16, 1e-4).why == TOO_SMALL, "1e6 is added and taken away"
    at = line("s = Mul (x, k) b = Sin (s) c = Cos (x) d = Cos (x) e = Sub (c, d) y = Add (b, e)", [1, 2, 3])  # fmt: skip
    found = at.slope(1e-16, 1e-4)
    assert found.doubt == found.rounding or found.step > at.step


def test_cancellation_is_rounding_and_no_jump() -> None:
    """1 - tanh(20 + x) has one digit, (1 + tanh)(1 - tanh) of it no other: rounding moves all of it."""
    saturated = "s = Add (x, far) t = Tanh (s) d = Sub (one, t) y = Mul (d, big)"
    at = line(saturated, [1, 1, 1])
    assert at.slope(1e-16, 1e-4).why == TOO_SMALL and at.rounding(at.step) > 1e-6
    jumping = line("s = Sub (x, half) a = Sign (s) y = Mul (a, big)", [1, 1, 1])
    assert jumping.at.noise < 1e-6, "a tie is no rounding"
    # half of the last digit rounds back, a whole one does not
    beyond = line(
        "a = Mul (x, one) c = Greater (a, x) f = Cast <to = 1> (c) y = Add (x, f)", [1, 1, 1]
    )
    assert beyond.at.noise < 1e-14


def test_what_is_not_finite_is_said_at_once() -> None:
    found = line("y = Log (x)", [1, 1, 1]).slope(1e-4, 1e-4)
    assert found.why == "the differences are not finite"


def checked(body: str, wrt: str = "h") -> ValueCheck:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18]> m (float[16] x) => (float[16] y) '
        f"<float lo = {{0.0}}, float hi = {{0.5}}> {{ {body} }}"
    )
    return check_gradient(model, wrt).values[0]


@pytest.mark.parametrize(
    "body",
    [
        "h = Relu (x) y = Relu (h)",
        "h = Relu (x) y = LeakyRelu (h)",
        "h = Clip (x, lo, hi) y = Clip (h, lo, hi)",
        "h = Clip (x, lo, hi) k = Relu (h) t = Tanh (k) y = Min (t, hi)",
    ],
)
def test_what_lies_on_a_kink_is_not_moved(body: str) -> None:
    """Half of h is 0, where Relu's slopes are 0 and 1: right gradients were called wrong, off by a sixth."""
    found = checked(body)
    assert found.judged and found.error < 1e-6 and "not moved" in found.why
    assert not checked(body, "x").why


def relu(right: float, at_zero: float) -> None:
    """Relu with these slopes."""

    def rule(g: Any, y: Any, x: Any) -> Any:
        return g * op.Where(op.Equal(x, 0.0), at_zero, op.Where(op.Greater(x, 0.0), right, 0.0))

    vjp("Relu", rule, replace=True)


@pytest.mark.parametrize("at_zero", [0.0, 0.3, 1.0])
def test_any_slope_is_right_on_a_kink(at_zero: float) -> None:
    relu(1.0, at_zero)
    assert checked("h = Relu (x) y = Relu (h)").error < 1e-6


@pytest.mark.parametrize(
    ("right", "at_zero"), [(1.01, 0.0), (1.01, 1.0), (1.0, 500.0), (1.0, 2.0), (1.0, -0.1)]
)
def test_a_wrong_rule_stays_wrong(right: float, at_zero: float) -> None:
    relu(right, at_zero)
    found = checked("h = Relu (x) y = Relu (h)")
    assert found.judged and found.error > 1e-4


def test_nothing_is_judged_where_all_elements_lie_on_one() -> None:
    found = checked("h = Mul (x, lo) y = Relu (h)")
    assert not found.judged and found.why == "a kink at the value of 16 of 16 elements"


def test_too_many_kinks_are_not_judged() -> None:
    values = np.arange(100.0)
    kinked = values % 3 == 0
    assert smooth_elements(values, lambda among: bool((among & kinked).any())) is None
    found = smooth_elements(values, lambda among: bool(among[70]))
    assert found is not None and list(np.flatnonzero(~found)) == [70]


def test_pools_may_choose_anew_at_each_tie() -> None:
    """Of equal elements a MaxPool picks one, and so does the next: with weights of both signs their
    sum is no slope along one element, and right.
    """
    text = """g (float[1,1,4,5] x) => (float[1,1,5,6] y) <float k = {0}> { z = Mul (x, k)
      p = MaxPool <kernel_shape = [2, 2], pads = [1, 0, 0, 1]> (z) y = MaxPool <kernel_shape = [2, 2], pads = [1, 1, 1, 1]> (p) }"""
    for seed in range(3):
        report = check_gradient(parse(text), ["z"], "y", seed=seed)
        assert report.verdict != "differs", str(report)
