"""`onnxgrad grad --jvp`, `--hvp`, `--jacobian`, `--casadi`: written once a sample agrees with differences."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxgrad.verify.running.session import run as run_model
from tests.cli.conftest import Result
from tests.helpers import parse

Run = Callable[..., Result]
TEXT = """g (float[N,3] x) => (float[N,2] y, float loss)
  <float[3,2] w = {1,-2, 0.5,0.3, -0.4,0.7}> { h = MatMul (x, w)  y = Tanh (h)
  loss = ReduceSumSquare <keepdims = 0> (y) }"""


@pytest.fixture
def given(tmp_path: Path) -> tuple[Path, Path]:
    onnx.save(parse(TEXT), tmp_path / "m.onnx")
    return tmp_path / "m.onnx", tmp_path / "o.onnx"


@pytest.mark.parametrize(
    ("words", "inputs", "outputs"),
    [
        (["--jvp", "--target", "y"], ["x", "x_tangent"], ["y", "loss", "y_tangent"]),
        (["--hvp", "--target", "loss"], ["x", "x_tangent"], ["y", "loss", "x_grad", "x_hvp"]),
        (["--jacobian", "--target", "y"], ["x"], ["y", "loss", "y_by_x"]),
        (["--jacobian", "--target", "y", "--per-sample", "--mode", "forward"], ["x"],
         ["y", "loss", "y_by_x"]),
        (["--jvp", "--target", "y", "--names", "d_{}"], ["x", "d_x"], ["y", "loss", "d_y"]),
        (["--jacobian", "--target", "y", "--wrt", "h", "--stop", "h", "--allow-empty", "x"], ["x"],
         ["y", "loss", "y_by_x", "y_by_h"]),
    ],
)  # fmt: skip
def test_products(
    run: Run, given: tuple[Path, Path], words: list[str], inputs: list[str], outputs: list[str]
) -> None:
    model, out = given
    done = run("grad", model, "-o", out, "--wrt", "x", *words, "--json", "-")
    assert done.code == 0, done.err
    found, told = onnx.load(out), json.loads(done.out)
    assert [v.name for v in found.graph.input] == inputs
    assert [v.name for v in found.graph.output] == outputs
    assert told["of"] == words[0][2:] and told["check"]["verdict"] == "agrees"
    feeds = {n: np.ones((2, 3), np.float32) for n in inputs}
    assert run_model(found, feeds).keys() == set(outputs)


@pytest.mark.slow
def test_the_files_that_casadi_looks_for(run: Run, tmp_path: Path) -> None:
    """What counts seeds gets sizes that fit each other."""
    onnx.save(parse(TEXT.replace("[N,", "[2,")), tmp_path / "f.onnx")
    for source, kind in [("f", "adj"), ("f", "fwd"), ("adj_f", "fwd"), ("adj_f", "adj")]:
        out = tmp_path / f"{kind}_{source}.onnx"
        words = ["grad", tmp_path / f"{source}.onnx", "-o", out, "--casadi", kind]
        done = run(*words, "--json", "-")
        assert done.code == 0, done.err
        told, found = json.loads(done.out), onnx.load(out).graph
        assert told["of"] == kind and told["check"]["verdict"] == "agrees"
        assert set(told["inputs"].values()) < {v.name for v in found.input}
        assert list(told["outputs"].values()) == [v.name for v in found.output]
    assert [v.name for v in found.output] == ["adj2_x", "adj2_adj_y", "adj2_adj_loss"]
    done = run("grad", tmp_path / "adj_f.onnx", "-o", out, "--casadi", "fwd", "--dim", "nadj=3")
    assert done.code == 2 and "--dim nadj_x_2=SIZE" in done.err


def test_a_wrong_rule_is_not_written(run: Run, given: tuple[Path, Path], tmp_path: Path) -> None:
    model, out = given
    plugin = tmp_path / "wrong.py"
    plugin.write_text(
        "from onnxgrad import vjp\nvjp('Tanh', lambda g, y, x: g * (1.1 - y * y), replace=True)\n"
    )
    words = ["grad", model, "-o", out, "--wrt", "x", "--target", "y", "--jacobian"]
    done = run(*words, "--plugin", plugin)
    assert done.code == 1 and "DIFFERS" in done.err and not out.exists()
    done = run(*words, "--plugin", plugin, "--no-verify")
    assert done.code == 0 and out.exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--jvp", "--per-sample"], "--per-sample does not apply to --jvp"),
        (["--hvp", "--mode", "forward"], "--mode is for --jacobian"),
        (["--jvp", "--ste"], "--ste does not apply to --jvp"),
        (["--hvp", "--checkpoint", "auto"], "--checkpoint does not apply to --hvp"),
        (["--jacobian", "--adjoint", "input"], "--adjoint does not apply to --jacobian"),
        (["--jvp", "--hvp"], "not allowed with argument"),
        (["--casadi", "adj", "--stop", "h"], "--stop does not apply to --casadi adj"),
        (["--jvp", "--target", "y", "--stop", "x"], "stop 'x' is an input or weight"),
        (["--casadi", "adj", "--names", "a_{}"], "--names does not apply to --casadi adj"),
        (["--casadi", "fwd", "--mode", "forward"], "--mode is for --jacobian"),
        (["--casadi", "jac"], "invalid choice: 'jac'"),
        (["--jvp", "--target", "y", "--allow-empty", "q"], "--allow-empty q: no derivative by it"),
    ],
)
def test_what_does_not_go_together(
    run: Run, given: tuple[Path, Path], words: list[str], message: str
) -> None:
    model, out = given
    done = run("grad", model, "-o", out, "--wrt", "x", *words)
    assert done.code == 2 and message in done.err and done.err.count("\n") == 1
