from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

from onnxgrad.cli.app import main
from tests.helpers import parse
from tests.plugins.test_place import EXAMPLE


@pytest.fixture
def model(tmp_path: Path) -> str:
    onnx.save(parse(EXAMPLE), tmp_path / "m.onnx")
    return str(tmp_path / "m.onnx")


def test_the_example_of_the_specification(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out.onnx")
    assert (
        main(
            [
                "place",
                model,
                "--device",
                "cuda=Sqrt,Exp",
                "-o",
                out,
                "--json",
                str(tmp_path / "j.json"),
            ]
        )
        == 0
    )
    text = capsys.readouterr().out
    assert "3 copies between devices, 240 B" in text
    assert "session.layer_assignment_settings = cpu(=cpu);cuda(=cuda)" in text
    found = json.loads((tmp_path / "j.json").read_text())
    assert found["devices"] == {"cpu": 3, "cuda": 2}
    assert [(c["made_by"], c["read_by"]) for c in found["copies"]] == [
        ("Add", ["Sqrt"]),
        ("Sqrt", ["Sub"]),
        ("Sub", ["Exp"]),
    ]
    marks = [n.metadata_props[0].value for n in onnx.load(out).graph.node]
    assert marks == ["cpu", "cuda", "cpu", "cpu", "cuda"]


def test_looking_writes_nothing(model: str, tmp_path: Path) -> None:
    assert main(["place", model, "--device", "cuda=Sqrt"]) == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.onnx"]


def test_ir_configurations(model: str, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    assert main(["place", model, "--device", "gpu:0=op:Sqrt", "--ir", "-o", str(out), "-q"]) == 0
    assert list(onnx.load(out).configuration[0].device) == ["cpu", "gpu:0"]


@pytest.mark.parametrize("device", ["cuda", "cuda=NoSuch", "a;b=Sqrt"])
def test_bad_rules_are_one_line(
    model: str, device: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["place", model, "--device", device]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
