"""Whole models and windows in the child process."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from onnx import parser

from onnxgrad import InputError, verify
from onnxgrad.verify.exact.child import decide_in_child
from onnxgrad.verify.exact.client import decide_window
from onnxgrad.verify.exact.decide import decide
from onnxgrad.verify.exact.window import Window

HEAD = '<ir_version: 8, opset_import: ["": 18]> g (float[N,4] x) => (float[N,4] y) '
TWICE = parser.parse_model(HEAD + "{ y = Add(x, x) }")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("<float[1] c = {2}> { y = Mul(x, c) }", "exact: the same algebra at N=2; N=3; N=5"),
        ("<float[1] c = {2.0000002384185791015625}> { y = Mul(x, c) }",
         "exact: not the same algebra: y[0, 0] differs"),
        ("{ z = Relu(x) a = Exp(z) b = Log(a) y = Add(x, x) }", "exact: the same algebra"),
        ("<float[1] c = {2}> { a = Exp(x) b = Log(a) y = Mul(b, c) }", "exact: not decided: y[0, 0]"),
    ],
)  # fmt: skip
def test_the_report_says_what_exact_evaluation_says(text: str, line: str) -> None:
    report = verify(TWICE, parser.parse_model(HEAD + text), exact=True, checks=("float64",))
    assert report.exact is not None and report.exact.lines[0].startswith(line)
    assert report.ok is (report.verdict == "equal") and line in str(report)


def test_without_the_option_nothing_is_evaluated() -> None:
    assert verify(TWICE, TWICE, checks=("float64",)).exact is None


def test_names_of_the_second_model() -> None:
    text = HEAD.replace("] x)", "] u)").replace("] y)", "] v)") + "{ v = Add(u, u) }"
    other, names = parser.parse_model(text), {"x": "u", "y": "v"}
    assert decide_in_child(TWICE, other, names, 10)[0] == "exact"
    assert decide_in_child(TWICE, other, {"x": "u"}, 10)[2] == "the second model has no output y"


def test_the_decision_as_json() -> None:
    report = verify(TWICE, TWICE, exact=True, checks=("float64",))
    exact = report.to_dict()["exact"]
    assert exact["verdict"] == "exact" and exact["sizes"] == ["N=2", "N=3", "N=5"]


def test_stored_results_are_no_second_model() -> None:
    with pytest.raises(InputError, match=r"exact=True compares two models, and one was given"):
        verify(TWICE, expect={"y": np.zeros((2, 4))}, inputs={"x": np.zeros((2, 4))}, exact=True)


def test_a_window_in_the_child() -> None:
    old = parser.parse_model(HEAD + "<float[1] c = {0.1}> { a = Mul(x, c) y = Mul(a, c) }")
    new = parser.parse_model(HEAD + "<float[1] d = {0.01}> { y = Mul(x, d) }")
    new.graph.initializer[0].raw_data = (np.float32(0.1) ** 2).tobytes()
    window = Window(old, new, (("y", "y"),), made=("d",))
    assert decide_window(window, 10) == decide(window)
    assert decide_window(window, 10).rounded == ("d",)
    assert decide_window(replace(window, made=()), 10).verdict == "refuted"
    witness = parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> g () => (float[1] d) <float[1] c = {0.1}> '
        "{ d = Add(c, c) }"
    )
    found = decide_window(replace(window, witnesses={"d": witness}), 10)
    assert found.verdict == "refuted" and "y[0, 0] differs" in found.stopped_by
