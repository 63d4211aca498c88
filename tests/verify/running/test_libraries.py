"""Custom operators in onnxruntime: from onnxruntime-extensions, and from a library built here."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxgrad
from onnxgrad.cli.app import main
from onnxgrad.errors import InputError
from onnxgrad.verify.running.libraries import LIBRARIES, custom_ops
from onnxgrad.verify.running.session import run
from tests.helpers import parse

INVERSE = """<ir_version: 8, opset_import: ["": 17, "ai.onnx.contrib": 1]>
g (float[3,3] x) => (float[3,3] y) <float[3,3] e = {9,0,0, 0,9,0, 0,0,9}> {
  s = Add (x, e)  i = Identity (s)  y = ai.onnx.contrib.Inverse (i) }"""
# dy = -y dx y, so x gets -y'g y' (Giles, 2008, 2.2.3)
PLUGIN = """
import numpy as np
from onnxgrad import kernel, op, vjp

kernel("ai.onnx.contrib::Inverse")(np.linalg.inv)

def inverse(g, y, x):
    yt = op.Transpose(y, perm=[1, 0])
    return -(yt @ g @ yt)

vjp("ai.onnx.contrib::Inverse", inverse)
"""


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"custom_ops: .*no\.so: no such file"):
        custom_ops(tmp_path / "no.so")
    (tmp_path / "no.so").write_text("no library")
    custom_ops(tmp_path / "no.so")
    model = parse("g (float[2] x) => (float[2] y) { y = Exp (x) }")
    with pytest.raises(InputError, match=r"cannot load the custom operators of .*no\.so"):
        onnxgrad.verify(model, model)
    with onnxgrad.temporary_rules():
        LIBRARIES.clear()
        assert onnxgrad.verify(model, model).ok
    assert len(LIBRARIES) == 1


def test_the_command_line_refuses_it_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(parse("g (float[2] x) => (float[2] y) { y = Exp (x) }"), tmp_path / "m.onnx")
    model = str(tmp_path / "m.onnx")
    assert main(["verify", model, model, "--custom-ops", "no.so"]) == 2
    assert capsys.readouterr().err == "onnxgrad: --custom-ops no.so: no such file\n"
    (tmp_path / "no.so").write_text("no library")
    assert main(["bench", model, "--custom-ops", str(tmp_path / "no.so")]) == 2
    said = capsys.readouterr().err
    assert "cannot load the custom operators" in said and said.count("\n") == 1


def test_the_operators_of_onnxruntime_extensions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Needs the package onnxruntime-extensions."""
    extensions = pytest.importorskip("onnxruntime_extensions")
    model, plugin, out = (str(tmp_path / n) for n in ("m.onnx", "rules.py", "o.onnx"))
    onnx.save(parse(INVERSE), model)
    Path(plugin).write_text(PLUGIN)
    words = ["--plugin", plugin, "--custom-ops", extensions.get_library_path()]

    def code(*command: str) -> int:
        with onnxgrad.temporary_rules():
            return main([*command, *words])

    assert code("optimize", model, "-o", out) == 0
    assert "equal on cpu  " in capsys.readouterr().out  # both checks ran
    assert [n.op_type for n in onnx.load(out).graph.node] == ["Add", "Inverse"]
    assert code("verify", model, out) == 0
    assert code("check-grad", model) == 0
    assert "tolerance 1e-04, cpu" in capsys.readouterr().out
    assert code("grad", model, "--adjoint", "input", "-o", out) == 0
    assert code("bench", model, "--rounds", "2", "--seconds", "0.1") == 0


def test_a_model_with_them_is_trained() -> None:
    """Needs the package onnxruntime-extensions."""
    extensions = pytest.importorskip("onnxruntime_extensions")
    exec(PLUGIN, {})
    custom_ops(extensions.get_library_path())
    step = onnxgrad.training_step(parse(INVERSE), "mse", onnxgrad.train.SGD(lr=300.0), "e")
    eye = np.eye(3, dtype=np.float32)
    batch = {"x": eye, "target": eye}
    losses = onnxgrad.Trainer(step).fit([batch] * 5).losses
    assert losses == sorted(losses, reverse=True) and losses[-1] < 0.99 * losses[0]


def test_training_refuses_what_is_no_library(tmp_path: Path) -> None:
    (tmp_path / "no.so").write_text("no library")
    step = onnxgrad.training_step("models/training/mlp.onnx", "loss")
    custom_ops(tmp_path / "no.so")
    with pytest.raises(InputError, match=r"cannot load the custom operators of .*no\.so"):
        onnxgrad.Trainer(step)


def _headers() -> Path | None:
    """Where onnxruntime_c_api.h lies: onnxruntime's wheels have none."""
    given = os.environ.get("ONNXRUNTIME_INCLUDE")
    return Path(given) if given and (Path(given) / "onnxruntime_c_api.h").is_file() else None


def test_a_library_of_ones_own(tmp_path: Path) -> None:
    """Cube in C, built where ONNXRUNTIME_INCLUDE names the folder of onnxruntime_c_api.h."""
    headers, compiler = _headers(), shutil.which("gcc")
    if headers is None or compiler is None:
        pytest.skip("needs gcc, and ONNXRUNTIME_INCLUDE with onnxruntime_c_api.h")
    source = Path(__file__).with_name("cube.c")
    library = tmp_path / "libcube.so"
    words = [compiler, "-shared", "-fPIC", "-O2", f"-I{headers}", str(source), "-o", str(library)]
    subprocess.run(words, check=True)
    custom_ops(library)
    model = parse(
        """<ir_version: 8, opset_import: ["": 17, "my.domain": 1]>
        g (float[N] x) => (float[N] y) { y = my.domain.Cube (x) }"""
    )
    assert run(model, {"x": np.array([1, 2, 3], np.float32)})["y"].tolist() == [1, 8, 27]
    onnxgrad.kernel("my.domain::Cube")(lambda x: x**3)
    report = onnxgrad.verify(model, model)
    assert report.ok and all(check.ran for check in report.checks.values())
