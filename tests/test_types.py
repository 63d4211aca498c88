"""What mypy knows of the public functions: the type of the model is the type of the result."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import ROOT

pytest.importorskip("mypy", reason="the extra `dev` brings mypy")

TYPES = {
    'optimize("m.onnx")': "onnx.onnx_ml_pb2.ModelProto",
    'optimize(b"", report=True)': "onnxgrad.jobs.outcome.OptimizedModel",
    "optimize(onnx.ModelProto())": "onnx.onnx_ml_pb2.ModelProto",
    'optimize("m.onnx", report=flag)': "Any",
    'gradient(load("m.onnx"))': "onnxgrad.ir.program.Program",
    'vmap(load("m.onnx").main)': "onnxgrad.ir.block.BindingBlock",
    'reduce("m.onnx", "check", report=True)': "onnxgrad.jobs.reduce.ReducedModel",
    'fit("m.onnx", "d.npz", "loss", report=True)': "onnxgrad.jobs.training.fit.Fitted",
    'Trainer("step").export("m.onnx")': "onnx.onnx_ml_pb2.ModelProto",
    'Trainer("step").export("m.onnx", "out.onnx")': "None",
    'place("m.onnx", "cuda=*")': "onnx.onnx_ml_pb2.ModelProto",
}
# calls that mypy refuses, with the kind of its error
WRONG = {
    'optimize("m.onnx", report=True).rewritez': "attr-defined",
    'optimize("m.onnx", passez="dce")': "call-overload",
    'Trainer("step").fit(3)': "arg-type",
    'verify("m.onnx").okay': "attr-defined",
}


@pytest.mark.slow
def test_types_of_results(tmp_path: Path) -> None:
    head = ["import onnx", "from onnxgrad import *", "flag = bool(input())"]
    lines = [*head, *(f"reveal_type({call})" for call in TYPES), *WRONG]
    file = tmp_path / "user.py"
    file.write_text("\n".join(lines), encoding="utf-8")
    mypy = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml")]
    options = ["--cache-dir", str(tmp_path / "cache"), "--no-error-summary", str(file)]
    done = subprocess.run([*mypy, *options], cwd=ROOT, capture_output=True, text=True)
    found: dict[str, str] = {}
    for shown in done.stdout.splitlines():
        _, line, kind, message = shown.removeprefix(str(file)).split(":", 3)
        if "Revealed type" in message:
            found[lines[int(line) - 1]] = message.split('"')[1]
        elif kind == " error":
            found[lines[int(line) - 1]] = message.rsplit("[", 1)[1].rstrip("]")
    assert found == {f"reveal_type({k})": v for k, v in TYPES.items()} | WRONG, done.stderr
