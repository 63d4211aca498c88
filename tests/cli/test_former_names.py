"""Former names of options work, with a note that has the present name."""

from __future__ import annotations

from pathlib import Path

import pytest

import onnxgrad
from onnxgrad.errors import RunWarning
from onnxgrad.jobs.recipe import parse

MODEL = "models/lstmcell.onnx"


def test_a_former_keyword() -> None:
    with pytest.warns(RunWarning, match="^legs is now checks$"):
        report = onnxgrad.verify(MODEL, MODEL, legs=["onnxruntime"])
    assert [*report.checks] == ["onnxruntime"] and report.legs is report.checks


def test_a_former_flag_adds_to_the_present_one(run) -> None:
    done = run("verify", MODEL, MODEL, "--leg", "onnxruntime")
    assert done.code == 0 and "float64 " not in done.out and "onnxruntime " in done.out
    assert done.err == "note: --leg is now --check\n"
    both = run("verify", MODEL, MODEL, "--check", "float64", "--leg", "onnxruntime")
    assert both.code == 0 and "float64 " in both.out and "onnxruntime " in both.out
    assert "--leg" not in run("verify", "--help").out


def test_former_keys_of_a_recipe(tmp_path: Path) -> None:
    table = {"verify": {"legs": ["float64"]}, "require": {"legs": ["float64"]}}
    with pytest.warns(RunWarning) as notes:
        recipe = parse(table, str(tmp_path / "onnxgrad.toml"))
    assert {str(n.message) for n in notes} == {
        "verify.legs is now verify.checks",
        "legs is now checks",
    }
    assert recipe.common == {"verify.checks": ("float64",), "require": {"checks": ["float64"]}}
