"""How a gradient and its check read."""

from __future__ import annotations

import json
from dataclasses import replace

import onnxgrad
from onnxgrad.grad import differentiate
from onnxgrad.grad.checking.report import GradientReport, ValueCheck
from onnxgrad.report.gradient import GradientMade, check_lines, nodes
from onnxgrad.report.rendering import plain
from tests.helpers import parse

TEXT = "g (float[2] x) => (float y) <float[2] w = {1, 2}> { a = Mul(x, w) i = Identity(a) y = ReduceSum<keepdims=0>(i) }"
CHECK = GradientReport(
    (ValueCheck("x", 1.5, 1.5, 0.0, True), ValueCheck("w", 2.0, 3.0, 0.5, True), ValueCheck("k", 0.0, 0.0, 0.0, False, "a kink")),
    1e-3, "cpu",
)  # fmt: skip


def test_nodes_are_those_that_compute() -> None:
    assert nodes(onnxgrad.load(parse(TEXT))) == 2


def test_what_was_made() -> None:
    made = GradientMade(differentiate(onnxgrad.load(parse(TEXT)), ["x", "w"], "y"), 2, 0.25, CHECK)
    found = json.loads(json.dumps(made.to_dict()))
    assert found["targets"] == ["y"] and found["adjoints"] == {"x": "x_grad", "w": "w_grad"}
    assert (
        found["nodes"]["before"] == 2
        and found["nodes"]["after"] >= 3
        and found["check"]["verdict"] == "differs"
    )
    lines = plain(made.parts()).splitlines()
    assert lines[0] == "gradient of y with respect to 2 values"
    assert any(line.split() == ["x", "x_grad", "f32[2]"] for line in lines)
    assert any(line.startswith("2 → ") and line.endswith("built in 250 ms") for line in lines)
    assert lines[-2].startswith("gradient DIFFERS from finite differences")
    assert lines[-1] == "looked at 0 further inputs; covered: unknown (nothing ran)"


def test_a_check_shows_what_was_not_judged_and_the_worst_first() -> None:
    rows = [line.split() for line in plain(check_lines(CHECK, verbose=True)).splitlines()[2:5]]
    assert (
        [row[0] for row in rows] == ["k", "w", "x"]
        and rows[1][-1] == "WRONG"
        and rows[0][-2:] == ["a", "kink"]
    )
    many = GradientReport(
        tuple(ValueCheck(f"v{i}", 1.0, 1.0, 0.0, True) for i in range(10)), 1e-3, "cpu"
    )
    assert "8 of 10 values (-v shows all)" in plain(check_lines(many, verbose=False))


def test_a_check_prints_the_notes_that_the_gradient_does_not() -> None:
    noted = replace(CHECK, notes=("a", "'WT' is 'W' transposed"))
    lines = plain(check_lines(noted, verbose=False, known=["a"])).splitlines()
    assert [line for line in lines if "note" in line] == ["note: 'WT' is 'W' transposed"]
