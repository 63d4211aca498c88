"""Steps and gradients of int8 files open in a session with default options, and compute the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper

import onnxgrad
from onnxgrad.grad.integer_moves import move_integers
from onnxgrad.ir.save import to_proto
from onnxgrad.train import save_step
from tests.helpers import parse

SHAPES = {
    "sizes": np.array([0, 24]), "first": np.array([1]), "to": np.array([3]), "from": np.array([1]),
}  # fmt: skip
# of a value d (N, 1, 4, 6)
MOVES = {
    "Reshape": "y = Reshape (d, sizes)",
    "Transpose": "y = Transpose <perm = [0, 1, 3, 2]> (d)",
    "Squeeze": "y = Squeeze (d, first)",
    "Unsqueeze": "y = Unsqueeze (d, first)",
    "Slice": "y = Slice (d, from, to, to)",
    "MaxPool": "y = MaxPool <kernel_shape = [2, 2]> (d)",
    "places of maxima": "y, at = MaxPool <kernel_shape = [2, 2]> (d) z = Neg (at)",
    "an Identity before": "e = Identity (d) y = Reshape (e, sizes)",
    "two moves": "t = Transpose <perm = [0, 1, 3, 2]> (d) y = Reshape (t, sizes)",
    "another reader": "r = Relu (d) y = Unsqueeze (d, first)",
}


def model(moves: str, opset: int, dtype: str = "float", zero: int = 3) -> onnx.ModelProto:
    extra = {"at = ": ", int64[N, 1, 3, 5] z", "r = ": f", {dtype}[N, 1, 4, 6] r"}
    more = "".join(text for key, text in extra.items() if key in moves)
    made = parse(
        f"""g ({dtype}[N, 1, 4, 6] x) => ({dtype} y{more}) <int8 z0 = {{{zero}}}> {{
        q = QuantizeLinear (x, s, z0) d = DequantizeLinear (q, s, z0) {moves} }}""",
        opset=opset,
    )
    made.graph.output[0].type.tensor_type.ClearField("shape")
    scale = np.array(0.05, np.float16 if dtype == "float16" else np.float32)
    for name, value in {**SHAPES, "s": scale}.items():
        if name in moves or name == "s":
            made.graph.initializer.append(numpy_helper.from_array(value, name))
    return made


def opens(made: Any) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    return ort.InferenceSession(made.SerializeToString(), options, ["CPUExecutionProvider"])


@pytest.mark.covering
@pytest.mark.parametrize("moves", MOVES)
@pytest.mark.parametrize(("dtype", "zero"), [("float", 3), ("float", 0), ("float16", 3)])
def test_each_move_opens_and_computes_the_same(moves: str, dtype: str, zero: int) -> None:
    before = model(MOVES[moves], 20, dtype, zero)
    program = onnxgrad.load(model(MOVES[moves], 23, dtype, zero))
    move_integers(program)
    program.main.check()
    # near integers, because float16 is rounded in another way at ties from opset 21 on; some clip
    x = 0.05 * np.random.default_rng(0).integers(-150, 150, (2, 1, 4, 6))
    feeds = {"x": x.astype(np.float16 if dtype == "float16" else np.float32)}
    expected = opens(before).run(None, feeds)
    for found, wanted in zip(opens(to_proto(program)).run(None, feeds), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_onnxruntime_still_needs_it() -> None:
    """If this fails for all versions in use, the module can go."""
    with pytest.raises(Exception, match="does not match y_zero_point type"):
        opens(model(MOVES["Reshape"], 23))


@pytest.mark.parametrize(
    ("opset", "change"),
    [
        (20, {}),
        (23, {"int8": "uint8"}),
        (23, {"s = {0.05}": "s = {-0.05}"}),
        (23, {"(q, s, z0)": "(q, s)", "z0 = {3}": "z0 = {0}"}),
        (23, {"q = QuantizeLinear (x, s, z0)": "o = Relu (x) q = Constant <value = int8[1,2] {1, 2}> ()"}),
    ],
)  # fmt: skip
def test_others_stay(opset: int, change: dict[str, str]) -> None:
    text = """g (float[N, 6] x) => (float[6, N] y) <float s = {0.05}, int8 z0 = {3}> {
        q = QuantizeLinear (x, s, z0) d = DequantizeLinear (q, s, z0) y = Transpose <perm = [1, 0]> (d) }"""
    for old, new in change.items():
        assert old in text
        text = text.replace(old, new)
    program = onnxgrad.load(parse(text, opset=opset))
    before = to_proto(program).SerializeToString(deterministic=True)
    move_integers(program)
    assert to_proto(program).SerializeToString(deterministic=True) == before


def quantised() -> onnx.ModelProto:
    """A network with reshaped, transposed and pooled int8 before its products."""
    made = parse(
        """g (float[N,1,4,4] x) => (float[N,3] y)
        <float xs={0.05}, int8 xz={3}, float ws={0.1}, int8 wz={0}> {
        xq = QuantizeLinear (x, xs, xz)  xd = DequantizeLinear (xq, xs, xz)
        m = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (xd)  f = Reshape (m, to_four)
        f2 = Reshape (xd, to_sixteen)  w = DequantizeLinear (wq, ws, wz)
        v = DequantizeLinear (vq, ws, wz)  vt = Transpose <perm = [1, 0]> (v)
        a = MatMul (f, w)  b = MatMul (f2, vt)  y = Add (a, b) }""",
        opset=23,
    )
    rng = np.random.default_rng(0)
    weights = {n: rng.integers(-9, 9, s).astype(np.int8) for n, s in {"wq": (4, 3), "vq": (3, 16)}.items()}  # fmt: skip
    weights |= {"to_four": np.array([-1, 4]), "to_sixteen": np.array([-1, 16])}
    for name, value in weights.items():
        made.graph.initializer.append(numpy_helper.from_array(value, name))
    return made


@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_files_of_a_step_open_at_default_options(tmp_path: Any, accumulate: int) -> None:
    x = np.random.default_rng(1).normal(0, 1, (32, 1, 4, 4)).astype(np.float32)
    data = {"x": x, "target": x.reshape(32, 16)[:, :3]}
    step = onnxgrad.training_step(quantised(), "mse", "adam", ste=True, accumulate=accumulate)
    save_step(step, tmp_path / "step")
    paths = list((tmp_path / "step").glob("*.onnx"))
    assert len(paths) == 3 + (accumulate > 1)
    for path in paths:
        opens(onnx.load(path))
    trainer = onnxgrad.Trainer(tmp_path / "step", 0.01, threads=1)
    losses = trainer.fit(data, epochs=20, batch_size=16).losses
    assert losses[-1] < 0.5 * losses[0]
    trainer.deploy(tmp_path / "trained.onnx")
    (found,) = opens(onnx.load(tmp_path / "trained.onnx")).run(None, {"x": x})
    np.testing.assert_allclose(found, trainer.predict({"x": x})["y"], rtol=0, atol=1e-5)
