"""`rebase` writes what optimising anew would write, with one line for what does not fit."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from safetensors.numpy import save_file

from tests.cli.conftest import Result
from tests.helpers import ROOT, parse
from tests.train.common import examples, write_model

Run = Callable[..., Result]
TEXT = """g (float[N,2] x) => (float[N,3] y) <float[2,3] w = {1, 2, 3, 4, 5, 6}, float[3] s = {1, 2, 3}> {
  p = MatMul (x, w)  r = Relu (p)  y = Mul (r, s) }"""


def export(path: Path, s: tuple[float, ...]) -> Path:
    model = parse(TEXT)
    model.graph.initializer[1].CopyFrom(numpy_helper.from_array(np.array(s, np.float32), "s"))
    onnx.save(model, path)
    return path


def test_a_retrained_export(run: Run, tmp_path: Path) -> None:
    """From a recipe's `rebasable`, and by a flag; the records are equal."""
    old, new = export(tmp_path / "old.onnx", (1, 2, 3)), export(tmp_path / "new.onnx", (3, 2, 5))
    small, out = tmp_path / "small.onnx", tmp_path / "out.onnx"
    assert run("optimize", old, "-o", small, "--rebasable").code == 0
    record = tmp_path / "small.onnx.rebase"
    (tmp_path / "r.toml").write_text("rebasable = true\n")
    again = tmp_path / "again.onnx"
    assert run("optimize", old, "-o", again, "--config", tmp_path / "r.toml").code == 0
    assert record.read_bytes() == (tmp_path / "again.onnx.rebase").read_bytes()
    done = run("rebase", small, "--weights", new, "-o", out, "--json", tmp_path / "out.json")
    assert done.code == 0 and "facts about weights that rewrites rely on: all hold" in " ".join(
        done.out.split()
    )
    data = json.loads((tmp_path / "out.json").read_text())
    assert data["constants"] == 1 and data["proof"]["ok"]
    assert run("optimize", new, "-o", tmp_path / "anew.onnx").code == 0
    assert out.read_bytes() == (tmp_path / "anew.onnx").read_bytes()
    values = {t.name: numpy_helper.to_array(t) for t in onnx.load(new).graph.initializer}
    save_file(values, tmp_path / "w.safetensors")
    words = ("--weights", tmp_path / "w.safetensors", "-o", tmp_path / "from_file.onnx")
    assert run("rebase", small, *words, "--no-verify", "--record", record).code == 0
    assert out.read_bytes() == (tmp_path / "from_file.onnx").read_bytes()


@pytest.mark.parametrize("option", ["-o", "--json"])
def test_the_record_beside_the_model_stays(run: Run, tmp_path: Path, option: str) -> None:
    old, small = export(tmp_path / "old.onnx", (1, 2, 3)), tmp_path / "small.onnx"
    assert run("optimize", old, "-o", small, "--rebasable", "--no-verify").code == 0
    record = tmp_path / "small.onnx.rebase"
    before, out = record.read_bytes(), () if option == "-o" else ("-o", tmp_path / "out.onnx")
    done = run("rebase", small, "--weights", old, "--no-verify", *out, option, record)
    assert done.code == 2 and "the input is never changed" in done.err
    assert record.read_bytes() == before


def test_without_proof_it_imports_little(run: Run, tmp_path: Path) -> None:
    """Neither passes, gradients and training nor the proof: they take longer than the work."""
    old, out = export(tmp_path / "old.onnx", (1, 2, 3)), tmp_path / "out.onnx"
    assert run("optimize", old, "-o", tmp_path / "small.onnx", "--rebasable").code == 0
    values = {t.name: numpy_helper.to_array(t) for t in onnx.load(old).graph.initializer}
    save_file(values, tmp_path / "w.safetensors")
    words = ("rebase", tmp_path / "small.onnx", "-o", out, "--no-verify", "-q", "--weights")
    script = f"""
import sys
from onnxgrad.cli.app import main
for weights in {[str(old), str(tmp_path / "w.safetensors")]}:
    assert main([*{[*map(str, words)]}, weights]) == 0
heavy = ("passes", "rewrite", "grad", "train", "verify.proof")
print("heavy:", [name for name in heavy if f"onnxgrad.{{name}}" in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "heavy: []"


def test_results_of_fit(run: Run, tmp_path: Path) -> None:
    """Of a model, of the folder of a step, and a checkpoint: what optimising each anew would write."""
    model, data, small = write_model(tmp_path), tmp_path / "data.npz", tmp_path / "small.onnx"
    np.savez(data, **examples(64))
    assert run("optimize", model, "-o", small, "--rebasable").code == 0
    step, loss = tmp_path / "step", ("--loss", "cross_entropy")
    assert run("train-step", model, *loss, "-o", step).code == 0
    written = []
    for name, words in (("one", [model, *loss]), ("two", [step, "--folder", tmp_path / "run"])):
        new, out, anew = (tmp_path / f"{name}{end}.onnx" for end in ("", "_out", "_anew"))
        fit = run("fit", *words, "--data", data, "--steps", "3", "--threads", "1", "-o", new)
        assert fit.code == 0
        assert run("rebase", small, "--weights", new, "-o", out).code == 0
        assert run("optimize", new, "-o", anew).code == 0
        assert out.read_bytes() == anew.read_bytes() != small.read_bytes()
        written.append(onnx.load(out))
    words = ("--weights", tmp_path / "run" / "checkpoint.safetensors", "--no-verify")
    assert run("rebase", small, *words, "-o", tmp_path / "state.onnx").code == 0
    assert onnx.load(tmp_path / "state.onnx").graph == written[1].graph


def test_adapters(run: Run, tmp_path: Path) -> None:
    """Trained beside weights, merged by a command or by `rebase`."""
    model, data, small = write_model(tmp_path), tmp_path / "data.npz", tmp_path / "small.onnx"
    np.savez(data, **examples(64))
    added, tuned, merged = (tmp_path / f"{name}.onnx" for name in ("added", "tuned", "merged"))
    assert run("optimize", model, "-o", small, "--rebasable").code == 0
    assert run("lora", model, "--targets", "w*", "--rank", 2, "-o", added).code == 0
    words = (
        "--data",
        data,
        "--steps",
        4,
        "--loss",
        "cross_entropy",
        "--rate",
        "0.1",
        "--wrt",
        "*.lora_*",
    )
    assert run("fit", added, *words, "--threads", 1, "-o", tuned).code == 0
    assert run("lora", tuned, "--merge", "-o", merged).code == 0
    adapter = tmp_path / "adapter.safetensors"
    assert run("lora", tuned, "--save", adapter).code == 0
    outs = [tmp_path / "of_tuned.onnx", tmp_path / "of_merged.onnx", tmp_path / "anew.onnx"]
    for new, out in zip((tuned, merged), outs, strict=False):
        done = run("rebase", small, "--weights", new, "-o", out)
        assert done.code == 0 and ("its adapters were merged" in done.err) is (new is tuned)
    both = ("--weights", model, "--weights", adapter)
    assert run("rebase", small, *both, "-o", tmp_path / "of_both.onnx").code == 0
    assert onnx.load(tmp_path / "of_both.onnx").graph == onnx.load(outs[0]).graph
    alone = run("rebase", small, "--weights", adapter, "-o", tmp_path / "none.onnx")
    assert alone.code == 2 and len(alone.lines) == 1
    assert "without the weights to which they are added" in alone.err
    assert "--weights BASE --weights ADAPTER, where BASE" in alone.err
    assert run("optimize", merged, "-o", outs[2]).code == 0
    first, *others = (out.read_bytes() for out in outs)
    assert others == [first, first] and first != small.read_bytes()


def test_ci_writes_the_record(run: Run, tmp_path: Path) -> None:
    """A retrained model of a recipe: optimised once, new weights for the results of `ci`."""
    export(tmp_path / "old.onnx", (1, 2, 3))
    new = export(tmp_path / "new.onnx", (3, 2, 5))
    (tmp_path / "r.toml").write_text(
        'rebasable = true\n[ci]\nmodels = ["old.onnx"]\nout = "build/{name}.onnx"\n'
    )
    assert run("ci", tmp_path / "r.toml", "--update").code == 0
    small = tmp_path / "build" / "old.onnx"
    assert (tmp_path / "build" / "old.onnx.rebase").exists()
    words = ("--weights", new, "-o", tmp_path / "out.onnx", "--no-verify")
    assert run("rebase", small, *words).code == 0


def test_a_split_model(run: Run, tmp_path: Path) -> None:
    """Both files are written, beside each other; stdout has no room for two."""
    rng, paths = np.random.default_rng(0), []
    for name in ("old", "new"):
        model = parse(
            """g (float[N,64] x) => (float[N,64] y) {
          p = MatMul (a, b)  q = Add (p, w)  y = MatMul (x, q) }""",
        )
        for weight in "abw":
            array = rng.normal(size=(64, 64)).astype(np.float32)
            model.graph.initializer.append(numpy_helper.from_array(array, weight))
        paths.append(tmp_path / f"{name}.onnx")
        onnx.save(model, paths[-1])
    (tmp_path / "r.toml").write_text("rebasable = true\nlift = ['a']\n")
    small, out, anew = (tmp_path / f"{name}.onnx" for name in ("small", "out", "anew"))
    recipe = ("--config", tmp_path / "r.toml", "-o")
    assert run("optimize", paths[0], *recipe, small).code == 0
    assert run("rebase", small, "--weights", paths[1], "-o", out).code == 0
    assert run("optimize", paths[1], *recipe, anew).code == 0
    for end in (".onnx", ".prepare.onnx"):
        assert out.with_suffix(end).read_bytes() == anew.with_suffix(end).read_bytes()
    prepared = (path.with_suffix(".prepare.onnx").read_bytes() for path in (out, small))
    assert next(prepared) != next(prepared)
    done = run("rebase", small, "--weights", paths[1], "-o", "-")
    assert done.code == 2 and "split into two: write them with -o FILE" in done.err


def test_a_rewrite_that_does_not_hold(run: Run, tmp_path: Path) -> None:
    old, new = export(tmp_path / "old.onnx", (1, 2, 3)), export(tmp_path / "new.onnx", (3, -2, 5))
    small, out = tmp_path / "small.onnx", tmp_path / "out.onnx"
    assert run("optimize", old, "-o", small, "--rebasable").code == 0
    done = run("rebase", small, "--weights", new, "-o", out)
    assert done.code == 1 and not out.exists()
    (line,) = [line for line in done.lines if "scale_of_product" in line]
    assert "y: f32[N,3] = Mul(r, s) does not hold for the new weights" in line


def test_one_line_for_what_does_not_fit(run: Run, tmp_path: Path) -> None:
    old = export(tmp_path / "old.onnx", (1, 2, 3))
    small, out = tmp_path / "small.onnx", tmp_path / "out.onnx"
    assert run("optimize", old, "-o", small).code == 0
    done = run("rebase", small, "--weights", old, "-o", out)
    assert done.code == 2 and "has no record small.onnx.rebase beside it" in done.err
    assert "optimize` and --rebasable" in done.err and len(done.lines) == 1
    assert run("optimize", old, "-o", "-", "--rebasable").code == 2
    assert run("optimize", old, "-o", small, "--rebasable").code == 0
    done = run("rebase", small, "--weights", tmp_path / "none.onnx", "-o", out)
    assert done.code == 2 and "none.onnx" in done.err and not out.exists()
    done = run("rebase", small, "--weights", old, "-o", small)
    assert done.code == 2 and "small.onnx" in done.err
