"""A gradient's check held to bounds of the user's own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from onnxgrad.cli.app import main
from onnxgrad.errors import InputError
from onnxgrad.grad.checking.report import GradientReport, ValueCheck, bounded
from onnxgrad.verify.bounds import Bounds
from tests.helpers import parse

OFF = ValueCheck("x", 1.01, 1.0, 0.01, True)
REPORT = GradientReport((OFF, ValueCheck("w", 2.0, 2.0, 0.0, True)), 1e-4, "cpu")


@pytest.mark.parametrize(
    ("atol", "rtol", "metric", "verdict"),
    [
        (None, 0.02, None, "agrees"),
        (None, 0.005, None, "differs"),
        (0.02, None, None, "agrees"),
        ({"x": 0.02}, None, None, "agrees"),
        ({"w": 0.02}, None, None, "differs"),
        (0.0, None, None, "differs"),
        (None, None, "worst=0.02", "agrees"),
        (None, None, "x:psnr=60", "differs"),
    ],
)
def test_a_bound_decides_in_place_of_the_tolerance(
    atol: object, rtol: object, metric: str | None, verdict: str
) -> None:
    assert REPORT.verdict == "differs"
    found = bounded(REPORT, Bounds.of(atol, rtol, metric), ["x", "w"])  # type: ignore[arg-type]
    assert found.verdict == verdict and found.bounds and f"({found.bounds}, cpu)" in str(found)


def test_without_bounds_the_report_is_as_it_was() -> None:
    assert bounded(REPORT, Bounds(), []) is REPORT


def test_what_was_not_judged_stays_so() -> None:
    report = replace(REPORT, values=(replace(OFF, judged=False, why="a kink"),))
    found = bounded(report, Bounds.of(None, 0.5, None), ["x"])
    assert found.verdict == "not proved" and "a kink" in found.unproved


def test_bounds_that_have_no_meaning() -> None:
    with pytest.raises(InputError, match="a slope is one: use worst or psnr"):
        bounded(REPORT, Bounds.of(None, None, "cosine=0.9"), ["x", "w"])
    with pytest.raises(InputError, match="a bound is given for 'q'"):
        bounded(REPORT, Bounds.of({"q": 1.0}, None, None), ["x", "w"])


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "g (float[3] x) => (float y) { s = Exp(x) y = ReduceSum <keepdims = 0> (s) }"
    onnx.save(parse(text), tmp_path / "m.onnx")
    words = ["grad", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "g.onnx")]
    assert main([*words, "--rtol", "1e-3"]) == 0
    assert "(rtol=0.001, cpu)" in capsys.readouterr().out
    assert main([*words, "--rtol", "0", "--atol", "1e-300"]) == 1
    assert "DIFFERS" in capsys.readouterr().err
    assert main([*words, "--jvp", "--metric", "worst=1e-3"]) == 0
    assert main([*words, "--metric", "top1=1"]) == 2
    assert "a slope is one" in capsys.readouterr().err
