"""The proofs of models that are cut, changed, chained or split: a check that did not run shows no
numbers.
"""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from onnxgrad.cli.app import main
from onnxgrad.verify.report import Check, _check
from tests.helpers import parse

# the float64 reference does not know the first operator
HASH = """<ir_version: 10, opset_import: ["" : 20, "com.microsoft" : 1]>
  g (int32[N,4] x, int32[4] w) => (uint32[N,4] y) {
  a = Abs (w) b = Add (x, a) y = com.microsoft.MurmurHash3 (b) }"""
NEXT = "g (uint32[N,4] u) => (uint32[N,4] v) { v = Identity (u) }"
COMMANDS = {
    "edit": "edit a.onnx -o out.onnx --rename y=z",
    "extract": "extract a.onnx -o out.onnx --outputs y",
    "join": "join a.onnx b.onnx -o out.onnx --map y=u",
    "lift": "lift a.onnx -o out.onnx --prepare once.onnx --weights w",
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_a_check_that_did_not_run_shows_no_numbers(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, model in (("a.onnx", onnx.parser.parse_model(HASH)), ("b.onnx", parse(NEXT))):
        onnx.save(model, name)
    assert main(command.split()) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    (row,) = [row for row in rows if row[:1] == ["float64"]]
    assert row[1:5] == ["0", "did", "not", "run:"]
    if not command.startswith("extract"):
        assert main([*command.split(), "--check", "onnxruntime"]) == 0
        assert "float64" not in capsys.readouterr().out


def test_a_check_that_ran_in_part_says_so() -> None:
    found = _check(
        [Check("float64", True, cases=1), Check("float64", False, "over its budget of 20 s")]
    )
    assert found.ran and found.cases == 1
    assert found.gap == "float64 check only in part (over its budget of 20 s)"


def test_the_cases_of_a_changed_model_cover_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One number of one seed is above 0 or below 0, never both."""
    path = tmp_path / "a.onnx"
    onnx.save(parse("g (float[1] x) => (float[1] y) { y = Abs (x) }"), path)
    command = ["edit", str(path), "-o", str(tmp_path / "out.onnx"), "--rename", "y=z"]
    seeds = [argument for seed in range(6) for argument in ("--seed", str(seed))]
    assert main([*command, *seeds, "--coverage", "100%"]) == 0
    assert "1 of 1 thresholds" in capsys.readouterr().out
    assert main([*command, "--seed", "0", "--coverage", "100%"]) == 1
    assert "coverage is" in capsys.readouterr().err
