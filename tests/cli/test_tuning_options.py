"""`optimize --tune`: the file of decisions, its replay, and options that do not go together."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

import onnxgrad
from onnxgrad.errors import InputError
from tests.cli.conftest import Result
from tests.jobs.tuning.test_choices import branches


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    onnx.save(branches(), path)
    return path


def test_tuned_and_replayed(model: Path, run: Callable[..., Result], tmp_path: Path) -> None:
    out, again = tmp_path / "a" / "out.onnx", tmp_path / "again.onnx"
    out.parent.mkdir()
    done = run("optimize", model, "-o", out, "--tune", "--tune-time", "1", "--json", tmp_path / "j")
    assert done.code == 0 and "choices kept, measured on cpu, 1 thread" in done.out
    file = out.parent / "onnxgrad.tune.json"
    data = json.loads(file.read_text())
    assert json.loads((tmp_path / "j").read_text())["models"][0]["tuning"] == data
    done = run("optimize", model, "-o", again, "--tune-from", file)
    assert done.code == 0 and again.read_bytes() == out.read_bytes()
    assert not (tmp_path / "onnxgrad.tune.json").exists()


def test_where_decisions_go(model: Path, run: Callable[..., Result], tmp_path: Path) -> None:
    quick = ("--tune", "--tune-time", "0.01", "--no-verify")
    assert run("optimize", model, "--out-dir", tmp_path / "o", *quick).code == 0
    assert (tmp_path / "o" / "model.onnxgrad.tune.json").is_file()
    assert run("optimize", model, "--dry-run", *quick, "--tune-file", tmp_path / "t").code == 0
    assert (tmp_path / "t").is_file()
    assert run("optimize", model, "--dry-run", *quick).code == 0


@pytest.mark.parametrize(
    "options",
    [
        ["--tune-time", "3"],
        ["--tune-file", "x"],
        ["--tune-from", "x", "--tune"],
        ["--tune-from", "x", "--tune-time", "3"],
        ["--tune-from", "x"],
        ["--tune", "--tune-time", "0"],
    ],
)
def test_refused(options: list[str], model: Path, run: Callable[..., Result]) -> None:
    done = run("optimize", model, "--dry-run", *options)
    assert done.code == 2 and done.err.count("\n") == 1


def test_in_python(model: Path) -> None:
    done = onnxgrad.optimize(model, tune=0.5, report=True)
    assert done.tuning is not None and "choices kept" in str(done)
    again = onnxgrad.optimize(model, tune=done.tuning)
    assert again == done.model
    assert onnxgrad.optimize(model, report=True).tuning is None
    with pytest.raises(InputError, match="positive"):
        onnxgrad.optimize(model, tune=-1)
