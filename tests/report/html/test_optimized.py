"""What the page says of an optimised model: verdict, figures, differences against what is allowed."""

from __future__ import annotations

import pytest

import onnxgrad
from onnxgrad.report.html.optimized import optimized
from onnxgrad.report.html.plots import choices, differences
from onnxgrad.report.optimized import Outcome
from tests.helpers import parse
from tests.report.html.common import data_of, section_of

MODEL = """g (float[N,3] x) => (float[N,3] y, int64 k) <int64 one = {1}> {
    a = Identity (x)  y = Tanh (a)  k = Identity (one) }"""


@pytest.fixture(scope="module")
def done() -> onnxgrad.OptimizedModel:
    return onnxgrad.optimize(parse(MODEL), report=True, seeds=[0])


def test_the_verdict_and_the_figures_come_first(done: onnxgrad.OptimizedModel) -> None:
    (report,) = data_of(done.to_html())["reports"]
    assert report["verdict"]["word"] == "equal" and report["verdict"]["tone"] == "good"
    cards = {c["label"]: c for c in report["cards"]}
    assert list(cards) == ["nodes", "file size", "parameters", "worst difference", "rewrites"]
    assert done.outcome.before is not None and done.outcome.after is not None
    assert cards["nodes"]["value"] == str(done.outcome.after.nodes)
    assert cards["nodes"]["note"] == f"from {done.outcome.before.nodes}"
    assert cards["rewrites"]["value"] == str(len(done.rewrites))


def test_differences_stand_against_what_is_allowed(done: onnxgrad.OptimizedModel) -> None:
    found = section_of(done.to_html(), "rows")
    assert {(r["label"], r["leg"]) for r in found["rows"]} == {
        (name, leg) for name in ("y", "k") for leg in ("float64", "onnxruntime")
    }
    for row in found["rows"]:
        assert row["ok"] and row["value"] <= row["bound"]
    # nothing that depends on the clock
    assert "seconds" not in str(data_of(done.to_html()))


def test_a_failed_proof_is_shown() -> None:
    a, b = (
        parse("g (float[2] x) => (float[2] y) { y = Neg (x) }"),
        parse("g (float[2] x) => (float[2] y) { y = Abs (x) }"),
    )
    report = onnxgrad.verify(a, b, seeds=[0])
    error = onnxgrad.NotProved("they differ")
    found = optimized(Outcome("m.onnx", None, "m.onnx", report=report, error=error))
    assert found["verdict"]["tone"] == "bad" and ["they differ", "bad"] in found["verdict"]["notes"]
    plotted = differences(report)
    assert plotted is not None and not plotted["rows"][0]["ok"]
    assert next(c for c in found["cards"] if c["label"] == "worst difference")["tone"] == "bad"


def test_without_a_proof_it_says_so() -> None:
    found = optimized(Outcome("m.onnx", None, "m.onnx"))
    assert (found["verdict"]["tone"], found["verdict"]["word"]) == ("unsure", "not proved")


def test_what_was_measured_is_plotted() -> None:
    decisions = [
        {"choice": "a", "kept": True, "ratio": 0.9, "spread": 0.02},
        {"choice": "b", "kept": False, "ratio": 1.1, "spread": None},
        {"choice": "c", "kept": False, "ratio": None, "spread": None},
    ]
    found = choices({"decisions": decisions, "total": None, "provider": "cpu", "threads": 1})
    assert found is not None
    assert [(r["label"], r["low"], r["ok"]) for r in found["rows"]] == [
        ("a", 0.88, True),
        ("b", 1.1, False),
    ]
    assert choices(None) is None
