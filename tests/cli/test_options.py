"""Flags that several commands share: pages and tuning."""

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
from tests.report.html.common import data_of


def reports(path: Path) -> list[dict[str, object]]:
    return data_of(path.read_text(encoding="utf-8"))["reports"]


def test_optimize_one_model_and_several(run: Callable, branches: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    assert run("optimize", branches, "--dry-run", "--no-verify", "--html", page).code == 0
    assert [r["title"] for r in reports(page)] == [str(branches)]
    first = page.read_bytes()
    assert run("optimize", branches, "--dry-run", "--no-verify", "--html", page).code == 0
    assert page.read_bytes() == first
    models = [branches, "models/training/mlp.onnx"]
    assert run("optimize", *models, "--dry-run", "--no-verify", "--html", page).code == 0
    assert len(reports(page)) == 2


def test_diff_inspect_and_grad(run: Callable, branches: Path, tmp_path: Path) -> None:
    page, mlp = tmp_path / "report.html", "models/training/mlp.onnx"
    assert run("diff", branches, mlp, "--html", page).code == 1
    assert reports(page)[0]["what"] == "diff"
    assert run("inspect", mlp, "--weights", "--html", page).code == 0
    assert reports(page)[0]["title"] == mlp
    words = (
        "grad",
        mlp,
        "-o",
        tmp_path / "g.onnx",
        "--no-verify",
        "--checkpoint",
        "auto",
        "--html",
        page,
    )
    assert run(*words).code == 0
    assert [s["kind"] for s in reports(page)[0]["sections"]][:2] == ["graph", "curves"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["", "nowhere/report.html", "."])
def test_a_place_that_is_none_is_refused_before_work(
    run: Callable, branches: Path, tmp_path: Path, name: str
) -> None:
    place = name and tmp_path / name
    found = run("optimize", branches, "-o", tmp_path / "out.onnx", "--html", place)
    assert found.code == 2 and len(found.lines) == 1 and "--html" in found.err
    assert not (tmp_path / "out.onnx").exists()


def test_it_goes_where_nothing_else_goes(run: Callable, branches: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert "is where -o writes the model" in run("optimize", branches, "-o", out, "--html", out).err
    assert "is where --json writes" in run("inspect", branches, "--json", out, "--html", out).err
    before = branches.read_bytes()
    assert run("inspect", branches, "--html", branches).code == 2
    assert branches.read_bytes() == before


def test_what_is_no_gradient_graph_has_no_page(run: Callable, tmp_path: Path) -> None:
    words = ("models/training/mlp.onnx", "-o", tmp_path / "g.onnx", "--html", tmp_path / "p.html")
    found = run("grad", *words, "--mark", "--checkpoint", "auto")
    assert found.code == 2 and "--html shows a gradient graph" in found.err


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    onnx.save(branches(), path)
    return path


@pytest.mark.slow
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
