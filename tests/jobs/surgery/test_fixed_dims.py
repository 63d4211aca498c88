"""A model for one size alone: in its declarations, and with what that decides folded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxgrad
from onnxgrad.cli.app import main
from onnxgrad.errors import InputError
from onnxgrad.ir.load import load
from onnxgrad.verify.running.session import run
from tests.helpers import parse

TEXT = """g (float[batch,seq,4] x) => (float[batch,M] y) {
  s = Shape (x)  b = Gather (s, zero)  zero = Constant <value_ints = [0]> ()
  rest = Constant <value_ints = [-1]> ()  shape = Concat <axis = 0> (b, rest)
  y = Reshape (x, shape) }"""


def model() -> onnx.ModelProto:
    """With a size that is computed from another, as exporters declare it."""
    made = parse(TEXT)
    made.graph.output[0].type.tensor_type.shape.dim[1].dim_param = "4*seq"
    return made


def test_the_declarations_say_it() -> None:
    made = onnxgrad.fix_dims(model(), {"batch": 2})
    block = load(made).main
    assert [str(v.type) for v in block.inputs] == ["f32[2,seq,4]"]
    assert made.graph.output[0].type.tensor_type.shape.dim[0].dim_value == 2
    assert made.graph.node == model().graph.node
    whole = onnxgrad.fix_dims(model(), {"batch": 2, "seq": 3})
    assert [d.dim_value for d in whole.graph.output[0].type.tensor_type.shape.dim] == [2, 12]
    x = {"x": np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)}
    assert (run(whole, x)["y"] == run(model(), x)["y"]).all()
    assert isinstance(onnxgrad.fix_dims(load(model()), {"seq": 1}), type(load(model())))


def test_optimize_writes_and_folds_it(tmp_path: Path) -> None:
    done = onnxgrad.optimize(model(), fix_dims={"batch": 2, "seq": 3}, report=True)
    assert done.proof.verdict == "equal"
    assert {n.op_type for n in done.model.graph.node} == {"Reshape"}
    onnx.save(model(), tmp_path / "m.onnx")
    words = ["optimize", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "o.onnx")]
    assert main([*words, "--fix-dim", "batch=2", "--fix-dim", "seq=3"]) == 0
    assert onnx.load(tmp_path / "o.onnx").graph == done.model.graph
    assert main([*words, "--dim", "batch=2"]) == 0  # of the proof alone
    assert str(load(tmp_path / "o.onnx").main.inputs[0].type) == "f32[batch,seq,4]"


def test_types_inside_nested_graphs_follow() -> None:
    text = """g (float[N] x, bool c) => (float[N] y) {
      y = If (c) <then_branch = t () => (float[N] a) { a = Relu (x) },
                  else_branch = e () => (float[N] b) { b = Neg (x) }> }"""
    made = onnxgrad.fix_dims(parse(text), {"N": 3})
    branch = made.graph.node[0].attribute[0].g.output[0]
    assert branch.type.tensor_type.shape.dim[0].dim_value == 3
    onnx.checker.check_model(made, full_check=True)


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        ({"bach": 1}, r"fix_dims: \{'bach': 1\}: no input has a dimension 'bach'; did you mean 'batch'"),
        ({"q": 1}, "there are: batch, seq"),
        ({"seq": -1}, "the size must be a whole number, at least 0"),
        ({"seq": True}, "dims: .seq. must be a whole number, not True"),
    ],
)  # fmt: skip
def test_what_is_no_size_is_refused(dims: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        onnxgrad.fix_dims(model(), dims)


def test_the_command_line_says_it_in_its_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(model(), tmp_path / "m.onnx")
    words = ["optimize", str(tmp_path / "m.onnx"), "--dry-run", "--fix-dim"]
    assert main([*words, "bach=1"]) == 2
    assert "--fix-dim bach=1: no input has a dimension 'bach'" in capsys.readouterr().err
    assert main([*words, "batch"]) == 2
    assert "--fix-dim batch: write NAME=SIZE" in capsys.readouterr().err
