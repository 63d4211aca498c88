"""onnxgrad/grad/checking/line.py: a slope by differences knows how far off it may be, and why."""

from __future__ import annotations

import numpy as np
import pytest

from onnxgrad.grad.checking.line import Line, place
from onnxgrad.grad.checking.probe import probe_of
from onnxgrad.grad.checking.report import TOO_SMALL
from onnxgrad.verify.reference.client import Float64
from tests.helpers import parse

X = np.array([0.5, 0.0, -0.7], np.float32)


def line(body: str, direction: list[float]) -> Line:
    """The sum of y along a direction of x."""
    model = parse(f"g (float[3] x) => (float[3] y) <float k = {{1e-12}}, float big = {{1e6}}> {{ {body} }}")  # fmt: skip
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


def test_what_is_not_finite_is_said_at_once() -> None:
    found = line("y = Log (x)", [1, 1, 1]).slope(1e-4, 1e-4)
    assert found.why == "the differences are not finite: nothing to compare"
