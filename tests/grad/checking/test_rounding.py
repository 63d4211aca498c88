"""Where onnxruntime rounds too much, float64's own gradient is what the verdict uses and shows."""

from __future__ import annotations

import numpy as np
import pytest

from onnxgrad.grad.checking.differences import Yardstick
from onnxgrad.grad.checking.report import GradientReport, ValueCheck
from onnxgrad.grad.checking.rounding import _Rounding


def test_the_numbers_shown_are_those_that_were_judged() -> None:
    leg = _Rounding.__new__(_Rounding)
    leg.adjoints = {"w": "w_grad"}
    leg.exact = {"w_grad": np.array([3.0, 4.0])}
    leg.rounded = [{"w_grad": np.array([3.0, 4.0 + by])} for by in (0.1, -0.05)]
    g, by = np.array([3.2, 4.3]), Yardstick(5.0, 1e-4)
    ones = np.ones(2)
    off = ValueCheck("w", float(g.sum()), 7.0 - 5e-6, 0.1, True)
    check = leg.judge(off, ones, g, by)
    assert check.gradient == 7.0 and check.why.endswith("moves it by 1e-01 to 7.5")
    assert check.error == pytest.approx(abs(check.gradient - check.difference) / by.size(g))
    said = str(GradientReport((check,), 1e-4, "cpu"))
    assert "1 value, worst 'w': <g, v> = 7, differences 6.999995, error" in said
