"""No file that a command reads is one that it writes, whatever the option is called and however the
file is spelled.
"""

from __future__ import annotations

import argparse
import os
import re
import threading
from collections.abc import Callable, Iterator
from itertools import count, cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxgrad.cli import targets
from onnxgrad.cli.app import parser_for
from onnxgrad.cli.arguments import Row
from onnxgrad.cli.parser import FILES
from onnxgrad.cli.targets import check_reports, protected
from onnxgrad.cli.usage import COMMANDS
from onnxgrad.errors import InputError
from onnxgrad.ir.storage import protection
from onnxgrad.jobs.ci import work
from onnxgrad.jobs.declared import Option, options_of
from onnxgrad.train import step_folder
from onnxgrad.verify.running.child_process import Child
from tests.cli.conftest import Result
from tests.train.common import classifier

_FILE = re.compile(r"\b(FILE|NPZ|OUT|DIR|FOLDER|MODEL|LIB|CONFIG|A|B)\b")


def declared(command: str, *uses: str) -> dict[str, Row | Option | None]:
    """The arguments of a command that use files in one of these ways."""
    job = COMMANDS[command].options
    rows = {r.dest: r for r in COMMANDS[command].rows if r.file in uses}
    options = {o.name: o for o in (() if job is None else options_of(job)) if o.flag}
    used = {name: o for name, o in options.items() if o.file in uses}
    return {**rows, **used, **{name: None for name, use in FILES.items() if use in uses}}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_argument_with_a_file_is_declared_as_read_or_written(command: str) -> None:
    (commands,) = (a for a in parser_for([command])._actions if isinstance(a.choices, dict))
    actions = commands.choices[command]._actions
    found = {
        a.dest for a in actions if a.nargs != 0 and _FILE.search(str(a.metavar or a.dest.upper()))
    }
    assert found == declared(command, "read", "write", "pairs", "into").keys()


def spellings(file: Path, beside: Path) -> Iterator[str]:
    """Other names of a file: of its folder, a link, a link to the link, a hard link."""
    yield str(file)
    yield f"{file.parent}/./{file.name}"
    yield f"{file.parent}/../{file.parent.name}/{file.name}"
    yield os.path.relpath(file)
    (beside / f"link-{file.name}").symlink_to(file)
    yield str(beside / f"link-{file.name}")
    (beside / f"twice-{file.name}").symlink_to(beside / f"link-{file.name}")
    yield str(beside / f"twice-{file.name}")
    (beside / f"hard-{file.name}").hardlink_to(file)
    yield str(beside / f"hard-{file.name}")


@pytest.fixture(scope="module")
def read_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Files and folders to read, each with the names of what must not change then."""
    folder, beside = tmp_path_factory.mktemp("read"), tmp_path_factory.mktemp("beside")
    onnx.save(classifier(), folder / "m.onnx", save_as_external_data=True, location="w.bin",
              size_threshold=0)  # fmt: skip
    np.save(folder / "x.npy", np.ones(1))
    files = ("m.onnx", "w.bin", "x.npy")
    names = {name: [*spellings(folder / name, beside)] for name in files}
    return {
        str(folder / "m.onnx"): [*names["m.onnx"], *names["w.bin"]],
        str(beside / "link-m.onnx"): names["m.onnx"],
        f"x={folder / 'x.npy'}": names["x.npy"],
        str(folder): names["w.bin"] + names["x.npy"],
    }


@pytest.mark.parametrize("most", [1, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_that_is_read_is_never_written(
    command: str, most: int, read_files: dict[str, list[str]]
) -> None:
    """`most` spellings for each pair of arguments, others for the next pair."""
    turn = count()
    for read, how in declared(command, "read", "pairs").items():
        for written, to in declared(command, "write", "pairs").items():
            for value, names in read_files.items():
                given = {value: "new"} if getattr(how, "file", "") == "pairs" else [value]
                for name in islice(cycle(names), at := next(turn), at + min(most, len(names))):
                    out = {"other.npz": name} if getattr(to, "file", "") == "pairs" else name
                    if read == written:
                        given, out = {}, {value: name}
                    args = argparse.Namespace(command=command, **{read: given, written: out})
                    with (
                        protected(args),
                        pytest.raises(InputError, match="the input is never changed"),
                    ):
                        check_reports(args)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_folder_in_which_files_are_written_holds_none_that_is_read(
    command: str, tmp_path: Path
) -> None:
    for written, how in declared(command, "into").items():
        globs = how.globs if isinstance(how, Row) else how.names if how else ()
        for glob in globs:
            name = glob.replace("[0-9]", "1").replace("*", "a")
            onnx.save(classifier(), tmp_path / "m.onnx", save_as_external_data=True, location=name,
                      size_threshold=0)  # fmt: skip
            args = argparse.Namespace(
                command=command, model=str(tmp_path / "m.onnx"), **{written: str(tmp_path)}
            )
            with protected(args), pytest.raises(InputError, match="the input is never changed"):
                check_reports(args)
            (tmp_path / name).unlink()


def test_the_checkpoint_of_a_run_beside_its_step_is_replaced(tmp_path: Path) -> None:
    for name in ("train.onnx", "checkpoint.safetensors"):
        (tmp_path / name).touch()
    args = argparse.Namespace(command="fit", model=str(tmp_path), folder=str(tmp_path))
    with protected(args) as files:
        check_reports(args)
        assert files.reason(tmp_path / "train.onnx") is not None
        assert files.reason(tmp_path / "checkpoint.safetensors") is None
    args.json = str(tmp_path / "checkpoint.safetensors")
    with protected(args), pytest.raises(InputError, match="is where --folder writes"):
        check_reports(args)


def test_stdin_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m.onnx").touch()
    args = argparse.Namespace(command="inspect", model="-", html=str(tmp_path / "m.onnx"))
    with open(tmp_path / "m.onnx") as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        with protected(args), pytest.raises(InputError, match="is stdin, and the input is never"):
            check_reports(args)


@pytest.mark.parametrize("taken", ["new.npz", "other.npz", "out.onnx", "log.csv", "data.npz"])
def test_a_prediction_is_written_where_nothing_else_is(
    taken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("new.npz", "more.npz", "data.npz"):
        Path(name).touch()
    given = {"output": "out.onnx", "log": "log.csv", "data": "data.npz"}
    predict = {"more.npz": "other.npz", "new.npz": taken}
    args = argparse.Namespace(command="fit", **given, predict=predict)
    with (
        protected(args),
        pytest.raises(InputError, match=r"^--predict .*(is where .* writes|never changed)"),
    ):
        check_reports(args)


@pytest.mark.parametrize("command", COMMANDS)
def test_no_two_options_write_one_file(command: str, tmp_path: Path) -> None:
    found = [*declared(command, "write")]
    (tmp_path / "link").symlink_to(tmp_path / "file")
    for written in found[1:]:
        for name in ("file", "./file", f"../{tmp_path.name}/file", "link"):
            given = {found[0]: str(tmp_path / "file"), written: f"{tmp_path}/{name}"}
            with pytest.raises(InputError, match=r"is where .* writes"):
                check_reports(argparse.Namespace(command=command, **given))


def test_names_that_differ_in_case_are_one_file_where_the_file_system_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"output": str(tmp_path / "out.onnx"), "html": str(tmp_path / "OUT.onnx")}
    args = argparse.Namespace(command="optimize", **given)
    check_reports(args)
    monkeypatch.setattr(protection, "_folds_case", lambda folder: True)
    with pytest.raises(InputError, match="is where -o writes the model"):
        check_reports(args)


OVERWRITING = [
    "inspect m.onnx --html w.bin",
    "optimize m.onnx -o new.onnx --tune --tune-file w.bin",
    "verify m.onnx --save w.bin",
    "optimize m.onnx -o new.onnx --config r.toml --html r.toml",
    "optimize m.onnx -o new.onnx --config r.toml --html d.npz",
    "optimize m.onnx -o new.onnx --tune",
    "reduce m.onnx --check false -o w.bin",
    "grad m.onnx --split f.onnx w.onnx --target logits",
    "ci --update --junit w.bin",
    "ci --update --junit d.npz",
    "ci --json onnxgrad.lock.json",
    "ci other.toml --update",
    "train-step m.onnx -o . --loss cross_entropy",
    "fit m.onnx --loss cross_entropy --data d.npz -o n.onnx --log w.bin",
]


@pytest.mark.parametrize("words", OVERWRITING)
def test_a_command_refuses_before_its_work(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Callable[..., Result]
) -> None:
    monkeypatch.chdir(tmp_path)
    wanted = {
        "--tune": "onnxgrad.tune.json",
        "--split": "w.json",
        "train-step": "state.safetensors",
    }
    weights = next((name for word, name in wanted.items() if word in words.split()), "w.bin")
    weights = "w.bin" if "w.bin" in words else weights
    onnx.save(classifier(), "m.onnx", save_as_external_data=True, location=weights,
              size_threshold=0)  # fmt: skip
    np.savez("d.npz", x=np.zeros((2, 8), np.float32))
    recipe = '[verify]\ninputs = "d.npz"\n'
    Path("r.toml").write_text(recipe)
    Path("onnxgrad.toml").write_text(f'[ci]\nmodels = ["m.onnx"]\n{recipe}')
    Path("other.toml").write_text('[ci]\nmodels = ["m.onnx"]\nlock = "notes.txt"\n')
    Path("notes.txt").write_text("notes")
    Path("onnxgrad.lock.json").write_text(
        '{"format": "onnxgrad lock", "version": 1, "onnxgrad": "0", "recipe": "onnxgrad.toml", '
        '"models": {}}'
    )
    before = {p: p.read_bytes() for p in Path().iterdir()}
    done = run(*words.split())
    assert (done.code, done.out) == (2, "")
    assert re.search("never changed|is where|is not a lock file", done.err)
    assert {p: p.read_bytes() for p in Path().iterdir()} == before


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


def _sevenfold() -> None:
    (np.fromfile("m.data", np.float32) * 7).tofile("m.data")


def _other_graph() -> None:
    model = onnx.load("m.onnx", load_external_data=False)
    next(n for n in model.graph.node if n.op_type == "Relu").op_type = "Sigmoid"
    Path("m.onnx").write_bytes(model.SerializeToString())


def _cut_off() -> None:
    os.truncate("m.data", 300)


def _version(path: str) -> tuple[object, ...]:
    graph = onnx.load(path).graph
    weights = {t.name: numpy_helper.to_array(t).tobytes() for t in graph.initializer}
    return {n.op_type for n in graph.node} & {"Relu", "Sigmoid"}, weights


CHANGES = {"weights": _sevenfold, "graph": _other_graph, "length": _cut_off}


@pytest.mark.parametrize(
    ("kind", "request_number"),
    [
        pytest.param(
            kind, n, marks=() if (kind, n) in (("graph", 2), ("weights", 4)) else pytest.mark.slow
        )
        for kind in CHANGES
        for n in (*range(1, 9), 15, 30, 60)
    ],
)
def test_a_file_that_changes_during_the_proof_fails_or_counts_as_one_version(
    kind: str,
    request_number: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    run: Callable[..., Result],
) -> None:
    """No result mixes two versions: whatever child process reads the file first, the command fails
    with one line and writes nothing, or the result is the model before or after the change.
    """
    monkeypatch.chdir(tmp_path)
    onnx.save(
        classifier(), "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0
    )
    versions, lock, requests, ask = [_version("m.onnx")], threading.Lock(), count(1), Child.ask

    def asked(child: Child, *arguments: Any, **options: Any) -> object:
        with lock:
            if next(requests) == request_number:
                CHANGES[kind]()
        return ask(child, *arguments, **options)

    monkeypatch.setattr(Child, "ask", asked)
    done = run("optimize", "m.onnx", "-o", "o.onnx")
    assert next(requests) > request_number
    if done.code == 0:
        versions += [] if kind == "length" else [_version("m.onnx")]
        assert _version("o.onnx") in versions
    else:
        assert done.code in (1, 2) and done.err.count("onnxgrad: ") == 1
        assert {p.name for p in tmp_path.iterdir()} == {"m.onnx", "m.data"}
