"""`onnxgrad float16`, and `onnxgrad.float16`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxgrad
from onnxgrad.jobs import float16
from onnxgrad.laws.float16 import keeping
from tests.cli.conftest import Result
from tests.helpers import ROOT, parse
from tests.passes.test_remove_unused_functions import function, model
from tests.rewriting import model_of

Run = Callable[..., Result]
MODEL = ROOT / "models/training/mlp.onnx"


def test_converted_and_proved(run: Run, tmp_path: Path) -> None:
    out, report = tmp_path / "out.onnx", tmp_path / "r.json"
    done = run("float16", ROOT / "models/resnet18.onnx", "-o", out, "--json", report)
    assert done.code == 0 and "within bounds (worst=0.02) on cpu" in done.out
    assert "stays in float32 because" in done.out and "its sums pass 65504" in done.out
    found = json.loads(report.read_text())
    assert found["proof"]["verdict"] == "within bounds"
    assert found["after"]["bytes"] < 0.6 * found["before"]["bytes"]
    assert onnx.load(out).graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT


@pytest.mark.slow
def test_a_bound_that_it_misses(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    done = run("float16", MODEL, "-o", out, "--metric", "worst=1e-6")
    assert done.code == 1 and not out.exists() and len(done.lines) == 1
    assert "the first rewrite that changes the result is number" in done.err
    hints = "--keep NAME leaves an operator in float32, --keep auto searches for those that must stay, --metric"
    assert hints in done.err


def test_the_search_is_reported(run: Run, tmp_path: Path) -> None:
    out, report = tmp_path / "out.onnx", tmp_path / "r.json"
    words = ("float16", MODEL, "-o", out, "--keep", "auto", "--json", report)
    done = run(*words, "--metric", "worst=1e-4")
    found = json.loads(report.read_text())["search"]
    assert done.code == 0 and found["kept"] and found["proofs"] <= found["limit"]
    assert "the proof fails with it in float16: loss[]" in done.out
    assert f"it ran {found['proofs']} proofs of at most {found['limit']}" in done.out


def test_constants_that_do_not_fit_are_told(run: Run, tmp_path: Path) -> None:
    model = model_of(
        "g (float[2] x, bool[2] m) => (float[2] y) { y = Where (m, x, low) }",
        {"low": np.float32(-3e38)},
    )
    onnx.save(model, tmp_path / "m.onnx")
    done = run("float16", tmp_path / "m.onnx", "-o", tmp_path / "out.onnx", "--no-verify")
    assert done.code == 0 and "1 of 1 number stood for infinity and became ±65504" in done.out


def test_inputs_and_outputs(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    assert run("float16", ROOT / "models/resnet18.onnx", "-o", out, "--io").code == 0
    assert onnx.load(out).graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT16


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--keep", "Gem"], "did you mean 'Gemm'?"),
        (["--rtol", "x"], "--rtol x: write X or OUTPUT=X"),
        (["--rtol", "1", "--rtol", "logits=2"], "one number for all outputs"),
        (["--rtol", "nothing=1"], "not an output"),
    ],
)
def test_bad_words_are_one_line(run: Run, tmp_path: Path, words: list[str], said: str) -> None:
    out = tmp_path / "out.onnx"
    done = run("float16", ROOT / "models/resnet18.onnx", "-o", out, *words)
    assert done.code == 2 and len(done.lines) == 1 and said in done.err and not out.exists()


def test_in_python() -> None:
    done = onnxgrad.float16(MODEL, keep=["Gemm"], metric="worst=0.01", report=True)
    assert done.proof.verdict == "within bounds" and "worst=0.01" in done.proof.bounds
    assert any("kept (Gemm)" in why for _, _, why in done.near_misses)
    program = onnxgrad.load(MODEL)
    assert isinstance(onnxgrad.float16(program, verify=False), type(program))


SUMS = """g (float[2,8] x) => (float[2,1] y) <int64[1] axes = {1}> {
    s = ReduceSum (x, axes)  e = Exp (x)  t = ReduceMax (e, axes)  y = Add (s, t) }"""


def test_what_usually_stays_is_converted_where_it_is_named(run: Run, tmp_path: Path) -> None:
    given, out = tmp_path / "m.onnx", tmp_path / "out.onnx"
    onnx.save(parse(SUMS), given)

    def of_float16() -> set[str]:
        program = onnxgrad.load(out)
        return {b.op for b in program.main.walk() if b.out.dtype == onnx.TensorProto.FLOAT16}

    assert run("float16", given, "-o", out).code == 0
    assert not {"ReduceSum", "Exp"} & of_float16()
    assert run("float16", given, "-o", out, "--convert", "Reduce*", "--convert", "e").code == 0
    assert {"ReduceSum", "Exp"} <= of_float16()
    words = ("--convert", "Reduce*", "--convert", "e", "--keep", "Exp")
    assert run("float16", given, "-o", out, *words).code == 0
    assert "ReduceSum" in of_float16() and "Exp" not in of_float16()
    wrong = run("float16", given, "-o", out, "--convert", "ReduceSun")
    assert wrong.code == 2 and "convert 'ReduceSun' matches nothing" in wrong.err


def test_what_cannot_be_converted_stays() -> None:
    text = "g (float[2,2] x) => (float[2,2] y) { e = EyeLike (x)  y = Add (x, e) }"
    done = onnxgrad.float16(parse(text), convert=["EyeLike"], report=True)
    assert any(why == "onnxruntime has it in float32 only" for _, _, why in done.near_misses)


def test_opened_functions_are_told(run: Run, tmp_path: Path) -> None:
    onnx.save(model("y = local.f(x)", function("f", "y = Abs(x)")), tmp_path / "m.onnx")
    out = tmp_path / "out.onnx"
    done = run("float16", tmp_path / "m.onnx", "-o", out, "--no-verify")
    assert done.code == 0 and "1 call of functions inlined" in done.out
    kept = run("float16", tmp_path / "m.onnx", "-o", out, "--no-verify", "--keep", "local::f")
    assert kept.code == 0 and "functions inlined" not in kept.out
    assert [f.name for f in onnx.load(out).functions] == ["f"]


@pytest.mark.slow
def test_a_model_that_onnxruntime_dies_of_is_converted_more_carefully(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if no rule knows the place; without a Transpose the report says whose fault it is."""
    monkeypatch.setattr(keeping, "_is_fatal", lambda b: False)
    text = """g (float[5,4,2] x) => (float[4,5,3] y) <float[2,3] w = {1,2,3,4,5,6}>
      { t = Transpose <perm = [1,0,2]> (x) y = MatMul (t, w) }"""
    onnx.save(parse(text), tmp_path / "a.onnx")
    done = run("float16", tmp_path / "a.onnx", "-o", tmp_path / "b.onnx")
    assert done.code == 0, done.err
    assert "all stay in float32, since onnxruntime" in done.out
    monkeypatch.setattr(float16, "_fault", lambda error, proof: "")
    refused = run("float16", tmp_path / "a.onnx", "-o", tmp_path / "c.onnx")
    assert refused.code == 1 and "is a fault of onnxruntime" in refused.err
    assert not (tmp_path / "c.onnx").exists()
