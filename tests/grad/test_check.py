"""onnxgrad/grad/check.py: right gradients pass, wrong ones are named, kinks are not judged."""

import onnx
import pytest
from onnx import numpy_helper

from onnxgrad.errors import InputError
from onnxgrad.grad import check_gradient, vjp
from tests.grad.numeric import normal

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
    with pytest.raises(InputError, match="wrt 'q' is no value"):
        check_gradient(model(), "q", "s")
