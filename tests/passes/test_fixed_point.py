"""One run does all there is to do: optimising the result again changes nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxgrad.ir.load import load
from onnxgrad.ir.save import to_proto
from onnxgrad.passes.pipeline import Pipeline
from onnxgrad.passes.presets import PRESETS
from onnxgrad.rewrite.trace import Trace
from onnxgrad.verify import run
from tests.helpers import MODELS_DIR
from tests.rewriting import apply, assert_same_results, model_of, weights

NAMES = sorted(str(p.relative_to(MODELS_DIR).with_suffix("")) for p in MODELS_DIR.rglob("*.onnx"))
SCRIPTED = [name for name in NAMES if name.endswith("_script")]


def optimized(model: onnx.ModelProto | Path, preset: str) -> tuple[onnx.ModelProto, Trace]:
    program, trace = load(model), Trace()
    Pipeline.of(preset).run(program, trace)
    return to_proto(program), trace


def assert_fixed(path: Path, preset: str) -> onnx.ModelProto:
    once, _ = optimized(path, preset)
    twice, trace = optimized(once, preset)
    assert not [str(rewrite) for rewrite in trace.rewrites]
    assert twice == once
    return once


@pytest.mark.parametrize("name", ["inception_v3", "lstm_script", "bert_script", "training/mlp"])
def test_default_on_a_few_models(name: str) -> None:
    assert_fixed(MODELS_DIR / f"{name}.onnx", "default")


@pytest.mark.slow
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", NAMES)
def test_every_preset_on_every_model(name: str, preset: str) -> None:
    assert_fixed(MODELS_DIR / f"{name}.onnx", preset)


@pytest.mark.parametrize(
    ("name", "nodes"), [("lstm_script", 11), ("bert_script", 161), ("yolox_script", 214)]
)
def test_exports_through_torchscript(name: str, nodes: int) -> None:
    """Their shape arithmetic goes, and PyTorch's own results stay."""
    once, _ = optimized(MODELS_DIR / f"{name}.onnx", "default")
    assert len(once.graph.node) == nodes
    with np.load(MODELS_DIR / f"{name}.npz") as stored:
        given = {key: stored[key] for key in stored.files}
    feeds = {key.removeprefix("in:"): v for key, v in given.items() if key.startswith("in:")}
    for key, value in run(once, feeds).items():
        want = given[f"out:{key}"]
        assert (
            isinstance(value, np.ndarray)
            and np.abs(value - want).max() <= 1e-5 * np.abs(want).max()
        )


def test_the_exports_through_torchscript_are_there() -> None:
    assert len(SCRIPTED) == 3


def test_legalize_goes_on_behind_operators_without_a_schema() -> None:
    text = """<ir_version: 8, opset_import: ["" : 13, "com.microsoft" : 1]>
    g (uint8[N,4,8,8] x) => (uint8[N,4,M,M] y) {
      a = com.microsoft.QLinearLeakyRelu<alpha=0.1>(x, s, z, s, z)
      b = MaxPool<kernel_shape=[2,2]>(a)
      c = com.microsoft.QLinearSigmoid(b, s, z, s, z)
      d = Transpose<perm=[0,1,2,3]>(c)
      y = com.microsoft.QLinearAdd(d, s, z, c, s, z, s, z) }"""
    model = model_of(text, {"s": np.float32(0.1), "z": np.uint8(3)})
    done = apply(model, "legalize")
    assert not any(b.domain for b in done.block.bindings)
    feeds = {"x": np.random.default_rng(0).integers(0, 256, (2, 4, 8, 8)).astype(np.uint8)}
    assert_same_results(done, feeds=feeds)


def test_types_are_found_behind_what_was_folded() -> None:
    """The Reshape's sizes become constant, and only then it is known that the last one changes nothing."""
    text = """g (float[2,6] x) => (float[2,3,2] y) {
      a = Abs(one) t = Exp(a) u = Log(t) c = Cast<to=7>(u) k = Concat<axis=0>(c, rest) s = Mul(k, two)
      p = Reshape(x, s) q = Reshape(p, same) y = Neg(q) }"""
    constants = {
        "one": np.ones(1, np.float32),
        "rest": np.array([3, 2]),
        "two": np.array([2, 1, 1]),
        "same": np.array([2, 3, 2]),
    }
    once, _ = optimized(model_of(text, {**weights(), **constants}), "default")
    assert [n.op_type for n in once.graph.node] == ["Reshape", "Neg"]
    assert optimized(once, "default")[0] == once


def test_a_weight_cut_and_joined_again_is_folded_as_a_whole() -> None:
    """Each piece alone, beside the weight that the others read, would make the file larger."""
    text = """g (float[2,8] x) => (float[2,8] y) {
      a = Slice(w, zero, four, zero) b = Slice(w, four, eight, zero) c = Concat<axis=0>(b, a) y = MatMul(x, c) }"""
    bounds = {name: np.array([n]) for name, n in {"zero": 0, "four": 4, "eight": 8}.items()}
    model = model_of(text, {**weights(w=(8, 8)), **bounds})
    once, _ = optimized(model, "clean")
    assert [n.op_type for n in once.graph.node] == ["MatMul"] and once.ByteSize() < model.ByteSize()
