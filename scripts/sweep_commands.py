"""Runs every command on given files, each in a process of its own, as a user would.

    python scripts/sweep_commands.py FILE.onnx ... [--only TEXT] [--inputs-too] [--quiet]

`--inputs-too` makes every initializer of the files a graph input first, as IR 3 and
`keep_initializers_as_inputs` have it. Prints the exit code and the last line of each call that did
not exit with 0 (--quiet: of failures only). The exit code is 1 if a call ended in an internal
error (3), a traceback or a signal, or if exit code 2 came without its one line.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import onnx
from onnx import ModelProto, TensorProto, helper

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts.records import need_byte_code  # noqa: E402  # runs from a checkout

SECONDS = 300
FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE)


def listed(model: ModelProto) -> None:
    """Makes each initializer an input as well, in place."""
    there = {value.name for value in model.graph.input}
    for tensor in model.graph.initializer:
        if tensor.name not in there:
            value = helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            model.graph.input.append(value)


def calls(model: ModelProto) -> Iterator[list[str]]:
    """Yields the words of every command for this model; {} stands for its file.

    Values that options name are the model's: the first input and output, the largest weight, and
    the middle one of its values.
    """
    weights = {t.name: t for t in model.graph.initializer}
    inputs = [v for v in model.graph.input if v.name not in weights]
    x, y = inputs[0].name, model.graph.output[0].name
    floats = [t for t in weights.values() if t.data_type in FLOATS]
    sizes = {t.name: len(t.SerializeToString()) for t in floats}
    w = max(sizes, key=lambda name: sizes[name], default=x)
    values = [name for node in model.graph.node for name in node.output if name]
    middle = values[len(values) // 2]
    real = inputs[0].type.tensor_type.elem_type in FLOATS
    loss = "mse{output=" + y + "}"
    out = ["-o", "out.onnx"]
    yield from (
        ["inspect", "{}", "-v"], ["inspect", "{}", "--weights"], ["inspect", "{}", "--text"],
        ["optimize", "{}", *out], ["optimize", "{}", *out, "--bind-defaults"],
        ["optimize", "{}", *out, "--merge", "always", "--target-opset", "23"],
        ["optimize", "{}", *out, "--preset", "canonical", "--verify", "each"],
        ["optimize", "{}", *out, "--lift", "once.onnx", "--weights", w],
        ["optimize", "{}", *out, "--tune", "--tune-time", "2"],
        ["verify", "{}", "{}"], ["verify", "{}", "{}", "--layers"], ["diff", "{}", "{}"],
        ["grad", "{}", *out, "--wrt", "params", "--target", y, "--adjoint", "input"],
        ["grad", "{}", *out, "--wrt", f"{w},{x}" if real else w, "--target", y],
        ["grad", "{}", *out, "--wrt", w, "--target", y, "--jvp"],
        ["grad", "{}", "--wrt", w, "--target", y, "--split", "forward.onnx", "backward.onnx"],
        ["grad", "{}", *out, "--wrt", w, "--target", y, "--checkpoint", "auto"],
        ["check-grad", "{}", "--wrt", w, "--target", y],
        ["train-step", "{}", "-o", "step", "--loss", loss],
        ["train-step", "{}", "-o", "step", "--loss", loss, "--wrt", w, "--optimizer", "sgd"],
        ["fit", "{}", "--loss", loss, "--data", "data.npz", "--epochs", "1", "--folder", "run"],
        ["extract", "{}", *out, "--outputs", middle], ["extract", "{}", *out, "--inputs", middle],
        ["lift", "{}", *out, "--prepare", "once.onnx"],
        ["lift", "{}", *out, "--prepare", "once.onnx", "--weights", w],
        ["lora", "{}", *out, "--targets", "*", "--rank", "1"],
        ["open-batch", "{}", *out], ["vmap", "{}", *out], ["vmap", "{}", *out, "--map", f"{x},{w}"],
        ["edit", "{}", *out, "--free", w], ["edit", "{}", *out, "--rename", f"{w}=renamed"],
        ["edit", "{}", *out, "--bind", f"{w}=weight.npy"],
        ["join", "{}", "{}", *out, "--prefix", "second."],
        ["convert-opset", "{}", *out, "--to", "21"], ["convert-opset", "{}", *out, "--to", "13"],
        ["float16", "{}", *out], ["float16", "{}", *out, "--keep", "auto"],
        ["metadata", "{}", *out, "--set", "a=b"], ["metadata", "{}"],
        ["reduce", "{}", *out, "--check", "false", "--timeout", "10"],
        ["bench", "{}", "--rounds", "1", "--seconds", "0.01"], ["ci", "recipe.toml"],
        ["place", "{}", *out, "--device", "cuda=op:MatMul,op:Conv"],
    )  # fmt: skip


def furnish(folder: Path, model: ModelProto) -> None:
    """Writes the model and the files that commands read beside it: data, a weight, a recipe."""
    import numpy as np
    from onnx import numpy_helper

    from onnxgrad.verify import run
    from onnxgrad.verify.feeds.proof_cases import choose_cases

    weights = {t.name: t for t in model.graph.initializer}
    case = choose_cases(model, None, None, (0,), lambda feeds: run(model, feeds), edges=False)[0]
    shown = {name: value for name, value in case.feeds.items() if name not in weights}
    target = case.results[model.graph.output[0].name]
    np.savez(folder / "data.npz", allow_pickle=False, **shown, target=target)
    floats = [t for t in weights.values() if t.data_type in FLOATS]
    if floats:
        largest = max(floats, key=lambda t: len(t.SerializeToString()))
        np.save(folder / "weight.npy", numpy_helper.to_array(largest) + 0.125)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    (folder / "recipe.toml").write_text('[ci]\nmodels = ["model.onnx"]\nout = "small"\n')


def judged(code: int, out: str, err: str) -> str:
    """Returns what is wrong with a call; empty if nothing is."""
    complaints = [line for line in err.splitlines() if line.startswith("onnxgrad: ")]
    if code not in (0, 1, 2):
        return f"exit {code}"
    if "Traceback" in out + err:
        return "a traceback"
    if code == 2 and len(complaints) != 1:
        return f"exit 2 with {len(complaints)} lines"
    return "exit 1 without a word" if code == 1 and not out + err else ""


def called(furnished: Path, words: list[str]) -> tuple[int, str, str]:
    """Returns the exit code, the output and the errors of one command in a copy of the folder."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(furnished, folder, dirs_exist_ok=True)
        given = ["model.onnx" if word == "{}" else word for word in words]
        command = [sys.executable, "-m", "onnxgrad", *given]
        try:
            done = subprocess.run(
                command, cwd=folder, capture_output=True, text=True, timeout=2 * SECONDS
            )
        except subprocess.TimeoutExpired:
            return -1, "", f"over {2 * SECONDS} s"
    return done.returncode, done.stdout, done.stderr


def main() -> int:
    """Returns 1 if something failed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("file", nargs="+", type=Path)
    parser.add_argument("--only", default="", metavar="TEXT", help="of the words of a call")
    parser.add_argument("--inputs-too", action="store_true", help="list initializers as inputs")
    parser.add_argument("--quiet", action="store_true", help="print failures only")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="calls at once")
    given = parser.parse_args()
    need_byte_code()
    started, codes, failures = time.monotonic(), Counter[int](), 0
    for path in given.file:
        model = onnx.load(path)
        if given.inputs_too:
            listed(model)
        todo = [words for words in calls(model) if given.only in " ".join(words)]
        with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(given.jobs) as pool:
            furnish(Path(name), model)
            results = pool.map(partial(called, Path(name)), todo)
            for words, (code, out, err) in zip(todo, results, strict=True):
                codes[code] += 1
                wrong = judged(code, out, err)
                failures += bool(wrong)
                if wrong or (code and not given.quiet):
                    last = re.sub(r"\s+", " ", (err.strip() or out.strip()))[-400:]
                    print(f"{path.stem} | {' '.join(words)} | {wrong or code} | {last}", flush=True)
    calls_made = ", ".join(f"{n} exit {code}" for code, n in sorted(codes.items()))
    print(f"{len(given.file)} files, {calls_made}; {failures} failures, "
          f"{time.monotonic() - started:.0f} s")  # fmt: skip
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
