"""Every writer asks which files are read before it changes one."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import onnxgrad
from onnxgrad.errors import InputError
from onnxgrad.ir.save import remove
from onnxgrad.ir.storage.atomic_files import (
    discard,
    link_whole,
    opened_to_change,
    write_whole,
)
from onnxgrad.ir.storage.numpy_files import ArraysFile
from onnxgrad.ir.storage.protection import active, protecting, refuse
from onnxgrad.train.callbacks import JsonLines
from tests.helpers import ROOT, parse

PACKAGE = ROOT / "onnxgrad"
# files in which something is written without `atomic_files`, and what
OTHERS = {
    "ir/storage/atomic_files.py": "the writers themselves",
    "ir/storage/shared_weights.py": "a temporary folder of a proof",
    "verify/reducing/reduce.py": "candidates in a temporary folder",
    "cli/process.py": "the null device",
    "cli/commands/fit.py": "a temporary folder",
    "jobs/rebasing/constants.py": "large constants in a temporary folder",
    "cli/commands/reduce.py": "pipes of a child, and what its trials print, in a temporary folder",
    "train/run_folder.py": "the lock of a run's folder, which holds nothing",
    "jobs/ci/workers.py": "a pipe of a worker",
    "verify/running/child_main.py": "a pipe of a child",
    "verify/running/child_sessions.py": "a pipe of a child",
    "ir/storage/numpy_files.py": "members of an archive that is written through a `Part`",
    "verify/running/results_in_files.py": "results in a temporary folder of a proof",
    "ir/storage/stored_arrays.py": "these results, which are removed",
    "ir/save.py": "`remove`, which asks",
}
_WRITERS = re.compile(
    r"""\bopen\([^\n]*["'](?=[rb]*[wax+])[rwaxbt+]+["']|\.(write_text|write_bytes|unlink|hardlink_to)\(
    |\.(symlink_to|tofile)\(|\bos\.(replace|rename|link|symlink|truncate|remove|unlink|open|fdopen)\(
    |\bshutil\.(copy|move|rmtree)|\bnp\.save|\.savefig\((?!picture)""",
    re.VERBOSE,
)


def test_the_search_finds_writers() -> None:
    for line in ("open(p, 'ab')", 'p.open("r+b")', "os.replace(a, b)", "np.savez(p)"):
        assert _WRITERS.search(line)
    for line in ("open(p)", "p.open('rb')", "text.replace('a', 'b')", 'open("xs", "rb")'):
        assert not _WRITERS.search(line)


def test_files_are_written_through_atomic_files_alone() -> None:
    found = {
        name: calls
        for path in sorted(PACKAGE.rglob("*.py"))
        if (name := path.relative_to(PACKAGE).as_posix()) not in OTHERS
        and (calls := [m[0] for m in _WRITERS.finditer(path.read_text("utf-8"))])
    }
    assert found == {}


CHANGES: dict[str, Callable[[Path, Path], object]] = {
    "write": lambda path, _: write_whole(path, b"new"),
    "append": lambda path, _: JsonLines(path)._add("new"),
    "cut": lambda path, _: JsonLines(path).cut(0, 0),
    "change": lambda path, _: opened_to_change(path, "a").__enter__(),
    "link": lambda path, other: link_whole(other, path),
    "save": lambda path, _: onnxgrad.save(onnxgrad.load(MODEL), path),
    "arrays": lambda path, _: ArraysFile(path).__enter__(),
    "remove": lambda path, _: remove(path),
}
MODEL = parse("g (float[2] x) => (float[2] y) { y = Abs(x) }")


@pytest.mark.parametrize("how", CHANGES)
def test_no_writer_changes_a_file_that_is_read(how: str, tmp_path: Path) -> None:
    file, other = tmp_path / "file", tmp_path / "other"
    for path in (file, other):
        path.write_text('{"step": 1}\n')
    (tmp_path / "hard").hardlink_to(file)
    (tmp_path / "link").symlink_to(file)
    with protecting([str(file)]):
        for name in ("file", "hard", "link"):
            with pytest.raises(InputError, match="the input is never changed"):
                CHANGES[how](tmp_path / name, other)
    assert file.read_text() == '{"step": 1}\n'
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "hard", "link", "other"]


def test_a_file_that_is_read_is_not_discarded(tmp_path: Path) -> None:
    for name in ("read", "old"):
        (tmp_path / name).touch()
    with protecting([str(tmp_path / "read")]):
        discard([tmp_path / "read", tmp_path / "old"])
    assert [p.name for p in tmp_path.iterdir()] == ["read"]


def test_contexts_are_nested_and_end(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).touch()
    with protecting([str(tmp_path / "a")]), protecting([str(tmp_path / "b")]):
        assert all(active().reason(tmp_path / name) for name in "ab")
    refuse(tmp_path / "a")


def test_python_functions_refuse_too(tmp_path: Path) -> None:
    onnxgrad.save(onnxgrad.load(MODEL), tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", x=np.zeros(2, np.float32))
    before = {p: p.read_bytes() for p in tmp_path.iterdir()}
    for name in ("m.onnx", "d.npz"):
        with pytest.raises(InputError, match="the input is never changed"):
            onnxgrad.verify(tmp_path / "m.onnx", inputs=tmp_path / "d.npz", save=tmp_path / name)
    assert {p: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_training_and_ci_refuse_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before their work, in Python: reports of `fit`, and results and the lock of `ci`."""
    monkeypatch.chdir(tmp_path)
    onnxgrad.save(onnxgrad.load(MODEL), tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", x=np.zeros((4, 2), np.float32))
    (tmp_path / "hard.log").hardlink_to(tmp_path / "m.onnx")
    (tmp_path / "r.toml").write_text('[ci]\nmodels = ["m.onnx"]\n')
    before = {p: p.read_bytes() for p in tmp_path.iterdir()}
    for name in ("m.onnx", "d.npz", "hard.log"):
        with pytest.raises(InputError, match="the input is never changed"):
            onnxgrad.fit("m.onnx", "d.npz", loss="l2_penalty", steps=1, log=name)
    for options, words in (
        ({"out": "./{name}.onnx"}, "models are never changed"),
        ({"lock": "m.onnx", "update": True}, "is not a lock file|never changed|not UTF-8"),
        ({"lock": "r.toml", "update": True}, "is not a lock file|never changed"),
    ):
        with pytest.raises(InputError, match=words):
            onnxgrad.ci("r.toml", **options)  # type: ignore[arg-type]
    assert {p: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_a_model_is_not_saved_over_its_own_weights(tmp_path: Path) -> None:
    weighed = parse("g (float[64] x) => (float[64] y) { y = Mul (x, w) }")
    weighed.graph.initializer.append(numpy_helper.from_array(np.ones(64, np.float32), "w"))
    where = {"all_tensors_to_one_file": True, "location": "w.bin", "size_threshold": 0}
    onnx.save(weighed, tmp_path / "m.onnx", save_as_external_data=True, **where)
    program = onnxgrad.load(tmp_path / "m.onnx")
    before = {p: p.read_bytes() for p in tmp_path.iterdir()}
    for name in ("w.bin", "m.onnx"):
        with pytest.raises(InputError, match=r"reads its weights from this|never changed"):
            onnxgrad.save(program, tmp_path / name)
    assert {p: p.read_bytes() for p in tmp_path.iterdir()} == before
