"""onnxgrad/grad/checking/kinks.py: a value that lies on a kink is judged where it does not, and right is never wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from onnxgrad.grad import check_gradient, vjp
from onnxgrad.grad.checking.kinks import smooth_elements
from onnxgrad.grad.checking.report import ValueCheck
from onnxgrad.ir.ops import op
from tests.helpers import parse


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
