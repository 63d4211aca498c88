"""What `onnxgrad ci` writes for machines and pages, as a forge would ask for it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import jsonschema
import onnx
import pytest

from onnxgrad.report.ci import SCHEMA
from tests.cli.conftest import BRANCHES, Result
from tests.helpers import parse

Run = Callable[..., Result]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model that is over its budget."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    onnx.save(parse(BRANCHES), tmp_path / "branches.onnx")
    (tmp_path / "onnxgrad.toml").write_text(
        '[ci]\nmodels = ["*.onnx"]\n[models."branches.onnx".require]\nnodes = "<= 1"\n'
    )
    return tmp_path


def test_all_of_them(folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("ci", "--junit", "ci.xml", "--markdown", "ci.md")
    found = run(*words)
    assert found.code == 1 and "::error" not in found.err
    suite = ElementTree.parse(folder / "ci.xml").getroot()[0]
    assert (suite.get("tests"), suite.get("failures")) == ("1", "1")
    page = (folder / "ci.md").read_text()
    assert page.startswith("### onnxgrad.toml: refused: 1 of 1 model\n")
    assert "| failed | branches.onnx |" in page and "required nodes \\<= 1" in page
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(folder.parent))
    said = run(*words, "--json", "-").err.splitlines()
    wanted = (
        f"::error file={folder.name}/branches.onnx,title=onnxgrad%3A failed::missed: required nodes"
    )
    assert any(line.startswith(wanted) for line in said)
    assert "::error" not in run(*words, "--no-annotations").err


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--junit", ""), "--junit: the name of the file is empty"),
        (("--junit", "no/ci.xml"), "--junit no/ci.xml: cannot be written"),
        (("--markdown", "branches.onnx"), "--markdown branches.onnx: "),
        (("--markdown", "onnxgrad.toml"), "--markdown onnxgrad.toml: "),
        (("--junit", "a", "--markdown", "./a"), "--markdown ./a: is where --junit writes"),
        (("--json", "a", "--junit", "a"), "--junit a: is where --json writes"),
        (("--html", "a", "--markdown", "a"), "--html a: is where --markdown writes"),
        (("--json", "branches.onnx"), "--json branches.onnx: "),
        (("--html", "branches.onnx"), "--html branches.onnx: "),
    ],
)
def test_a_place_that_is_none_is_refused_first(
    folder: Path, run: Run, words: tuple[str, ...], why: str
) -> None:
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    found = run("ci", *words)
    assert found.code == 2 and why in found.err and found.err.count("\n") == 1
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before


def test_where_a_model_will_be_written_is_taken(folder: Path, run: Run) -> None:
    recipe = folder / "onnxgrad.toml"
    recipe.write_text(recipe.read_text().replace("[ci]", '[ci]\nout = "build"'))
    found = run("ci", "--junit", "build/branches.onnx")
    assert found.code == 2 and "is where the recipe's out writes a model" in found.err


def test_a_report_may_stand_beside_the_results(folder: Path, run: Run) -> None:
    """In a folder that this very run makes."""
    recipe = folder / "onnxgrad.toml"
    recipe.write_text(recipe.read_text().replace("[ci]", '[ci]\nout = "build"'))
    found = run("ci", "--json", "build/ci.json", "--markdown", "build/ci.md")
    assert found.code == 1 and (folder / "build/ci.json").is_file(), found.err


def test_devices_may_be_given_twice(folder: Path, run: Run) -> None:
    assert run("ci", "--junit", "/dev/null", "--markdown", "/dev/null").code == 1


def test_the_share_of_exact_rewrites(folder: Path, run: Run) -> None:
    recipe = folder / "onnxgrad.toml"
    recipe.write_text(
        'merge = "always"\nrequire = { exact = ">= 90%" }\n[ci]\nmodels = ["*.onnx"]\n'
    )
    schema = json.loads(SCHEMA.read_text())
    assert run("ci", "--json", "ci.json", "--markdown", "ci.md").code == 0
    found = json.loads((folder / "ci.json").read_text())
    jsonschema.validate(found, schema)
    exact = found["models"][0]["exact"]
    assert exact["share"] == 1 and exact["rewrites"] == exact["exact"] >= 1
    assert f"| {exact['rewrites']} of {exact['rewrites']} |" in (folder / "ci.md").read_text()
    recipe.write_text(recipe.read_text().replace(">= 90%", "> 100%"))
    done = run("ci")
    assert done.code == 1 and "required exact > 100%, found 100, allowed 100" in done.out
