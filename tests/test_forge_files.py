"""The action and the pre-commit hooks for users, run as the forge and pre-commit would."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import onnx
import pytest
import yaml

from onnxgrad.__main__ import main
from tests.cli.conftest import BRANCHES
from tests.every_command import console_script
from tests.helpers import parse

ROOT = Path(__file__).resolve().parents[1]
ACTION = yaml.safe_load((ROOT / ".github/actions/onnxgrad/action.yml").read_text(encoding="utf-8"))
HOOKS = {
    hook["id"]: hook
    for hook in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
}
RECIPE = '[ci]\nmodels = ["models/*.onnx"]\nout = "build/{name}.onnx"\n'


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A user's repository: two models and a recipe."""
    (tmp_path / "models").mkdir()
    onnx.save(parse(BRANCHES), tmp_path / "models" / "a.onnx")
    onnx.save(parse("g (float[N] x) => (float[N] y) { a = Identity(x) y = Exp(a) }"),
              tmp_path / "models" / "b.onnx")  # fmt: skip
    (tmp_path / "onnxgrad.toml").write_text(RECIPE)
    return tmp_path


def action_step(name: str, repository: Path, **inputs: str) -> subprocess.CompletedProcess[str]:
    """A step of the action, its expressions put in and its shell as the forge does."""
    (step,) = (s for s in ACTION["runs"]["steps"] if s["name"] == name)
    values = {k: str(v["default"]) for k, v in ACTION["inputs"].items()} | inputs
    scratch = repository.parent / "scratch"
    scratch.mkdir(exist_ok=True)
    contexts = {f"inputs.{k}": v for k, v in values.items()}
    contexts["github.action_path"] = str(ROOT / ".github" / "actions" / "onnxgrad")

    def filled(text: str) -> str:
        return re.sub(r"\$\{\{ *(.*?) *\}\}", lambda m: contexts[m[1]], text)

    assert step["shell"] == "bash" and "${{" not in step["run"], "what is put in may be a command"
    bin_of_tests = Path(sys.executable).parent
    env = os.environ | {k: filled(v) for k, v in step["env"].items()}
    env |= {
        "PATH": f"{bin_of_tests}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT),
        "RUNNER_TEMP": str(scratch), "GITHUB_WORKSPACE": str(repository),
        "GITHUB_STEP_SUMMARY": str(scratch / "summary.md"),
        "GITHUB_OUTPUT": str(scratch / "output"),
    }  # fmt: skip
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
        cwd=repository / filled(step.get("working-directory", ".")),
        env=env, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip


def outputs_of(repository: Path) -> dict[str, Path]:
    lines = (repository.parent / "scratch" / "output").read_text().splitlines()
    return {name: Path(path) for name, path in (line.split("=", 1) for line in lines)}


@pytest.mark.slow
def test_the_action(repository: Path) -> None:
    done = action_step("onnxgrad ci", repository)
    assert done.returncode == 0, done.stderr
    assert (repository / "build" / "b.onnx").exists()
    summary = (repository.parent / "scratch" / "summary.md").read_text()
    assert "| passed | models/a.onnx |" in summary
    made = outputs_of(repository)
    assert set(made) == set(ACTION["outputs"])
    assert json.loads(made["json"].read_text())["exit_code"] == 0
    assert ElementTree.parse(made["junit"]).getroot()[0].get("tests") == "2"
    assert "models/a.onnx" in made["html"].read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_action_fails_with_the_models(repository: Path) -> None:
    (repository / "other.toml").write_text(RECIPE + '[models."*b.onnx".require]\nnodes = "<= 0"\n')
    done = action_step("onnxgrad ci", repository, config="other.toml")
    assert done.returncode == 1 and outputs_of(repository)["html"].exists()
    assert "::error file=models/b.onnx,title=onnxgrad%3A failed::" in done.stderr
    assert "required nodes" in (repository.parent / "scratch" / "summary.md").read_text()
    none = action_step("onnxgrad ci", repository, config="$(touch broken).toml")
    assert none.returncode == 2 and not (outputs_of(repository)["json"].parent / "ci.html").exists()
    assert not (repository / "broken").exists()


def test_the_page_is_uploaded_also_after_a_failure() -> None:
    (step,) = (s for s in ACTION["runs"]["steps"] if s["name"] == "Upload the page")
    assert step["with"]["path"] == ACTION["outputs"]["html"]["value"]
    assert "always()" in step["if"] and "inputs.artifact" in step["if"]


def test_the_release_is_what_the_script_built_and_tried() -> None:
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")
    jobs = yaml.safe_load(text)["jobs"]
    commands = [s["run"] for job in jobs.values() for s in job["steps"] if "run" in s]
    install, build = commands
    assert install.startswith("python -m pip install") and "hatchling" in install
    assert build == "python scripts/test_wheel.py --keep dist"
    assert jobs["publish"]["needs"] == "build"


def test_the_action_installs_itself() -> None:
    (step,) = (s for s in ACTION["runs"]["steps"] if s["name"] == "Install")
    place = ROOT / ".github" / "actions" / "onnxgrad" / ".." / ".." / ".."
    assert "$HERE/../../..[cpu]" in step["run"] and (place / "pyproject.toml").is_file()


def test_no_module_of_the_repository_runs_before_a_line_of_ours() -> None:
    """`python -m` searches the working folder first: pip is isolated, and ours is the script."""
    for step in (s for s in ACTION["runs"]["steps"] if "run" in s):
        assert re.findall(r"^ *(?:\S+=\S+ )*python.*", step["run"], re.MULTILINE) in (
            [],
            ['python -I -m pip install --quiet "${PACKAGE:-$HERE/../../..[cpu]}"'],
        )


def hook(name: str, files: list[str]) -> list[str]:
    """The words of a hook after `onnxgrad`, with those of the files that are its own."""
    said: dict[str, Any] = HOOKS[name]
    entry = shlex.split(said["entry"])
    assert entry[0] == "onnxgrad"
    own = [f for f in files if re.search(said["files"], f)]
    return [*entry[1:], *(own if said.get("pass_filenames", True) else [])]


@pytest.mark.slow
def test_the_hooks(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = ["models/a.onnx", "models/b.onnx", "README.md", "onnxgrad.toml"]
    for name in HOOKS:
        done = subprocess.run(
            [*console_script(repository.parent), *hook(name, files)], cwd=repository,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    (repository / "models" / "b.onnx").write_bytes(b"no model")
    monkeypatch.chdir(repository)
    for name in HOOKS:
        assert main(hook(name, files)) == 2
        assert "models/b.onnx" in "".join(capsys.readouterr())
