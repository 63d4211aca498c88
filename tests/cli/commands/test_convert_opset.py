"""`onnxgrad convert-opset`, and `optimize --target-opset`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from tests.cli.conftest import Result
from tests.helpers import ROOT, parse

Run = Callable[..., Result]
TEXT = "g (float[2,S] x) => (float[2] y) { y = ReduceSum <axes = [1], keepdims = 0> (x) }"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    path = tmp_path / "old.onnx"
    onnx.save(parse(TEXT, opset=12), path)
    return path


def opset_of(path: Path) -> int:
    return int(onnx.load(path).opset_import[0].version)


def test_converted_and_proved(run: Run, old: Path, tmp_path: Path) -> None:
    out, report = tmp_path / "out.onnx", tmp_path / "r.json"
    done = run("convert-opset", old, "--to", "23", "-o", out, "--json", report)
    assert done.code == 0 and "equal on cpu" in done.out
    assert opset_of(out) == 23
    found = json.loads(report.read_text())
    assert found["opset"] == 23 and found["proof"]["verdict"] == "equal"


def test_back_again(run: Run, old: Path, tmp_path: Path) -> None:
    new, back = tmp_path / "new.onnx", tmp_path / "back.onnx"
    assert run("convert-opset", old, "--to", "21", "-o", new).code == 0
    assert run("convert-opset", new, "--to", "12", "-o", back, "--no-verify").code == 0
    node = onnx.load(back).graph.node[0]
    assert {a.name for a in node.attribute} == {"axes", "keepdims"} and len(node.input) == 1


def test_listed_weights_are_no_inputs_of_a_newer_file(run: Run, tmp_path: Path) -> None:
    weights = "<float[3] w = {1, 2, 3}>"
    text = f"g (float[3] x, float[3] w) => (float[3] y) {weights} {{ y = Add(x, w) }}"
    onnx.save(parse(text, opset=9, ir_version=3), tmp_path / "m.onnx")
    out = tmp_path / "out.onnx"
    assert run("convert-opset", tmp_path / "m.onnx", "--to", "13", "-o", out).code == 0
    assert [v.name for v in onnx.load(out).graph.input] == ["x"]


@pytest.mark.parametrize("to", ["99", "5", "x"])
def test_bad_opsets_are_one_line(run: Run, old: Path, tmp_path: Path, to: str) -> None:
    done = run("convert-opset", old, "--to", to, "-o", tmp_path / "out.onnx")
    assert done.code == 2 and done.err.count("\n") == 1 and not (tmp_path / "out.onnx").exists()


def test_an_operator_that_cannot_is_named(run: Run, tmp_path: Path) -> None:
    onnx.save(
        parse("g (int32[2] x) => (int32[2] y) { y = BitwiseNot (x) }", opset=20),
        tmp_path / "m.onnx",
    )
    done = run("convert-opset", tmp_path / "m.onnx", "--to", "17", "-o", tmp_path / "out.onnx")
    assert (
        done.code == 2
        and "BitwiseNot" in done.err
        and "of opset 18 cannot be converted to 17" in done.err
    )


def test_an_operator_that_the_opset_lacks_is_opened(run: Run, tmp_path: Path) -> None:
    text = "g (float[2,S] x) => (float[2,S] y) { y = Gelu (x) }"
    onnx.save(parse(text, opset=20), tmp_path / "m.onnx")
    done = run("convert-opset", tmp_path / "m.onnx", "--to", "16", "-o", tmp_path / "out.onnx")
    assert done.code == 0 and "equal" in done.out
    assert [n.op_type for n in onnx.load(tmp_path / "out.onnx").graph.node] == [
        "Div", "Erf", "Sum", "Mul", "Mul",
    ]  # fmt: skip


@pytest.mark.slow
def test_optimize_may_use_newer_operators(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    done = run("optimize", ROOT / "models/llama.onnx", "--target-opset", "23", "-o", out)
    assert done.code == 0 and "equal on cpu" in done.out
    ops = [n.op_type for n in onnx.load(out).graph.node]
    assert ops.count("Attention") == 12 and ops.count("RMSNormalization") == 25
    told = tmp_path / "told.json"
    run(
        "optimize",
        ROOT / "models/llama.onnx",
        "--explain",
        "--dry-run",
        "--no-verify",
        "--json",
        told,
    )
    assert "Attention needs opset 23" in told.read_text(encoding="utf-8")


def test_bounds_of_the_users_own_replace_the_proofs(run: Run, old: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    words = ["convert-opset", old, "--to", "23", "-o", out]
    done = run(*words, "--rtol", "1e-3", "--atol", "y=1e-5")
    assert done.code == 0 and "within bounds (rtol=0.001, y: atol=1e-05) on cpu" in done.out
    done = run(*words, "--rtol", "many")
    assert done.code == 2 and "--rtol many: write X or OUTPUT=X" in done.err
