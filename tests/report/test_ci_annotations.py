"""Annotations of `onnxgrad ci`: one line each, which no name in a model can end or forge."""

from __future__ import annotations

from pathlib import Path

from onnxgrad.pipeline.ci.changes import Change
from onnxgrad.pipeline.ci.outcome import ModelOutcome
from onnxgrad.report.ci import CiReport
from onnxgrad.report.ci_annotations import annotation_lines


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
