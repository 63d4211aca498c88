from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import onnx

import onnxgrad
from onnxgrad.wording import on_the_command_line
from tests.cli.conftest import Result
from tests.helpers import MODELS_DIR

Run = Callable[..., Result]


def test_summary(run: Run, branches: Path) -> None:
    done = run("inspect", branches)
    assert (done.code, done.err) == (0, "")
    for word in ("f32[N,4]", "MatMul", "38 (f32)", "ai.onnx 20", "IR version"):
        assert word in done.out, word


def test_text_is_the_block(run: Run, branches: Path) -> None:
    done = run("inspect", branches, "--text")
    assert done.code == 0 and done.out == f"{onnxgrad.load(branches).main}\n"


def test_json(run: Run, branches: Path) -> None:
    data = json.loads(run("inspect", branches, "--json", "-").out)
    assert (
        data["operators"] == {"Add": 1, "Identity": 1, "MatMul": 3, "Tanh": 1}
        and data["parameters"] == 38
    )
    assert data["inputs"] == [{"name": "x", "type": "f32[N,4]"}] and data["opsets"] == {"": 20}


def test_weights_and_what_is_none(run: Run) -> None:
    model = MODELS_DIR / "training" / "gpt2.onnx"
    done = run("inspect", model, "--weights")
    assert (done.code, done.err) == (0, "")
    assert (
        "weight (52)" in done.out
        and "more (-v)" in done.out
        and "a mask of large negative numbers" in done.out
    )
    every = run("inspect", model, "--weights", "-v").out
    assert "transformer.h.3.mlp.c_proj.bias" in every and "more (-v)" not in every
    data = json.loads(run("inspect", model, "--weights", "--json", "-").out)
    assert len(data["weights"]) == 52 and data["left_out"][0].keys() == {"name", "type", "why"}
    assert run("inspect", model, "--weights", "--text").code == 2


def test_names_cannot_steer_the_terminal(run: Run, branches: Path) -> None:
    model = onnx.load(branches)
    model.producer_name = "\x1b[2Jevil\r"
    model.metadata_props.add(key="k\x1b]0;t\x07", value="v\x9b1m")
    onnx.save(model, branches)
    for options in ([], ["--color", "never"]):
        out = run("inspect", branches, *options).out
        assert "evil" in out and not any(c in out for c in "\x1b\x07\x9b\r")


def test_nested_graphs_are_counted(
    run: Run, tmp_path: Path, parse: Callable[..., onnx.ModelProto]
) -> None:
    path = tmp_path / "if.onnx"
    onnx.save(
        parse("""g (bool c, float[2] x) => (float[2] y) {
            y = If (c) <then_branch = t () => (float[2] a) { a = Tanh(x) },
                        else_branch = e () => (float[2] b) { b = Exp(x) }>
        }"""),
        path,
    )
    data = json.loads(run("inspect", path, "--json", "-").out)
    assert data["operators"] == {"Exp": 1, "If": 1, "Tanh": 1}
    assert "nested graphs" in run("inspect", path).out


def test_it_prints_what_the_function_gives(run: Run, branches: Path) -> None:
    with on_the_command_line():
        assert run("inspect", branches).out == f"{onnxgrad.inspect(branches)}\n"
    data = json.loads(run("inspect", branches, "--json", "-").out)
    assert data == onnxgrad.inspect(branches).to_dict()
