"""Where onnxruntime rounds too much, float64's own gradient is what the verdict uses and shows; and
which float types a gradient depends on.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from onnxgrad.grad.checking.differences import Trial
from onnxgrad.grad.checking.line import Slope
from onnxgrad.grad.checking.report import TOO_SMALL, GradientReport, ValueCheck
from onnxgrad.grad.checking.rounding import (
    UNITS,
    Rounding,
    coarsest_on_the_way,
    constants_shifted,
)
from onnxgrad.grad.differentiation import differentiate
from onnxgrad.ir.load import load
from tests.helpers import parse


def looked_at(
    exact: np.ndarray, found: np.ndarray, slope: float, doubt: float = 0.0,
    near: float | None = None, direction: tuple[float, float] = (1, 1), constants: float = 0.0,
    coarse: float = 0.2,
) -> ValueCheck:  # fmt: skip
    """The second look at a sum of elements, whose slope by smaller steps is `near`; its constants
    move the first element. Rounding moves the second by 0.1, ten times the rounding by `coarse`.
    """
    check = Rounding.__new__(Rounding)
    check.adjoints = {"w": "w_grad"}
    check.exact = {"w_grad": exact}
    check._rounded = {
        factor * UNITS[TensorProto.FLOAT]: [{"w_grad": exact + np.array([0, by])} for by in moved]
        for factor, moved in ((1, (0.1, -0.05)), (10, (coarse, 0.0)))
    }
    check._shifted = [{"w_grad": exact + np.array([by, 0])} for by in (constants, 0.0)]
    closer = Slope(slope if near is None else near, doubt, doubt, 1e-9)
    line: Any = SimpleNamespace(direction=np.array(direction), slope=lambda *_: closer)
    trial = Trial(line, float(found @ line.direction), Slope(slope, doubt, doubt, 1e-5), 5.0, 1e-4)
    return check.judge(ValueCheck("w", trial.got, slope, 0.1, True), [trial], TensorProto.FLOAT)


def test_the_numbers_shown_are_those_that_were_judged() -> None:
    exact = np.array([3.0, 4.0])
    check = looked_at(exact, np.array([3.2, 4.3]), 7.0 - 5e-6)
    assert check.gradient == 7.0 and check.why.endswith("moves it by 1e-01 to 7.5")
    assert check.error == pytest.approx(abs(check.gradient - check.difference) / 7, rel=0.5)
    said = str(GradientReport((check,), 1e-4, "cpu"))
    assert "1 value, worst 'w': <g, v> = 7, differences 6.999995, error" in said


def test_float64_has_to_agree_and_rounding_to_explain_the_rest() -> None:
    exact = np.array([3.0, 4.0])
    assert not looked_at(exact, np.array([3.2, 4.3]), 6.9).why, "float64 is off as well"
    assert not looked_at(exact, np.array([3.2, 6.3]), 7.0).why, "ten times the rounding is 1"


def test_beside_many_kinks_ten_times_the_rounding_has_more_than_ten_times_the_effect() -> None:
    exact, found = np.array([3.0, 4.0]), np.array([3.2, 6.3])
    assert not looked_at(exact, found, 7.0).why
    assert looked_at(exact, found, 7.0, coarse=1.4).why, "twice 1.4 is more than 2.5"
    assert not looked_at(exact, found, 6.9, coarse=1.4).why, "float64 is off as well"


def test_a_quick_slope_of_one_side_of_a_kink_is_taken_again_from_smaller_steps() -> None:
    found = looked_at(np.array([3.0, 4.0]), np.array([3.2, 4.3]), 7.5, near=7.0)
    assert found.why and found.difference == 7.0


def test_rounding_that_cancels_along_a_direction_still_explains() -> None:
    found = looked_at(np.array([3.0, 4.0]), np.array([3.5, 4.3]), 3.0, direction=(1, 0))
    assert found.why, "it moves the other element alone, by a tenth"


def test_float64_is_off_by_what_rounded_constants_do_and_no_more() -> None:
    """1/6 in float32, in a sum that cancels; that every step of onnxruntime's rounds allows float64
    nothing.
    """
    exact, found = np.array([3.0, 4.0]), np.array([3.2, 4.3])
    assert not looked_at(exact, found, 7.0 - 0.018).why
    assert looked_at(exact, found, 7.0 - 0.018, constants=0.01).why
    assert not looked_at(exact, found, 7.0 - 0.03, constants=0.01).why


def test_a_slope_beside_kinks_need_not_be_known_to_a_tenth() -> None:
    """A weight before many a Relu: each step crosses some, and all of them agree."""
    found = looked_at(np.array([3.0, 4.0]), np.array([3.2, 4.3]), 7.0 + 1e-4, doubt=5e-4)
    assert found.judged and found.error < 1e-4


def test_a_gradient_that_ten_times_the_rounding_passes_is_too_small() -> None:
    found = looked_at(np.array([0.3, 0.4]), np.array([0.32, 0.43]), 0.7)
    assert not found.judged and found.why == TOO_SMALL


def test_a_gradient_below_the_rounding_of_the_differences_is_too_small() -> None:
    check = looked_at(np.array([1e-15, 1e-15]), np.array([0.1, 0.2]), 3e-9, doubt=1e-8)
    assert not check.judged and check.why == TOO_SMALL


@pytest.mark.parametrize(
    ("body", "dtype"),
    [
        ("t = Tanh (x) h = Cast <to = 16> (x) o = Cast <to = 1> (h)", TensorProto.FLOAT),
        ("h = Cast <to = 16> (x) t = Cast <to = 1> (h) o = Neg (x)", TensorProto.BFLOAT16),
        ("h = Cast <to = 10> (x) c = Cast <to = 1> (h) t = Mul (x, c) o = Neg (x)", TensorProto.FLOAT16),
        ("c = Cast <to = 1> (w) t = Mul (x, c) o = Neg (x)", TensorProto.FLOAT),
        ("""t = If (b) <then_branch = f () => (float[3] p) { h = Cast <to = 10> (x) p = Cast <to = 1> (h) },
             else_branch = e () => (float[3] q) { q = Neg (x) }> o = Neg (x)""", TensorProto.FLOAT16),
    ],
    ids=["beside", "on it", "a factor", "stored", "in a branch"],
)  # fmt: skip
def test_the_float_types_on_a_value_s_own_paths(body: str, dtype: int) -> None:
    text = f"""g (float[3] x, bool b) => (float s, float[3] o) <float16[3] w = {{1, 2, 3}}>
      {{ {body} s = ReduceSum <keepdims = 0> (t) }}"""
    found = differentiate(load(parse(text)), ["x"], "s")
    assert coarsest_on_the_way(found.program, found.adjoints) == {"x": dtype}


SOURCE = "g (float[2] x) => (float[2] y) <float[2] w = {0.1, 0.2}> { y = Mul (x, w) }"
GRAPH = """<ir_version: 10, opset_import: ["": 20, "f": 1]>
    g (float[2] x, bool c) => (float[2] y) <float[2] w = {0.1, 0.2}, float third = {0.333333343}, float half = {0.5}, float[2,1] turned = {-0.2, 0.1}, int64 n = {3}> {
      a = Mul (x, w) b = f.scale (a)
      y = If (c) <then_branch = t () => (float[2] z) { k = Constant <value = float {0.3}> () z = Mul (b, k) },
                  else_branch = e () => (float[2] z) { z = Mul (b, third) }> }
    <domain: "f", opset_import: ["": 20]> scale (a) => (r) { s = Constant <value = float {0.7}> () r = Mul (a, s) }"""


def test_rounded_numbers_of_its_own_are_off_by_one_unit() -> None:
    graph = parse(GRAPH)
    shifted = constants_shifted(graph, parse(SOURCE), 0)
    assert shifted is not None
    found = {t.name: numpy_helper.to_array(t) for t in shifted.graph.initializer}
    assert found["w"].dtype == np.float32 and found["half"].dtype == np.float32
    assert np.array_equal(found["turned"], [[np.float32(-0.2)], [np.float32(0.1)]])
    branch = shifted.graph.node[2].attribute[0].g.node[0].attribute[0].t
    inside = shifted.functions[0].node[0].attribute[0].t
    for moved, value in (
        (found["third"], 1 / 3),
        (numpy_helper.to_array(branch), 0.3),
        (numpy_helper.to_array(inside), 0.7),
    ):
        assert abs(moved / float(np.float32(value)) - 1) == pytest.approx(2.0**-24, rel=1e-6)
    assert graph == parse(GRAPH)


def test_nothing_of_its_own_that_was_rounded() -> None:
    other = onnx.ModelProto()
    other.CopyFrom(parse(GRAPH))
    assert constants_shifted(other, parse(GRAPH), 0) is None
