"""No file that a command reads is one that it writes, whatever the option is called."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxgrad.cli import targets
from onnxgrad.cli.app import parser_for
from onnxgrad.cli.targets import PAIRS, READ, REPORTS, check_reports
from onnxgrad.cli.usage import COMMANDS
from onnxgrad.errors import InputError
from onnxgrad.jobs.ci import work
from onnxgrad.train import step_folder
from tests.cli.conftest import Result
from tests.train.common import classifier

_FILE = re.compile(r"\b(FILE|NPZ|OUT|DIR|FOLDER|MODEL|LIB|CONFIG|A|B)\b")
# what goes there has names of its own; `--seal` writes the manifest of the step that it reads
_FOLDERS = {"out_dir", "folder", "print_after", "seal", "vectors"}


def options_of(command: str) -> Iterator[argparse.Action]:
    """Every argument of a command that takes a file or a folder."""
    (commands,) = (a for a in parser_for([command])._actions if isinstance(a.choices, dict))
    for action in commands.choices[command]._actions:
        if action.nargs != 0 and _FILE.search(str(action.metavar or action.dest.upper())):
            yield action


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_with_a_file_is_known_as_read_or_written(command: str) -> None:
    found = {action.dest for action in options_of(command)}
    assert found <= {"output", *READ, *REPORTS, *PAIRS, *_FOLDERS}


@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_read_is_never_written(command: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    (tmp_path / "link").symlink_to(file)
    found = {action.dest: action for action in options_of(command)}
    for read in found.keys() & set(READ):
        for written in found.keys() & {"output", *REPORTS}:
            many = isinstance(found[read].default, list) or found[read].nargs == "+"
            given = {read: [str(file)] if many else str(file), written: str(tmp_path / "link")}
            with pytest.raises(InputError, match="the input is never changed"):
                check_reports(argparse.Namespace(**given))


@pytest.mark.parametrize("taken", ["new.npz", "other.npz", "out.onnx", "log.csv", "data.npz"])
def test_a_prediction_is_written_where_nothing_else_is(
    taken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("new.npz", "more.npz", "data.npz"):
        Path(name).touch()
    given = {"output": "out.onnx", "log": "log.csv", "data": "data.npz"}
    predict = {"more.npz": "other.npz", "new.npz": taken}
    with pytest.raises(InputError, match=r"^--predict .*(is where .* writes|never changed)"):
        check_reports(argparse.Namespace(**given, predict=predict))


@pytest.mark.parametrize("command", COMMANDS)
def test_no_two_options_write_one_file(command: str, tmp_path: Path) -> None:
    found = [a.dest for a in options_of(command) if a.dest in {"output", *REPORTS}]
    for written in found[1:]:
        given = {found[0]: str(tmp_path / "file"), written: str(tmp_path / "file")}
        with pytest.raises(InputError, match=r"is where .* writes"):
            check_reports(argparse.Namespace(**given))


PROVED = {
    "optimize m.onnx -o o.onnx": 1,
    "optimize m.onnx -o -": 1,
    "optimize m.onnx -o o.onnx --verify each": 1,
    "optimize m.onnx -o o.onnx --no-verify": 0,  # nothing is proved of it
    "ci --update": 1,
    "convert-opset m.onnx --to 20 -o o.onnx": 1,
    "float16 m.onnx -o o.onnx": 0,  # holds what it converted
    "extract m.onnx --outputs h1 -o o.onnx": 1,
    "edit m.onnx --rename h1=hidden -o o.onnx": 1,
    "join m.onnx m.onnx --map x=x --prefix p. -o o.onnx": 1,
    "grad m.onnx -o o.onnx --target logits --adjoint input": 1,
    "grad m.onnx -o o.onnx --target logits --wrt x --jvp": 1,
    "train-step m.onnx -o step --loss cross_entropy": 0,
}


@pytest.mark.parametrize(
    "words",
    [pytest.param(w, marks=() if w in list(PROVED)[:2] else pytest.mark.slow) for w in PROVED],
)
def test_weights_that_change_after_the_proof_are_not_written(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Callable[..., Result]
) -> None:
    """Or they are those of before: no command writes what it never ran."""
    monkeypatch.chdir(tmp_path)
    model = classifier()
    before = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    onnx.save(model, "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    Path("onnxgrad.toml").write_text('[ci]\nmodels = ["m.onnx"]\nout = "built"\n')
    changed: list[int] = []

    def late(function: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **options: object) -> object:
            if not changed:
                changed.append(1)
                data = np.fromfile("m.data", np.float32)
                (data * 7).tofile("m.data")
            return function(*args, **options)

        return call

    for module, name in (
        (targets, "save_all"),
        (targets, "to_bytes"),
        (work, "save_all"),
        (step_folder, "save_together"),
    ):
        monkeypatch.setattr(module, name, late(getattr(module, name)))
    done = run(*words.split())
    assert changed and done.code == PROVED[words]
    files = {p.name for p in tmp_path.rglob("*") if p.is_file()}
    if done.code:
        assert "in m.data changed after the proof read it: nothing was written" in done.err
        assert files == {"m.onnx", "m.data", "onnxgrad.toml"}
    elif words.startswith("train-step"):
        held = dict(step_folder.read_step("step").initial)
        assert all(np.array_equal(held[n], before[n]) for n in before)
    elif "--no-verify" not in words:
        held = {t.name: numpy_helper.to_array(t) for t in onnx.load("o.onnx").graph.initializer}
        assert all(np.allclose(held[n], before[n], atol=1e-3) for n in held.keys() & before.keys())
