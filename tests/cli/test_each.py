"""`optimize --verify each`: counts in the tables and the JSON, exit 1 that names the rewrite."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from onnxgrad.ir.ops import op
from onnxgrad.passes import rule_passes
from onnxgrad.rewrite.pattern import P, capture
from onnxgrad.rewrite.worklist import rewrite
from tests.cli.conftest import Result
from tests.helpers import parse

Run = Callable[..., Result]


@pytest.mark.parametrize("proof", [[], ["--no-verify"]])
def test_counts(run: Run, branches: Path, tmp_path: Path, proof: list[str]) -> None:
    out, record = tmp_path / "out.onnx", tmp_path / "out.json"
    done = run(
        "optimize",
        branches,
        "-o",
        out,
        "--verify",
        "each",
        "--merge",
        "always",
        "--json",
        record,
        *proof,
    )
    assert done.code == 0 and out.exists(), done.err
    found = json.loads(record.read_text())["models"][0]["each"]
    assert (
        f"each one: {found['alone'] + found['in_context']} rewrites equal on their own" in done.out
    )
    assert found["alone"] >= 2 and ("not proved" in done.out) == bool(proof)
    assert (
        json.loads(run("optimize", branches, "--dry-run", "--json", "-").out)["models"][0]["each"]
        is None
    )


@pytest.mark.parametrize("proof", [[], ["--no-verify"]])
def test_a_wrong_law(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, proof: list[str]
) -> None:
    """Hidden by a factor of 0: the whole-model proof alone writes the model."""

    @rewrite(P.Tanh(capture("x")))
    def tanh_is_relu(x):  # type: ignore[no-untyped-def]
        return op.Relu(x)

    monkeypatch.setattr(rule_passes, "NOOPS", [*rule_passes.NOOPS, tanh_is_relu])
    path, out = tmp_path / "m.onnx", tmp_path / "out.onnx"
    text = "g (float[N,4] x, float[N,4] w) => (float[N,4] y) { t = Tanh(x) z = Sub(w, w) p = Mul(t, z) y = Add(x, p) }"
    onnx.save(parse(text), path)
    done = run("optimize", path, "-o", out, "--verify", "each", *proof)
    assert done.code == 1 and not out.exists()
    (line,) = done.lines
    assert (
        "the first rewrite whose two forms differ is number 1, tanh_is_relu (pass remove-noops) at: t"
        in line
    )
    assert run("optimize", path, "-o", out).code == 0 and out.exists()
