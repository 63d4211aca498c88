"""Typical mistakes at a shell: each is one line that names the word and says what to write."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.cli.conftest import Result
from tests.helpers import ROOT

Run = Callable[..., Result]
MISTAKES: dict[str, str] = {
    "optimise m.onnx -o o.onnx": "unknown command 'optimise' (did you mean 'optimize'?)",
    "m.onnx -o o.onnx": "'m.onnx' is not a command: write one first",
    "optimize -o o.onnx": "required: MODEL",
    "optimize none.onnx -o o.onnx": "none.onnx: No such file",
    "optimize folder -o o.onnx": "folder: Is a directory",
    "optimize notes.txt -o o.onnx": "notes.txt: not an ONNX model",
    "optimize m.onnx": "use -o OUT or --out-dir DIR, or --dry-run",
    "optimize m.onnx -o": "-o/--output: expected one argument",
    "optimize m.onnx -o folder": "it is a folder; name a file",
    "train-step m.onnx --loss loss -o notes.txt": "notes.txt: cannot be written: it is a file; name a folder",
    "optimize m.onnx b.onnx --out-dir notes.txt": "--out-dir notes.txt: cannot be written: it is a file; name a folder",
    "optimize m.onnx -o none/o.onnx": "none: No such file or directory",
    "optimize m.onnx -o m.onnx": "output and input are the same file",
    "optimize m.onnx o.onnx": "write -o o.onnx",
    "optimize m.onnx --out o.onnx": "(did you mean '--output' or '--out-dir'?)",
    "optimize m.onnx -O o.onnx": "unknown option -O (did you mean '-o'?)",
    "optimize m.onnx -x": "unknown option -x (see onnxgrad optimize --help)",
    "optimize m.onnx -o o.onnx --loss mse": "unknown option --loss: it is an option of grad, check-grad",
    "optimize m.onnx -o o.onnx --preset fast": "choose from clean, default",
    "optimize m.onnx -o o.onnx --preset defualt": "did you mean 'default'",
    "optimize m.onnx -o o.onnx --passes fold_constant": "did you mean 'fold-constant'?",
    "optimize m.onnx -o o.onnx --without nothing": "`onnxgrad passes` lists them",
    "optimize m.onnx -o o.onnx --timeout 1m": "--timeout must be a number of seconds, not '1m'",
    "optimize m.onnx -o o.onnx --max-memory lots": "such as 4GB",
    "optimize m.onnx -o o.onnx --seed one": "--seed must be a whole number",
    "optimize m.onnx -o o.onnx --dim N": "such as --dim batch=4",
    "optimize m.onnx -o o.onnx --dim N=-1": "such as --dim batch=4",
    "optimize m.onnx -o o.onnx --dim size=2": "no input has a dimension 'size'",
    "optimize m.onnx -o o.onnx --fix-dim size=2": "no input has a dimension 'size'",
    "optimize m.onnx -o o.onnx --input x": "inputs come as .npz, .npy or .pb files",
    "optimize m.onnx -o o.onnx --input none.npz": "none.npz: cannot be read: No such file",
    "optimize m.onnx -o o.onnx --input other.npz": "no input of this name (inputs: x, target)",
    "optimize m.onnx -o o.onnx --provider gpu": "choose one of cpu, cuda",
    "optimize m.onnx -o o.onnx --config none.toml": "none.toml: No such file",
    "optimize m.onnx -o o.onnx --config notes.txt": "notes.txt: not TOML",
    "optimize m.onnx -o o.onnx --lint nan=error": "no lint 'nan'; there are nan-weights",
    "optimize m.onnx -o o.onnx --lint nan-weights=fatal": "must be one of error, warn, off",
    "optimize m.onnx -o o.onnx --lint nan-weights": "such as --lint nan-weights=error",
    "optimize m.onnx -o o.onnx --opset 21": "did you mean '--target-opset'?",
    "optimize m.onnx -o o.onnx --skip-verify": "did you mean '--verify' or '--no-verify'?",
    "optimize m.onnx -o o.onnx --dynamic-batch": "`onnxgrad open-batch` may be meant",
    "optimize m.onnx -o o.onnx --fp16": "`onnxgrad help fp16` may find it",
    "optimize https://example.com/m.onnx -o o.onnx": "is a URL: download the file",
    "optimize m.onnx -o o.onnx --target 20": "did you mean '--target-opset'?",
    "optimize m.onnx -o o.onnx --target-opset 0": "--target-opset must be at least 1, not 0",
    "optimize m.onnx -o o.onnx --target-opset 999": "opset 999 is not between 7 and",
    "optimize m.onnx -o o.onnx --rtol 1e-3x": "write X or OUTPUT=X, X a number",
    "optimize m.onnx -o o.onnx --plugin none.py": "--plugin none.py: no such file",
    "optimize m.onnx b.onnx -o o.onnx": "2 models need --out-dir DIR",
    "ci none.toml": "none.toml: No such file",
    "ci": "there is no onnxgrad.toml here",
    "ci m.onnx": '[ci] models = ["m.onnx"]',
    "grad m.onnx": "-o OUT is missing",
    "grad m.onnx -o g.onnx --wrt nothing": "its inputs are x, target",
    "grad m.onnx -o g.onnx --target nothing": "its outputs are loss",
    "grad m.onnx g.onnx": "write -o g.onnx",
    "verify m.onnx": "pass a second model, or --expect FILE",
    "verify m.onnx none.onnx": "none.onnx: No such file",
    "verify m.onnx b.onnx --map a": "such as --map logits=linear",
    "inspect": "required: MODEL",
    "inspect m.onnx b.onnx": "unexpected 'b.onnx'",
    "preprocess m.onnx --before bgr,letterboxsize=128 bgr,letterboxplace=corner -o o.onnx":
        "unexpected 'bgr,letterboxplace=corner' (if it was in braces, the shell expanded them: quote",
    "inspect m.onnx --verbos": "did you mean '--verbose'?",
    "inspect m.onnx --preset clean": "unknown option --preset: it is an option of optimize",
    "convert-opset m.onnx -o o.onnx": "required: --to",
    "convert-opset m.onnx --to 0 -o o.onnx": "--to must be at least 1, not 0",
    "convert-opset m.onnx --to v20 -o o.onnx": "--to must be a whole number",
    "float16 m.onnx -o o.onnx --keep nothing": "name a node, a value or an operator",
    "extract m.onnx -o o.onnx --outputs nothing": "--outputs nothing: the main graph has no value of this name",
    "edit m.onnx -o o.onnx --rename a": "such as --rename output_0=logits",
    "edit m.onnx -o o.onnx": "no change is requested: see --bind",
    "join m.onnx -o o.onnx": "required: B",
    "bench m.onnx --rounds 0": "--rounds must be at least 1, not 0",
    "reduce m.onnx -o o.onnx": "one of the arguments --check --fails is required",
    "passes nothing": "`onnxgrad passes` lists them",
    "ops Matmull": "did you mean 'MatMul'?",
    "diff m.onnx": "required: B",
    "metadata m.onnx --set author": "such as --set author=me",
    "metadata m.onnx --set a=b": "name the changed model with -o",
    "place m.onnx --device cuda": "such as cuda='Conv*'",
    "vmap m.onnx -o o.onnx --map nothing": "there are x, target",
    "preprocess m.onnx -o o.onnx": "no steps are named: see --before and --after",
    "preprocess m.onnx -o o.onnx --after softmx": "did you mean 'softmax'?",
    "lift m.onnx o.onnx --prepare p.onnx": "write -o o.onnx",
}  # fmt: skip


@pytest.fixture
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("m.onnx", "b.onnx"):
        Path(name).write_bytes((ROOT / "models" / "training" / "mlp.onnx").read_bytes())
    Path("folder").mkdir()
    Path("notes.txt").write_text("Dear reader")
    np.savez("other.npz", other=np.zeros(2, np.float32))


@pytest.mark.usefixtures("_folder")
@pytest.mark.parametrize("words", MISTAKES)
def test_a_mistake(run: Run, words: str) -> None:
    before = sorted(Path().iterdir())
    done = run(*shlex.split(words))
    assert (done.code, len(done.lines)) == (2, 1) and MISTAKES[words] in done.err
    assert sorted(Path().iterdir()) == before
