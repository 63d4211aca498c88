"""A part of a model computes what the whole does there."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxgrad
from onnxgrad.cli.app import main
from onnxgrad.errors import CannotRun, InputError
from onnxgrad.ir.load import load, load_own
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.types import TensorType
from onnxgrad.jobs.surgery.extract import extracted, proved
from onnxgrad.surgery import extract
from onnxgrad.verify.running.session import run
from tests.backend_suite import usable
from tests.helpers import parse, signature

TEXT = """g (float[N,3] x, float[N,2] z) => (float[N,2] y, float[N,2] u)
  <float[3,2] w = {1,-2, 0.5,0.3, -0.4,0.7}> { h = MatMul (x, w)  t = Tanh (h)
  e = Exp (t)  y = Mul (e, z)  u = Neg (t) }"""


@pytest.mark.parametrize(
    ("inputs", "outputs", "left"),
    [
        (None, ["h"], (["x"], ["h"], ["MatMul"])),
        (["t", "z"], ["y"], (["t", "z"], ["y"], ["Exp", "Mul"])),
        (["z", "t"], ["y"], (["z", "t"], ["y"], ["Exp", "Mul"])),
        (["h"], ["e", "u"], (["h"], ["e", "u"], ["Tanh", "Exp", "Neg"])),
        (["x", "w"], ["h"], (["x", "w"], ["h"], ["MatMul"])),
        (["[xz]"], ["[ey]", "h"], (["x", "z"], ["e", "y", "h"], ["MatMul", "Tanh", "Exp", "Mul"])),
        (None, None, (["x", "z"], ["y", "u"], ["MatMul", "Tanh", "Exp", "Mul", "Neg"])),
    ],
)
def test_the_part_between(
    inputs: list[str] | None, outputs: list[str] | None, left: tuple[list[str], ...]
) -> None:
    part = extract(parse(TEXT), inputs, outputs)
    onnx.checker.check_model(part, full_check=True)
    assert signature(part) == left
    kept = [t.name for t in part.graph.initializer]
    assert kept == (["w"] if "MatMul" in left[2] and "w" not in left[0] else [])


def test_an_output_that_is_listed_twice() -> None:
    """onnxruntime accepts such a file."""
    model = parse(TEXT)
    model.graph.output.append(model.graph.output[0])
    assert [v.name for v in extract(model, outputs=["h"]).graph.output] == ["h"]


def test_types_and_values() -> None:
    part = extract(parse(TEXT), ["t", "z"], ["y"])
    assert [str(v.type) for v in load(part).main.inputs] == ["f32[N,2]", "f32[N,2]"]
    t = np.array([[0.1, -0.2]], np.float32)
    assert np.allclose(run(part, {"t": t, "z": 2 * t})["y"], np.exp(t) * 2 * t)


def test_a_value_read_inside_a_branch() -> None:
    text = """g (float[2] x, bool c) => (float[2] y) { h = Exp (x)
      y = If (c) <then_branch = t () => (float[2] a) { a = Relu (h) },
                  else_branch = e () => (float[2] b) { b = Neg (h) }> }"""
    part = extract(parse(text), ["h", "c"], ["y"])
    assert signature(part)[0] == ["h", "c"] and signature(part)[2] == ["If"]


def test_a_wrong_part_is_found_out() -> None:
    wrong = load(parse(TEXT.replace("Exp", "Sin")))
    assert not proved(parse(TEXT), wrong)


@pytest.mark.parametrize(
    ("inputs", "outputs", "message"),
    [
        (None, ["hh"], "outputs='hh': the main graph has no value of this name"),
        (["q"], ["y"], "inputs='q': the main graph has no value of this name"),
        (
            ["t"],
            ["y"],
            "the outputs also depend on 'z', which is not an input of the part: add it to inputs",
        ),
        (["t"], ["t"], "'t' is requested as input and as output"),
        (["t", "t"], ["u"], "input 't' is requested twice"),
    ],
)
def test_what_cannot_be_cut_is_refused(
    inputs: list[str] | None, outputs: list[str], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        extract(parse(TEXT), inputs, outputs)


def test_the_kind_that_was_given_comes_back() -> None:
    whole = load(parse(TEXT))
    assert isinstance(extract(whole, None, ["h"]), type(whole))
    assert len(whole.main.outputs) == 2  # and is not changed


def test_a_packaged_model() -> None:
    part = extract("models/training/mlp.onnx", None, ["linear_2"])
    assert signature(part)[1] == ["linear_2"]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(parse(TEXT), tmp_path / "m.onnx")
    model, out = str(tmp_path / "m.onnx"), str(tmp_path / "o.onnx")
    assert main(["extract", model, "-o", out, "--inputs", "t,z", "--outputs", "y"]) == 0
    assert "5 → 2 nodes" in capsys.readouterr().out
    assert signature(onnx.load(out)) == (["t", "z"], ["y"], ["Exp", "Mul"])
    assert main(["extract", model, "-o", out, "--outputs", "h", "--json", str(tmp_path / "j")]) == 0
    assert json.loads((tmp_path / "j").read_text())["proof"]["verdict"] == "equal"
    capsys.readouterr()
    assert main(["extract", model, "-o", out, "--outputs", "hh"]) == 2
    assert "--outputs hh: the main graph has no value" in capsys.readouterr().err
    assert onnxgrad.extract(model, outputs=["h"], verify=False).graph.node[0].op_type == "MatMul"


def test_names_with_commas_and_braces(tmp_path: Path) -> None:
    """An exact name wins before a list is split."""
    model = parse(TEXT)
    for node in model.graph.node:
        node.input[:] = ["t,{1},2" if n == "t" else n for n in node.input]
        node.output[:] = ["t,{1},2" if n == "t" else n for n in node.output]
    onnx.save(model, tmp_path / "m.onnx")
    files = [str(tmp_path / "m.onnx"), "-o", str(tmp_path / "p.onnx"), "-q"]
    assert main(["extract", *files, "--outputs", "h,t,{1},2,e"]) == 0
    made = onnx.load(tmp_path / "p.onnx").graph
    assert [v.name for v in made.output] == ["h", "t,{1},2", "e"]
    assert main(["extract", *files, "--inputs", "t,{1},2", "--outputs", "u"]) == 0
    made = onnx.load(tmp_path / "p.onnx").graph
    assert [v.name for v in made.input] == ["t,{1},2"]
    with pytest.raises(InputError, match="outputs='a': the main graph has no value"):
        extract(model, outputs=["h", "a"])


UNRANKED = (
    "g (float[N,4] x) => (float[M] y) { q = Squeeze (x) t = Tanh (q) y = Flatten <axis = 0> (t) }"
)


def test_an_output_of_unknown_rank_is_declared_with_that_of_the_run() -> None:
    """onnx.checker refuses an output without a shape."""
    part = onnxgrad.extract(parse(UNRANKED), outputs=["t"])
    onnx.checker.check_model(part, full_check=True)
    assert len(part.graph.output[0].type.tensor_type.shape.dim) == 2


@pytest.mark.slow
def test_every_value_of_the_backend_suite_is_an_output_that_onnx_accepts() -> None:
    count = 0
    for case in usable():
        if case.kind != "node" or len(case.model.graph.node) < 2:
            continue
        program = onnxgrad.load(case.model)
        unranked = [
            v.name
            for v in program.main.vars()
            if v.definition is not None and isinstance(v.type, TensorType) and v.type.shape is None
        ]
        for name in unranked[:2]:
            part = extracted(load_own(case.model), None, [name])
            try:
                proved(case.model, part)
            except CannotRun:  # its inputs depend on each other
                continue
            onnx.checker.check_model(to_proto(part, weights=True))
            count += 1
    assert count > 10
