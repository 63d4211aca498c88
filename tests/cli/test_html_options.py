"""`--html FILE` of each command that has it: the page is written whole, also where the answer is no."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

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
