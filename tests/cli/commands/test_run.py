"""`onnxgrad run`: what it shows and saves."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxgrad.__main__ import main
from tests.helpers import parse
from tests.jobs.inspection.test_one_run import TEXT, X


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "m.onnx"
    onnx.save(parse(TEXT), file)
    return file


def test_the_command_shows_and_saves(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    z = np.array([[1, 0], [2, 2]], np.float32)
    np.savez(tmp_path / "in.npz", x=X, z=z)
    out = tmp_path / "out.npz"
    assert main(["run", str(path), "--input", str(tmp_path / "in.npz"), "--save", str(out)]) == 0
    (row,) = [
        line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("y ")
    ]
    assert row == ["y", "float32[2,", "2]", "1", "2", "1.5", "1"], "one of four is infinite"
    with np.load(out) as kept:
        assert sorted(kept) == ["s", "y"] and kept["y"].tolist() == [[1, np.inf], [1.5, 2]]
    assert main(["run", str(path), "--evaluator", "float64", "--json", "-"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["evaluator"] == "float64" and [o["output"] for o in told["outputs"]] == ["y", "s"]


def test_sequences_texts_and_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = tmp_path / "s.onnx", tmp_path / "o.npz"
    onnx.save(parse("""g (float[2] x, string[2] t) => (seq(float[2]) l, string[2] u, float[0] e)
        <float[0] e = {}> { l = SequenceConstruct (x, x) u = Identity (t) }"""), file)  # fmt: skip
    assert main(["run", str(file), "--save", str(out)]) == 0
    told = capsys.readouterr().out
    assert "a sequence of 2" in told and "note: l was not saved: it is not a tensor" in told
    with np.load(out) as kept:
        assert kept["u"].shape == (2,) and kept["e"].shape == (0,)
