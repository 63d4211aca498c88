from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxgrad.verify import verify
from tests.cli.conftest import NO_KERNEL, Result
from tests.helpers import parse

Run = Callable[..., Result]


def scaled(path: Path, factor: float) -> Path:
    """The model with its weight `a` multiplied."""
    model = onnx.load(path)
    for tensor in model.graph.initializer:
        if tensor.name == "a":
            tensor.CopyFrom(
                numpy_helper.from_array(
                    (numpy_helper.to_array(tensor) * factor).astype(np.float32), "a"
                )
            )
    out = path.with_name(f"scaled{factor}.onnx")
    onnx.save(model, out)
    return out


def test_equal(run: Run, branches: Path) -> None:
    done = run("verify", branches, branches)
    assert (
        (done.code, done.err) == (0, "")
        and "equal on cpu" in done.out
        and "bit-identical" in done.out
    )


def test_different(run: Run, branches: Path) -> None:
    done = run("verify", branches, scaled(branches, 0.5), "--json", branches.with_suffix(".json"))
    assert (done.code, done.err) == (1, "") and "different on cpu" in done.out and "y[" in done.out
    assert json.loads(branches.with_suffix(".json").read_text())["ok"] is False


def test_other_interface(run: Run, branches: Path) -> None:
    model = onnx.load(branches)
    del model.graph.output[1]
    other = branches.with_name("other.onnx")
    onnx.save(model, other)
    done = run("verify", branches, other)
    assert done.code == 1 and "'z' is missing" in done.out


@pytest.mark.parametrize(("weights", "code"), [("auto", 0), ("rounded", 0), ("same", 1)])
def test_weights_computed_anew(run: Run, branches: Path, weights: str, code: int) -> None:
    # 1e-7 relative is what rounding a weight costs: too much for 1e-9, little enough for 1e-6
    assert run("verify", branches, scaled(branches, 1 + 1.2e-7), "--weights", weights).code == code


def test_no_advice_of_another_command(run: Run, tmp_path: Path) -> None:
    new = tmp_path / "new.onnx"
    onnx.save(parse(NO_KERNEL), new)
    done = run("verify", new, new)
    assert (
        done.code == 2
        and len(done.lines) == 1
        and "--no-verify" not in done.err
        and "new.onnx" in done.err
    )


def test_one_leg(run: Run, branches: Path) -> None:
    done = run("verify", branches, branches, "--check", "onnxruntime")
    assert done.code == 0 and "float64" not in done.out


def test_nothing_to_compare_is_not_proved(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "nan.onnx"
    onnx.save(
        parse("g (float[3] x) => (float[3] y) { n = Abs(x) e = Exp(n) m = Neg(e) y = Log(m) }"),
        path,
    )
    done = run("verify", path, path, "--json", tmp_path / "r.json")
    assert (done.code, done.err) == (1, "") and "not proved on cpu" in done.out
    assert "nothing finite to compare in y" in done.out
    found = json.loads((tmp_path / "r.json").read_text())
    assert found["verdict"] == "not proved" and found["compared"] == {"y": 0} and found["unproved"]
    assert run("verify", path, path, "--allow-empty", "y").code == 0
    done = run("verify", path, path, "--allow-empty", "z")
    assert done.code == 2 and "no such output" in done.err


def test_a_leg_that_did_not_run_is_in_the_verdict(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(
        parse("g (float16[N] x) => (int16[N] y) { y = BitCast <to = 5> (x) }", opset=26), path
    )
    done = run("verify", path, path, "--json", tmp_path / "r.json")
    assert done.code == 0 and done.out.startswith("equal on cpu; float64 check did not run")
    assert "float64 check did not run" in json.loads((tmp_path / "r.json").read_text())["summary"]


def test_python_and_the_command_give_one_verdict(run: Run, branches: Path) -> None:
    """Both look whether weights were computed anew."""
    other = scaled(branches, 1 + 1.2e-7)
    assert verify(branches, other).ok and run("verify", branches, other).code == 0
    assert not verify(branches, other, weights="same")


def test_bounds_of_ones_own(run: Run, branches: Path) -> None:
    near = scaled(branches, 1.01)
    assert run("verify", branches, near).code == 1
    done = run("verify", branches, near, "--rtol", "0.2", "--atol", "y=0.5", "--atol", "z=0.5")
    assert done.code == 0 and "within bounds (rtol=0.2, y: atol=0.5" in done.out, done.out
    done = run("verify", branches, near, "--metric", "cosine=0.9999", "--json", "-")
    assert done.code == 0 and json.loads(done.out)["bounds"] == "cosine=0.9999"
    far = run("verify", branches, near, "--metric", "y:psnr=120")
    assert far.code == 1 and "≥ 120 dB" in far.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--atol", "much"], "--atol much: write X or OUTPUT=X"),
        (["--rtol", "1", "--rtol", "2"], "--rtol: write one number for all outputs, or OUTPUT=X"),
        (["--metric", "cosine"], "--metric 'cosine': write cosine=LEAST"),
        (["--atol", "q=1"], "a bound is given for 'q', which is not an output"),
        (["--map", "y"], "--map y: write NAME=OTHER"),
        (["--map", "y=q"], "--map: the second model has no output 'q'"),
        (["--expect", "no.npz"], "stored results are compared with one model, and two were given"),
    ],
)
def test_bounds_that_are_none(run: Run, branches: Path, words: list[str], message: str) -> None:
    done = run("verify", branches, branches, *words)
    assert done.code == 2 and message in done.err, done.err


def test_stored_results(run: Run, tmp_path: Path) -> None:
    onnx.save(parse("g (float[N] x) => (float[N] y) { y = Exp (x) }"), tmp_path / "m.onnx")
    x = np.array([0, 1, 2], np.float32)
    np.savez(tmp_path / "in.npz", x=x)
    np.savez(tmp_path / "out.npz", y=np.exp(x))
    np.savez(tmp_path / "theirs.npz", logits=np.exp(x) + 1e-3)
    words = ["verify", tmp_path / "m.onnx", "--input", tmp_path / "in.npz", "--expect"]
    done = run(*words, tmp_path / "out.npz")
    assert done.code == 0 and "equal on cpu" in done.out
    done = run(*words, tmp_path / "theirs.npz", "--map", "logits=y")
    assert done.code == 1 and "different on cpu" in done.out
    assert run(*words, tmp_path / "theirs.npz", "--map", "logits=y", "--atol", "0.01").code == 0
    done = run("verify", tmp_path / "m.onnx", "--expect", tmp_path / "out.npz")
    assert (
        done.code == 2 and "stored results need the inputs that produced them: --input" in done.err
    )
    done = run("verify", tmp_path / "m.onnx")
    assert done.code == 2 and "pass a second model, or --expect FILE" in done.err


HALF = """g (float[N,4] x) => (float[N,4] y) <float k = {0.5}> {
  s = ReduceMax <keepdims = 0> (x) c = Equal (s, k) y = If (c) <
    then_branch = t () => (float[N,4] p) { p = %s (x) },
    else_branch = e () => (float[N,4] q) { q = Neg (x) }> }"""


def test_coverage_is_shown_and_asked_for(run: Run, tmp_path: Path) -> None:
    a, b, out, recipe = (tmp_path / name for name in ("a.onnx", "b.onnx", "o.onnx", "r.toml"))
    onnx.save(parse(HALF % "Tanh"), a)
    onnx.save(parse(HALF % "Abs"), b)
    shown = run("verify", a, b, "-v")
    assert shown.code == 0 and "covered: 0 of 1 thresholds, 1 of 2 branches" in shown.out
    assert "If → 'y': then not taken" in shown.out
    asked = run("verify", a, b, "--coverage", "90%")
    assert asked.code == 1 and "--coverage asks for 0.9" in asked.out
    assert run("verify", a, b, "--coverage", "much").code == 2
    recipe.write_text('[verify]\ncoverage = ">= 95%"\n')
    words = ("optimize", a, "-o", out, "--config", recipe)
    assert run(*words).code == 1 and not out.exists()
    assert run(*words, "--coverage", "0%", "--json", tmp_path / "r.json").code == 0
    proof = json.loads((tmp_path / "r.json").read_text())["models"][0]["proof"]
    assert proof["coverage"]["share"] == pytest.approx(1 / 3)
    recipe.write_text("[verify]\ncoverage = 95\n")
    refused = run(*words)
    assert refused.code == 2 and "write a share such as '>= 95%' or 0.95; got 95" in refused.err
