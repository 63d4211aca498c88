"""`onnxgrad grad --split`: two parts and a manifest, written once both are the gradient."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from jsonschema import validate

from onnxgrad.transform.gradient_split import SCHEMA
from tests.cli.conftest import Result
from tests.helpers import parse

Run = Callable[..., Result]
MLP = """g (float[N,3] x, int64[N] rows, float[3,4] w) => (float[N,4] y, float loss) {
    h = MatMul (x, w)  t = Tanh (h)  e = Exp (t)  m = Gather (e, rows)  y = Mul (m, t)
    s = Mul (y, y)  loss = ReduceSum <keepdims = 0> (s) }"""


def test_command(run: Run, tmp_path: Path) -> None:
    onnx.save(parse(MLP), tmp_path / "m.onnx")
    forward, backward = tmp_path / "f.onnx", tmp_path / "b.onnx"
    done = run(
        "grad", tmp_path / "m.onnx", "--target", "loss", "--split", forward, backward, "--json", "-"
    )
    assert done.code == 0, done.err
    told, manifest = json.loads(done.out), json.loads((tmp_path / "b.json").read_text())
    validate(manifest, json.loads(SCHEMA.read_text()))
    assert told["check"]["verdict"] == "agrees" and told["manifest"]["residuals"]
    assert manifest["forward"] == "f.onnx" and manifest["keep"] == "auto"
    assert {v.name for v in onnx.load(backward).graph.input} == {
        e["name"] for e in (*manifest["residuals"], *manifest["adjoints"])
    }
    one = tmp_path / "both.onnx"
    done = run(
        "grad",
        tmp_path / "m.onnx",
        "--target",
        "loss",
        "--no-verify",
        "--keep",
        "products",
        "--split",
        one,
    )
    assert done.code == 0 and len(onnx.load(one).functions) == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--split", "f.onnx", "f.onnx"], "is where --split writes"),
        (["--split", "f.onnx", "g.onnx", "h.onnx"], "FORWARD and BACKWARD, or one file"),
        (["--split", "f.onnx", "b.onnx", "-o", "o.onnx"], "leave -o out"),
        (["--split", "f.onnx", "b.onnx", "--jvp"], "leave --jvp out"),
        (["--split", "f.onnx", "-"], "none of them to stdout"),
        (["--split", "f.onnx", "b.onnx", "--keep", "tt"], "'tt' is no value or operator of the forward part (did you mean"),
        (["--split", "f.onnx", "b.onnx", "--checkpoint", "auto"], "--checkpoint does not apply to --split"),
        (["--split", "f.onnx", "b.onnx", "--keep", ""], "--keep is empty"),
        (["--keep", "products", "-o", "o.onnx"], "--keep is for --split"),
        ([], "-o OUT is missing"),
    ],
)  # fmt: skip
def test_refused(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
) -> None:
    onnx.save(parse(MLP), tmp_path / "m.onnx")
    monkeypatch.chdir(tmp_path)
    done = run("grad", "m.onnx", "--target", "loss", *words)
    assert done.code == 2 and message in done.err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.onnx"]
