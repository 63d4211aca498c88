"""JUnit XML of `onnxgrad ci`: a case per model, counted by kind, whatever a model is called."""

from __future__ import annotations

import io
from pathlib import Path
from xml.etree import ElementTree

from rich.console import Console

from onnxgrad.jobs.ci.lock import Change
from onnxgrad.jobs.ci.outcome import CiReport, ModelOutcome
from onnxgrad.jobs.lint.table import Finding
from onnxgrad.report.ci import annotation_lines, ci_parts, junit, models_table
from onnxgrad.report.rendering import rich_of

HOSTILE = 'a"<b>&\x00\x1b[31m]]>\ud800'


def outcome(name: str, status: str, error: str = "") -> ModelOutcome:
    found = ModelOutcome(name, seconds=1.5)
    if status not in ("passed", "changed", "skipped"):
        found.fail(status, 1, error)  # type: ignore[arg-type]
    else:
        found.status = status  # type: ignore[assignment]
    return found


def test_a_case_per_model() -> None:
    models = (
        outcome("a.onnx", "passed"),
        outcome("b.onnx", "failed", "requirement of onnxgrad.toml not met: 9 nodes, not <= 3"),
        outcome("c.onnx", "error", "not an ONNX model"),
        outcome("d.onnx", "skipped"),
        outcome("e.onnx", "different", "y differs"),
    )
    report = CiReport("onnxgrad.toml", models, "onnxgrad.lock.json", gone=("f.onnx",), seconds=3.0)
    suite = ElementTree.fromstring(junit(report))[0]
    counts = {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped", "time")}
    assert counts == {
        "tests": "6", "failures": "3", "errors": "1", "skipped": "1", "time": "3.000",
    }  # fmt: skip
    found = {case.get("name"): [(e.tag, e.get("type")) for e in case] for case in suite}
    assert found == {
        "a.onnx": [],
        "b.onnx": [("failure", "failed")],
        "c.onnx": [("error", "error")],
        "d.onnx": [("skipped", None)],
        "e.onnx": [("failure", "different")],
        "f.onnx": [("failure", "gone")],
    }
    message = suite.find("testcase[@name='b.onnx']/failure")
    assert message is not None and "9 nodes, not <= 3" in (message.get("message") or "")
    assert {case.get("classname") for case in suite} == {"onnxgrad.toml"}


def test_what_xml_cannot_hold_is_spelt_out() -> None:
    text = junit(CiReport("r.toml", (outcome(HOSTILE, "failed", HOSTILE),), "l.json"))
    case = ElementTree.fromstring(text.encode("utf-8", "strict"))[0][0]
    assert case.get("name") == 'a"<b>&\\x00\\x1b[31m]]>\\ud800'
    assert (case[0].get("message") or "").startswith('a"<b>&')


def test_a_lock_that_was_written_has_nothing_gone() -> None:
    report = CiReport("r.toml", (), "l.json", gone=("f.onnx",), updated=True)
    assert len(ElementTree.fromstring(junit(report))[0]) == 0


def test_a_line_for_what_fails_changed_or_is_gone(tmp_path: Path) -> None:
    failed = ModelOutcome("models/b.onnx")
    failed.fail("different", 1, "y differs")
    changed = ModelOutcome("models/c.onnx", "changed", changes=(Change("nodes", 12, 10),))
    models = (ModelOutcome("models/a.onnx"), failed, changed, ModelOutcome("d.onnx", "skipped"))
    recipe, lock = tmp_path / "sub" / "onnxgrad.toml", tmp_path / "sub" / "onnxgrad.lock.json"
    report = CiReport(str(recipe), models, str(lock), gone=("e.onnx",))
    assert list(annotation_lines(report, tmp_path)) == [
        "::error file=sub/models/b.onnx,title=onnxgrad%3A different::y differs",
        "::warning file=sub/models/c.onnx,title=onnxgrad%3A changed::changed nodes: 12 → 10",
        "::error file=sub/onnxgrad.lock.json,title=onnxgrad%3A gone::"
        f"e.onnx: gone since {lock}: run `onnxgrad ci --update`",
    ]


def test_no_name_makes_a_command_of_its_own(tmp_path: Path) -> None:
    strange = ModelOutcome("a,b:c\n::error::d%0A.onnx")
    strange.fail("failed", 1, "100 %\n::set-env name=PATH::x\r\x1b[2J")
    report = CiReport(str(tmp_path / "r.toml"), (strange,), "l.json")
    (line,) = annotation_lines(report, tmp_path)
    assert "\n" not in line and "\r" not in line and "\x1b" not in line
    assert line.startswith(r"::error file=a%2Cb%3Ac\n\x3a%3Aerror%3A%3Ad%250A.onnx,title=")
    assert "100 %25" in line


def test_the_row_of_a_page_says_why() -> None:
    """What changed first, else the error, else a lint; on a narrow terminal the verdict stays."""
    changed, linted = (
        outcome("models/of/a/long/name/a.onnx", "changed"),
        outcome("b.onnx", "passed"),
    )
    changed.changes = (Change("MatMul", 72, 70), Change("nodes", 9, 8))
    linted.lints = (Finding("nan-weights", "warn", "NaN in weight 'w'"),)
    models = (changed, linted, outcome("c.onnx", "failed", "9 nodes"), outcome("d.onnx", "passed"))
    report = CiReport("r.toml", models, "r.lock.json")
    rows = {str(row[1]): str(row[-1]) for row in models_table(report, page=True).rows}
    assert list(rows.values()) == [
        "9 nodes",
        "MatMul: 72 → 70 and 1 more",
        "warning: NaN in weight 'w' [nan-weights]",
        "",
    ]
    assert "why" not in models_table(report).columns
    file = io.StringIO()
    Console(file=file, width=60, color_system=None).print(rich_of(models_table(report)))
    assert file.getvalue().split()[:2] == ["status", "model"]


def test_many_models_are_named_in_a_line_each_before_their_details() -> None:
    """The reason of a refused one, else what changed in the input; a long line is cut."""
    models = [outcome(f"{name}.onnx", "changed") for name in "abcd"]
    for model in models:
        model.input_summary = "the input changed: 1 of 2 weights (" + "fc.weight" * 20 + ")"
    failed = outcome("e.onnx", "failed", "9 nodes")
    failed.input_summary = "the input changed: nodes (Relu)"
    for many, expected in ((models, 0), ([*models, failed], 5)):
        report = CiReport("r.toml", (*many, outcome("f.onnx", "passed")), "r.lock.json")
        lines = [str(part) for part in ci_parts(report)]
        short = [text for text in lines if ".onnx: " in text]
        assert len(short) == expected and all(len(text) <= 156 for text in short)
    assert short[0] == "e.onnx: 9 nodes" and short[1].startswith("a.onnx: 1 of 2 weights (fc.w")
    assert lines.index(short[-1]) < lines.index("e.onnx")


def test_the_line_of_a_missed_requirement_has_no_path() -> None:
    """A folder with a long name took the place of the reason."""
    where = f"/{'long/' * 40}r.toml"
    models = [
        outcome(f"{i}.onnx", "failed", f"requirement of {where} not met: {i} nodes, not <= 1")
        for i in range(2, 8)
    ]
    for i, model in enumerate(models, 2):
        model.missed = f"{i} nodes, not <= 1"
    report = CiReport(where, tuple(models), "onnxgrad.lock.json", seconds=3.0)
    lines = [str(part) for part in ci_parts(report)]
    assert [f"{i}.onnx: {i} nodes, not <= 1" for i in range(2, 8)] == [
        line for line in lines if line.endswith("not <= 1") and ": " in line and "requ" not in line
    ]
