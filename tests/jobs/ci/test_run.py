"""`onnxgrad.ci`: the driver of the command, without a shell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import onnx
import pytest

import onnxgrad
from onnxgrad.__main__ import main
from onnxgrad.errors import InputError
from onnxgrad.jobs.ci.declarations import CiOptions
from onnxgrad.jobs.ci.run import CiHooks, ci
from tests.cli.conftest import BRANCHES
from tests.helpers import parse

RECIPE = """
[verify]
checks = ["float64"]
[ci]
models = ["*.onnx"]
out = "build"
[models."b.onnx".require]
nodes = "<= 1"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two models, the second of which is over its budget."""
    monkeypatch.chdir(tmp_path)
    for name in "ab":
        onnx.save(parse(BRANCHES), tmp_path / f"{name}.onnx")
    (tmp_path / "r.toml").write_text(RECIPE)
    return tmp_path


def timeless(report: dict[str, Any]) -> str:
    """The report as text, without how long each part took."""
    return "\n".join(line for line in json.dumps(report, indent=1).split("\n") if "sec" not in line)


def test_python_and_the_command_say_and_write_the_same(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["ci", "r.toml", "--keep-going", "--json", "-"])
    written = (folder / "build" / "a.onnx").read_bytes()
    (folder / "build" / "a.onnx").unlink()
    done = onnxgrad.ci(folder / "r.toml", keep_going=True)
    assert not done.ok and done.exit_code == code == 1
    data = json.loads(capsys.readouterr().out)
    assert timeless(done.to_dict()).replace(f"{folder}/", "") == timeless(data)
    assert (folder / "build" / "a.onnx").read_bytes() == written
    assert str(done).startswith(f"{folder}/r.toml: refused: 1 of 2 models")
    assert "| failed | b.onnx |" in done.to_markdown() and "r.toml" in done.to_html()
    assert ElementTree.fromstring(done.to_junit())[0].get("failures") == "1"


def test_the_caller_wins_over_the_recipe_and_hears_of_everything(folder: Path) -> None:
    heard: list[Any] = []
    hooks = CiHooks(
        accept=lambda plan: heard.append([job.name for job in plan.jobs]),
        refused=lambda outcome: heard.append(outcome.name),
        wrote=lambda path: heard.append(path.name),
    )
    (folder / "r.toml").write_text(RECIPE.partition("[models")[0])
    given = {"out": "o/{name}.onnx", "lock": "l.json", "update": True, "models": ["a*"]}
    assert ci(CiOptions.from_settings({"recipe": "r.toml", **given}), hooks).ok
    assert heard == [["a.onnx"], "a.onnx", "l.json"]
    assert (folder / "o" / "a.onnx").is_file() and not (folder / "build").exists()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, r"or name it: ci\(recipe\)$"),
        ({"recipe": "r.toml", "plugins": "no.py"}, r"^plugins: .*/no\.py: no such file"),
        (
            {"recipe": "r.toml", "jobs": 2, "dask": "tcp://x"},
            r"^jobs does not apply with dask: the",
        ),
        ({"recipe": "r.toml", "jobs": 0}, r"^ci: jobs must be at least 1|^ci: jobs must be from 1"),
        ({"recipe": "r.toml", "models": ["no*"]}, r"^r\.toml: no file matches 'no\*'"),
    ],
)
def test_what_is_refused_names_the_option_as_python_has_it(
    folder: Path, given: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        onnxgrad.ci(**given)
    assert not (folder / "build").exists()


OPENING = """
require = { nodes = "<= input" }
[ci]
models = ["*.onnx"]
out = "build"
[before]
open_batch = { symbol = "rows" }
"""


def test_a_batch_is_opened_and_proved_and_the_lock_knows_its_size(folder: Path) -> None:
    """A model whose rows are not independent is refused, and the other one is written."""
    fixed = "g (float[1,4] x) => (float[1,4] y) { a = Identity(x) b = Mul(a, a) y = Sub(b, a) }"
    mean = "g (float[1,4] x) => (float[1,4] y) { m = ReduceMean<axes=[0]>(x) y = Sub(x, m) }"
    onnx.save(parse(fixed, opset=17), folder / "a.onnx")
    onnx.save(parse(mean, opset=17), folder / "b.onnx")
    (folder / "r.toml").write_text(OPENING)
    good, bad = onnxgrad.ci("r.toml", keep_going=True).models
    assert good.result is not None and good.result.inputs == {"x": "f32[rows,4]"}
    assert good.ok and good.notes == ("batch opened before the passes: equal on cpu",)
    assert (bad.status, bad.exit_code) == ("not proved", 1) and "--" not in bad.error
    assert bad.error.startswith("batch opened before the passes: not proved: every row has the")
    assert [p.name for p in (folder / "build").iterdir()] == ["a.onnx"]
    assert onnxgrad.ci("r.toml", models=["a.onnx"], update=True).ok
    assert '"x": "f32[rows,4]"' in (folder / "r.lock.json").read_text()
