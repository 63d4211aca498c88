from __future__ import annotations

import json
import re
from pathlib import Path

import onnx
import pytest

from onnxgrad.cli.app import main
from tests.helpers import parse
from tests.report.html.common import section_of

QUICK = ["--rounds", "1", "--seconds", "0.01"]


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "small.onnx"
    onnx.save(parse("g (float[N,3] x) => (float[N,3] y) { y = Relu(x) }"), path)
    return str(path)


def another(folder: Path, text: str, name: str = "other.onnx") -> str:
    folder.mkdir(exist_ok=True)
    onnx.save(parse(text), folder / name)
    return str(folder / name)


def test_a_table_and_json(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = another(
        tmp_path / "b", "g (float[N,3] x) => (float[N,3] y) { y = Neg(x) }", "small.onnx"
    )
    target, page = tmp_path / "bench.json", tmp_path / "bench.html"
    assert (
        main(
            [
                "bench",
                model,
                other,
                *QUICK,
                "--dim",
                "N=4",
                "--json",
                str(target),
                "--html",
                str(page),
            ]
        )
        == 0
    )
    printed = capsys.readouterr().out
    assert "wall ratio" in printed and "N=4" in printed
    assert section_of(page.read_text(encoding="utf-8"), "rows")["title"] == "Latency"
    found = json.loads(target.read_text())
    assert [t["name"] for t in found["timings"]] == [model, other], (
        "two files of one name go by their paths"
    )
    assert found["timings"][0]["wall_ratio"]["median"] == 1.0
    assert found["exit_code"] == 0


def test_the_answer_is_no(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chain = "  ".join(f"v{i + 1} = Tanh(v{i})" for i in range(200))
    slow = another(
        tmp_path, f"g (float[N,3] x) => (float[N,3] y) {{ v0 = Relu(x)  {chain}  y = Neg(v200) }}"
    )
    assert main(["bench", model, slow, *QUICK, "--require", "1.5"]) == 1
    complaint = capsys.readouterr().err
    found = re.search(
        r"other.onnx takes ([\d.]+) times the wall time of small.onnx \(fastest runs of 1 round\), "
        r"--require allows 1.5: ([\d.e+]+) % too much",
        complaint,
    )
    assert found and float(found[2]) == pytest.approx(100 * (float(found[1]) / 1.5 - 1), rel=0.1)
    broken = another(tmp_path, "g (float[N,3] x) => (float[N,3] y) { y = NoSuchOperator(x) }")
    assert main(["bench", model, broken, *QUICK]) == 1
    assert "other.onnx does not run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--rounds", "0"], "--rounds"),
        (["--dim", "N"], "--dim"),
        (["--seconds", "0"], "--seconds must be above 0"),
    ],
)
def test_bad_usage(
    model: str, words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", model, *words]) == 2
    assert complaint in capsys.readouterr().err


def test_other_inputs(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = another(tmp_path, "g (float[3] z) => (float[3] y) { y = Neg(z) }")
    assert main(["bench", model, other, *QUICK]) == 2
    assert "cannot share feeds" in capsys.readouterr().err


def test_one_model_alone_cannot_be_required_to_be_faster(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", model, "--require", "0.9", *QUICK]) == 2
    assert "--require compares with the first model" in capsys.readouterr().err
