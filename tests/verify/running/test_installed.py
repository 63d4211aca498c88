from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import onnx
import pytest

import onnxgrad
from onnxgrad.verify import proof
from onnxgrad.verify.running import installed
from onnxgrad.verify.running.installed import doctor_report, too_old
from onnxgrad.verify.running.session import versions
from onnxgrad.vocabulary import PROVIDERS


def test_the_report_is_json_and_true() -> None:
    report = doctor_report()
    assert json.loads(json.dumps(report)) == report
    assert report["packages"]["onnx"] == onnx.__version__
    assert report["onnxruntime"] == versions()["onnxruntime"]
    assert report["max_ir"] >= 10 and report["max_opset"] >= 20
    assert set(report["providers"]) == set(PROVIDERS)
    assert report["providers"]["cpu"] == {"works": True, "why": ""}
    cuda = report["providers"]["cuda"]
    assert cuda["works"] or "onnxruntime-gpu[cuda,cudnn]" in cuda["why"]


def test_a_version_below_the_floor_of_pyproject_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `doctor` and in each proof; the floors are those of pyproject.toml."""
    cpu = next(
        line for line in Path("pyproject.toml").read_text().splitlines() if line.startswith("cpu =")
    )
    floors = dict(zip(("newer", "older"), re.findall(r"onnxruntime>=([\d.]+)", cpu), strict=True))
    assert {*installed._FLOORS.values()} == {*floors.values()}
    floor = floors["newer" if sys.version_info >= (3, 11) else "older"]
    assert [too_old(v) != "" for v in ("1.9.0", "1.22.1", floor, f"{floor}.dev20261101", "2.0")] == [
        True, True, False, False, False,
    ]  # fmt: skip
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { y = Neg(x) }'
    )
    assert not any("older than" in note for note in onnxgrad.verify(model, model).notes)
    old = {**versions(), "onnxruntime": "1.19.2"}
    monkeypatch.setattr(installed, "versions", lambda: old)
    monkeypatch.setattr(proof, "versions", lambda: old)
    assert any(f"1.19.2 is older than {floor}" in text for text in doctor_report()["problems"])
    assert any("1.19.2 is older" in note for note in onnxgrad.verify(model, model).notes)
