"""What the page says of two models, and of one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest

import onnxgrad
from onnxgrad.report.html.models import bench_page
from onnxgrad.report.parts import Table, table
from onnxgrad.verify.bench import BenchReport, Spread, Timing
from tests.helpers import parse
from tests.report.html.common import data_of, section_of

A = "g (float[2] x) => (float[2] y) { a = Relu (x)  y = Neg (a) }"
B = "g (float[2] x) => (float[2] y) { a = Abs (x)  b = Exp (a)  y = Neg (b) }"


def test_two_models() -> None:
    found = onnxgrad.diff(parse(A), parse(B))
    page = found.to_html()
    graphs = section_of(page, "graph")["graphs"]
    assert [{n["o"]: n.get("c") for n in g["nodes"]} for g in graphs] == [
        {"Relu": "changed", "Neg": "changed"},
        {"Abs": "changed", "Exp": "added", "Neg": "changed"},
    ]
    listed = {title: lines for title, lines, _ in section_of(page, "list")["groups"]}
    assert listed["nodes added"] == ["b = Exp(a)"]
    assert data_of(page)["reports"][0]["verdict"]["word"] == "3 differences"
    assert [r[0] for r in section_of(page, "operators")["rows"]] == ["Abs", "Exp", "Relu", "Neg"]
    # the models are no part of what is compared, printed or written as JSON
    assert found == onnxgrad.diff(parse(A), parse(B)) and "models" not in found.to_dict()


def test_models_of_one_name_keep_their_folders(tmp_path: Path) -> None:
    files = [tmp_path / folder / "m.onnx" for folder in ("a", "b")] + [tmp_path / "other.onnx"]
    for path, text in zip(files, (A, B, B), strict=True):
        path.parent.mkdir(exist_ok=True)
        onnx.save(parse(text), path)
    a, b, other = files
    title = [data_of(onnxgrad.diff(a, x).to_html())["reports"][0]["title"] for x in (b, other)]
    assert title == [f"{a} → {b}", "m.onnx → other.onnx"]


def test_equal_models() -> None:
    found = onnxgrad.diff(parse(A), parse(A))
    report = data_of(found.to_html())["reports"][0]
    assert report["verdict"]["word"] == "the same"
    assert "list" not in [s["kind"] for s in report["sections"]]


def test_a_diff_without_models_has_no_page() -> None:
    with pytest.raises(onnxgrad.InputError, match=r"only a Diff from onnxgrad\.diff"):
        onnxgrad.Diff().to_html()


def test_one_model() -> None:
    page = onnxgrad.inspect("models/training/mlp.onnx").to_html()
    report = data_of(page)["reports"][0]
    assert [s["title"] for s in report["sections"]][:4] == [
        "Graph",
        "Summary",
        "Interface",
        "Operators",
    ]
    assert len(section_of(page, "graph")["graphs"]) == 1
    assert {c["label"]: c["value"] for c in report["cards"]}["nodes"] == "12"


def report(**refused: str) -> BenchReport:
    one, half = Spread(1.0, 0.9, 1.1), Spread(0.5, 0.4, 0.6)
    timings = (Timing("m", one, one, one, one, 3), Timing("n", half, half, half, half, 3))
    return BenchReport(timings, refused, "cpu", 2, {"batch": 4}, 20)


def measured(
    found: BenchReport, rows: Table, require: float | None, missed: list[str]
) -> dict[str, Any]:
    (made,) = data_of(bench_page(found, rows, require, missed))["reports"]
    return dict(made)


def test_times_and_ratios_come_first() -> None:
    found = measured(report(), table(), None, [])
    assert found["title"] == "m, n" and found["verdict"]["word"] == "measured"
    assert found["verdict"]["text"] == "on cpu, 2 threads, batch=4"
    assert [(c["label"], c["value"], c["tone"]) for c in found["cards"]] == [
        ("m", "1e+03 ms", "plain"),
        ("n", "500 ms", "good"),
    ]
    assert [r["value"] for r in found["sections"][0]["rows"]] == [1.0, 0.5]


def test_what_was_required_is_the_verdict() -> None:
    assert measured(report(), table(), 0.6, [])["verdict"]["word"] == "held"
    slow = measured(report(), table(), 0.4, ["n takes too long"])["verdict"]
    assert (slow["word"], slow["tone"], slow["notes"]) == (
        "too slow",
        "bad",
        [["n takes too long", "bad"]],
    )
    none = measured(report(o="no such operator"), table(), None, [])["verdict"]
    assert none["word"] == "not run" and none["notes"] == [
        ["o does not run: no such operator", "bad"]
    ]
