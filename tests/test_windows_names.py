"""Names as Windows writes them: letters of drives, backslashes, shares. Here they are names of files with odd characters."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxgrad
from onnxgrad.__main__ import main
from onnxgrad.errors import InputError
from tests.helpers import parse

NAMES = [
    r"C:\models\m.onnx",
    r"..\m.onnx",
    r"\\host\share\m.onnx",
    "a b(1).onnx",
    r"dir\.onnx",
    "m.onnx:stream",
]
pytestmark = pytest.mark.skipif(os.name == "nt", reason="there they name other folders")


def model() -> onnx.ModelProto:
    made = parse("g (float[N,64] x) => (float[N,64] y) { a = Identity (x) y = MatMul (a, w) }")
    w = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    made.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    return made


@pytest.mark.parametrize("name", NAMES)
def test_files_of_such_names(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are read, written and reported under these names, in the folder that was named and in no other."""
    monkeypatch.chdir(tmp_path)
    onnx.save(model(), name)
    out = f"out-{name}"
    assert main(["optimize", name, "-o", out, "--json", "r.json"]) == 0
    assert name in capsys.readouterr().out
    assert main(["verify", name, out]) == 0
    assert main(["metadata", out, "--set", rf"path={name}", "-o", f"again-{name}"]) == 0
    assert sorted(os.listdir()) == sorted([name, out, f"again-{name}", "r.json"])
    assert onnxgrad.inspect(f"again-{name}").metadata["path"] == name


@pytest.mark.parametrize("name", NAMES)
def test_recipes_of_such_names(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(model(), name)
    (tmp_path / "onnxgrad.toml").write_text(
        f"[ci]\nmodels = ['{name}']\nout = 'build/{{name}}.onnx'\n"
    )
    assert main(["ci", "--update"]) == 0, capsys.readouterr().err
    assert os.listdir("build") == [f"{Path(name).stem}.onnx"]
    assert main(["ci"]) == 0


@pytest.mark.parametrize(
    ("location", "words"),
    [
        (r"sub\w.bin", r"sub\\w.bin has backslashes: write sub/w.bin \(the file is there\)"),
        (r"other\w.bin", "its file is missing"),
        (r"C:\x\w.bin", "its file is missing"),
        (r"\\host\w.bin", "its file is missing"),
    ],
)
def test_weights_in_such_files(location: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    (tmp_path / "sub").mkdir()
    onnx.save(model(), path, save_as_external_data=True, location="sub/w.bin", size_threshold=0)
    made = onnx.load(path, load_external_data=False)
    next(e for e in made.graph.initializer[0].external_data if e.key == "location").value = location
    path.write_bytes(made.SerializeToString())
    with pytest.raises(InputError, match=words):
        onnxgrad.optimize(path)
