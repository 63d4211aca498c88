"""A model mapped over a new axis: element i of each result is what the model computes from element i."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import onnxgrad
from onnxgrad.cli.app import main
from onnxgrad.errors import InputError
from onnxgrad.ir.load import load_own
from onnxgrad.ir.save import to_proto
from onnxgrad.transform.open_batch import Opened
from onnxgrad.transform.vmap import map_inputs
from onnxgrad.verify import feeds_for, run
from tests.helpers import parse
from tests.transform.test_batching import IFS, IN_PLACE, SCANNED, SHIFTED, W


def mapped(model: onnx.ModelProto, names: list[str] | None = None, axis: int = 0) -> Opened:
    """The mapped model, each row of which is what the model computes from that row."""
    done = map_inputs(load_own(model), names, axis=axis)
    made = to_proto(done.program)
    onnx.checker.check_model(made, full_check=True)
    runs = [feeds_for(model, seed=seed) for seed in range(3)]
    runs = [{n: v if n in done.inputs else runs[0][n] for n, v in feeds.items()} for feeds in runs]
    feeds = {
        n: np.stack([r[n] for r in runs], axis) if n in done.inputs else v
        for n, v in runs[0].items()
    }
    results = [run(model, each) for each in runs]
    for name, value in run(made, feeds).items():
        expected = np.stack([r[name] for r in results], axis)
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6, err_msg=name)
    return done


@pytest.mark.slow
@pytest.mark.parametrize("text", [*IN_PLACE, *SHIFTED, *SCANNED, *IFS])
def test_what_open_batch_does_to_a_batch_of_one(text: str) -> None:
    mapped(parse(text.replace(" W ", f" {W} ")))


MAPPED = [
    "g (float[2,3] x, float[3,4] w) => (float[2,4] y) { y = MatMul (x, w) }",
    "g (float x, float[2] z) => (float[2] y, float q) { y = Mul (x, z)  q = Exp (x) }",
    "g (float[2,3,5,5] x, float[4,3,3,3] w) => (float[2,4,3,3] y) { y = Conv (x, w) }",
    "g (float[4,3] x) => (float[3] y) { a = Constant <value_ints = [0]> ()  y = ReduceMean <keepdims = 0> (x, a) }",
    "g (float[4,3] x) => (float[4,3] y) { y = Softmax <axis = 0> (x) }",
    "g (float[5,2,3] x) => (float[15,2] y) { t = Transpose <perm = [0,2,1]> (x)  s = Constant <value_ints = [15, 2]> ()  y = Reshape (t, s) }",
    "g (float[4,3] x) => (float[4,3] y) { q, s, z = DynamicQuantizeLinear (x)  y = DequantizeLinear (q, s, z) }",
    "g (float[4,3] x, int64[2] i) => (float[2,3] y) { y = Gather (x, i) }",
    # sizes and axes that the run decides
    "g (float[4,3] x) => (float[4] y) <int64[1] a = {1}> { n = Neg (a)  y = ReduceSum <keepdims = 0> (x, n) }",
    "g (float[2,3] x, int64[2] r) => (float[P,Q] y) { t = Tile (x, r)  y = Exp (t) }",
    "g (float[2,3] x, int64[2] r) => (float[Q,P] y) { t = Tile (x, r)  y = Transpose (t) }",
    "g (float[T,3] x) => (float[T,3] y) { s = Constant <value_ints = [-1, 3]> ()  r = Reshape (x, s)  y = Tanh (r) }",
    "g (float[3] x) => (float[3] y, float[2] c) { y = Neg (x)  c = Constant <value_floats = [1.0, 2.0]> () }",
]  # fmt: skip


@pytest.mark.parametrize("text", MAPPED)
def test_models_without_a_batch(text: str) -> None:
    mapped(parse(text))


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("names", [["x"], ["w"], None])
def test_axes_and_chosen_inputs(axis: int, names: list[str] | None) -> None:
    done = mapped(parse(MAPPED[0]), names, axis)
    assert not done.scanned and done.own


def test_the_interface() -> None:
    done = mapped(parse(MAPPED[-1]))
    assert [str(v.type) for v in done.program.main.outputs] == ["f32[rows,3]", "f32[rows,2]"]
    assert done.notes == ("output 'c' does not depend on the inputs that are mapped, and repeats",)
    model = onnxgrad.vmap(parse(MAPPED[0]), "x", symbol="n")
    assert [d.dim_param for d in model.graph.input[0].type.tensor_type.shape.dim] == ["n", "", ""]


@pytest.mark.parametrize(
    ("text", "names", "axis", "reason"),
    [
        (MAPPED[0], ["q"], 0, "'q' is not an input"),
        (MAPPED[1], ["x"], 1, "input 'x' f32\\[\\] can have no new axis 1"),
        (MAPPED[0].replace("2,3]", "rows,3]").replace("2,4]", "rows,4]"), ["x"], 0, "the size 'rows' exists already"),
        ("g (float[3] x) => (float[3] y) { r = RandomNormal <shape = [3]> ()  y = Add (x, r) }", None, 0, "RandomNormal.*random numbers"),
        ("g (float[4] x) => (int64[1,N] y) { y = NonZero (x) }", None, 0, "NonZero.*size depends on values"),
        ("g (float[0,3] x) => (float[0,3] y) { y = Neg (x) }", None, 0, "is empty"),
        ("g (float[3] x, float[2] z) => (float[3] y, float[2] z) { y = Neg (x) }", ["x"], 0, "output 'z' is an input that is not mapped"),
    ],
)  # fmt: skip
def test_refused(text: str, names: list[str] | None, axis: int, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        map_inputs(load_own(parse(text)), names, axis=axis)


def test_the_command(tmp_path: object, capsys: pytest.CaptureFixture[str]) -> None:
    model, out = f"{tmp_path}/m.onnx", f"{tmp_path}/o.onnx"
    onnx.save(parse(MAPPED[2]), model)
    assert main(["vmap", model, "--map", "x", "-o", out]) == 0
    printed = capsys.readouterr().out
    assert "input x: f32[rows,2,3,5,5]" in printed and "output y: f32[rows,2,4,3,3]" in printed
    assert "independence" in printed
    onnx.save(parse("g (float[3] x) => (float[3] y) { z = Sub (x, x)  y = Exp (z) }"), model)
    assert main(["vmap", model, "-o", out]) == 1
    assert "every row has the same y" in capsys.readouterr().err
