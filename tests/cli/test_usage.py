"""What can be said to each command."""

from __future__ import annotations

import contextlib
import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from safetensors.numpy import save_file

import onnxgrad
from onnxgrad.cli.app import parser_for
from onnxgrad.cli.usage import COMMANDS, module_of
from tests.cli.conftest import Result
from tests.helpers import ROOT, parse
from tests.language_models import language_model
from tests.rewriting import model_of, weights

Run = Callable[..., Result]

# two outputs, a value between, a loss: what the examples speak of
MODEL = """
g (float[N, 4] x, float[N, 3] t) => (float[N, 3] logits, float loss) {
  a = MatMul (x, w1)
  hidden = Tanh (a)
  logits = MatMul (hidden, w2)
  d = Sub (logits, t)
  s = Mul (d, d)
  loss = ReduceMean <keepdims = 0> (s)
}
"""


def test_every_command_has_its_file() -> None:
    assert [n for n in COMMANDS if find_spec(module_of(n)) is None] == []


def test_help_waits_for_nothing_heavy() -> None:
    """No command's --help, and no completion, imports what takes longer than Python itself."""
    script = f"""
import sys
from onnxgrad.cli.app import main
assert [main([name, "--help"]) for name in {list(COMMANDS)}] == [0] * {len(COMMANDS)}
assert main(["completion", "bash"]) == 0
print("heavy:", [m for m in ("numpy", "onnx", "onnxruntime", "rich.console") if m in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "heavy: []"


def examples() -> list[str]:
    """Every command line that a --help shows."""
    return [words for command in COMMANDS.values() for words, _ in command.examples]


def test_every_help_ends_with_two_examples(run: Run) -> None:
    for name in COMMANDS:
        text = run(name, "--help").out
        assert "may repeat; may" not in " ".join(text.split()), name
        _, _, end = text.partition("\nexamples:\n")
        shown = " ".join(end.replace("\\\n", " ").split())
        mine = [words for words in examples() if words.split()[0] == name]
        assert len(mine) == 2 and all(f"onnxgrad {words}" in shown for words in mine)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what the examples name, where they run."""
    model = model_of(MODEL, weights(w1=(4, 5), w2=(5, 3)), opset=18)
    for name in ("model", "out", "big"):
        onnx.save(model, tmp_path / f"{name}.onnx")
    small = onnxgrad.optimize(model, rebasable=True, report=True)
    onnx.save(small.model, tmp_path / "small.onnx")
    small.record.save_beside(tmp_path / "small.onnx")
    onnx.save(model, tmp_path / "retrained.onnx")
    held = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    held["fc.weight"] = np.ascontiguousarray(held.pop("w2").T)
    save_file(held, tmp_path / "state.safetensors")
    for tensor in model.graph.initializer:
        rounded = numpy_helper.to_array(tensor).astype(np.float16).astype(np.float32)
        tensor.CopyFrom(numpy_helper.from_array(rounded, tensor.name))
    onnx.save(model, tmp_path / "half.onnx")
    fixed = onnxgrad.extract(onnxgrad.fix_dims(model, {"N": 1}), outputs=["logits"])
    onnx.save(fixed, tmp_path / "fixed.onnx")
    scene = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 20]>
        g (float[1,2,6,8] x) => (float[1,2,3,4] y) { y = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x) }""")
    onnx.save(scene, tmp_path / "scene.onnx")
    rng = np.random.default_rng(0)
    batch = {"x": rng.random((8, 4), np.float32), "t": rng.random((8, 3), np.float32)}
    for name in ("batch", "train", "values"):
        np.savez(tmp_path / f"{name}.npz", **batch)
    np.savez(tmp_path / "labelled.npz", x=batch["x"], labels=np.arange(8) % 3)
    classifier = onnxgrad.extract(tmp_path / "model.onnx", outputs=["logits"])
    onnx.save(classifier, tmp_path / "classifier.onnx")
    head = parse("h (float[M, 3] x) => (float[M, 3] scores) { scores = Softmax (x) }")
    onnx.save(head, tmp_path / "head.onnx")
    adapted = parse("""a (float[N, 4] x, float[4, 1] lora_a, float[1, 3] lora_b) => (float[N, 3] y)
      <int8[4,3] q = {1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2}, float s = {0.1}> {
      w = DequantizeLinear (q, s) ab = MatMul (lora_a, lora_b)
      x2 = MatMul (x, ab) x1 = MatMul (x, w) y = Add (x1, x2) }""")
    onnx.save(adapted, tmp_path / "adapted.onnx")
    llm = language_model("llama", layers=1)
    onnx.save(llm, tmp_path / "llm.onnx")
    onnx.save(onnxgrad.train.lora(llm, "*attn*"), tmp_path / "tuned.onnx")
    vision = parse("""v (float[1,3,224,224] x) => (float[1,8] logits) <float[3,2] w = {1, 2, 3, 4, 5, 6}> {
      m = GlobalAveragePool (x) f = Flatten (m) p = MatMul (f, w) n = Neg (f) e = Exp (f)
      logits = Concat <axis = 1> (p, n, e) }""")
    onnx.save(vision, tmp_path / "vision.onnx")
    yolo = parse("""v (float[1,3,640,640] x) => (float[1,6,2] y) <float zero = {0},
      float[1,6,2] b = {99, 300, 99, 400, 20, 50, 30, 60, 0.1, 0.9, 0.8, 0.2}> {
      m = ReduceMean <keepdims = 0> (x) z = Mul (m, zero) y = Add (b, z) }""")
    onnx.save(yolo, tmp_path / "yolov8.onnx")
    step = onnxgrad.training_step(tmp_path / "model.onnx", "loss")
    onnxgrad.train.save_step(step, tmp_path / "step")
    (tmp_path / "crashes.py").write_text(
        "import sys\nsys.exit(139 if b'Tanh' in open(sys.argv[1], 'rb').read() else 0)\n"
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


# the other answer is right too: nothing is faster than itself, the copies of a model do not fail
ELSE = {"bench model.onnx out.onnx --require": 1, "reduce big.onnx --fails": 2}


@pytest.mark.parametrize("words", examples())
def test_every_example_runs(run: Run, files: Path, words: str) -> None:
    if words.startswith("ci"):  # what others find in their folder as well
        (files / "onnxgrad.toml").write_text('[ci]\nmodels = ["model.onnx", "half.onnx"]\n')
    first, _, then = words.partition(" | ")
    with contextlib.suppress(SystemExit):  # of what prints and leaves
        parser_for(shlex.split(first)).parse_args(shlex.split(first))
    if then == "python -m json.tool":  # which needs no process of ours
        result = run(*shlex.split(first))
        code, said = result.code, result.err
        assert json.loads(result.out)
    elif then:  # through a shell
        first = f"{sys.executable} -m onnxgrad {words}".replace(
            "| onnxgrad", f"| {sys.executable} -m onnxgrad"
        )
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", first], capture_output=True, timeout=60, text=True
        )
        code, said = done.returncode, done.stderr
    else:
        quick = ["--seconds", "0.1"] if words.startswith("bench") else []
        alone = words.replace("--jobs 2", "--jobs 1")  # tests/jobs/ci/test_workers.py has processes
        result = run(*shlex.split(alone), *quick)
        code, said = result.code, result.err
    wanted = {0, *(other for start, other in ELSE.items() if words.startswith(start))}
    assert code in wanted, said
