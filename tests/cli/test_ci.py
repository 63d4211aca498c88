"""`onnxgrad ci` as an engineer meets it at the end of a pipeline."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import onnx
import pytest

from onnxgrad.report.ci import SCHEMA
from tests.cli.conftest import BRANCHES, Result
from tests.helpers import parse

Run = Callable[..., Result]
SMALL = """g (float[N,4] x) => (float[N,4] y) <float[4,4] w = {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16}>
  { a = Identity(x)  b = MatMul(a, w)  y = Relu(b) }"""
RECIPE = """
[ci]
models = ["models/*.onnx"]
out = "build/{name}.onnx"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two models, and a recipe that takes both."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    onnx.save(parse(BRANCHES), tmp_path / "models" / "branches.onnx")
    onnx.save(parse(SMALL), tmp_path / "models" / "small.onnx")
    (tmp_path / "onnxgrad.toml").write_text(RECIPE)
    return tmp_path


def report(result: Result) -> dict[str, Any]:
    """What `--json -` wrote, which is what the schema says."""
    data: dict[str, Any] = json.loads(result.out)
    jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text())).validate(data)
    assert data["exit_code"] == result.code
    return data


def statuses(result: Result) -> dict[str, str]:
    return {m["name"]: m["status"] for m in report(result)["models"]}


def test_a_first_day(folder: Path, run: Run) -> None:
    first = run("ci")
    assert first.code == 0 and "no onnxgrad.lock.json to compare with" in first.out
    assert len(onnx.load(folder / "build" / "small.onnx").graph.node) == 2
    assert not (folder / "onnxgrad.lock.json").exists()
    assert run("ci", "--update").code == 0
    lock = (folder / "onnxgrad.lock.json").read_bytes()
    again = run("ci", "--json", "-")
    assert statuses(again) == {"models/branches.onnx": "passed", "models/small.onnx": "passed"}
    assert run("ci", "--update").code == 0
    assert (folder / "onnxgrad.lock.json").read_bytes() == lock


def test_what_changed_since_the_lock_is_said(folder: Path, run: Run) -> None:
    assert run("ci", "--update").code == 0
    onnx.save(
        parse(SMALL.replace("Relu", "Tanh").replace("x) =>", "z) =>").replace("(x)", "(z)")),
        folder / "models" / "small.onnx",
    )
    result = run("ci", "--json", "-")
    changed = report(result)["models"][0]
    assert result.code == 0 and changed["status"] == "changed"
    assert changed["changes"] == [
        {"what": "inputs.x", "before": "f32[N,4]", "after": None},
        {"what": "inputs.z", "before": None, "after": "f32[N,4]"},
        {"what": "operators.Relu", "before": 1, "after": None},
        {"what": "operators.Tanh", "before": None, "after": 1},
    ]
    shown = run("ci").out
    assert "changed operators.Relu: 1 → none" in shown and shown.index("changed") < shown.index(
        "passed"
    )


def test_a_budget_that_is_missed(folder: Path, run: Run) -> None:
    (folder / "onnxgrad.toml").write_text(
        RECIPE + '[models."small.onnx"]\nrequire = { nodes = "<= 1", bytes = "<= -1%" }\n'
    )
    result = run("ci", "--keep-going")
    assert result.code == 1
    assert "required nodes <= 1, found 2, allowed 1" in result.out
    assert "required bytes" not in result.out  # which it does
    assert not (folder / "build" / "small.onnx").exists()
    assert (folder / "build" / "branches.onnx").exists()
    failed = report(run("ci", "--keep-going", "--json", "-"))["models"][0]
    assert failed["status"] == "failed" and failed["output"] is None
    assert [(r["name"], r["held"]) for r in failed["requirements"]] == [
        ("nodes", False),
        ("bytes", True),
    ]
