"""Files that onnxruntime optimised and saved (ORT_ENABLE_EXTENDED): the same gradients as from the original."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from onnxgrad import gradient
from onnxgrad.errors import InputError
from onnxgrad.verify.running.session import run

MODELS = Path(__file__).resolve().parent.parent.parent / "models"
Level = onnxruntime.GraphOptimizationLevel
# what onnxruntime 1.31 must have fused for the comparison to say anything
FUSED = {
    "bert": {"FusedMatMul", "SkipLayerNormalization", "BiasGelu"},
    "gpt2": {"FusedMatMul", "FastGelu", "SkipLayerNormalization"},
    "vit": {"FusedMatMul", "SkipLayerNormalization"},
    "llama": {"FusedMatMul", "QuickGelu"},
    "clip": {"FusedMatMul", "QuickGelu"},
    "t5": {"FusedMatMul"},
    "whisper": {"SkipLayerNormalization"},
    "resnet18": {"FusedConv"},
    "training/bert": {"SkipLayerNormalization", "FusedGemm"},
    "training/gpt2": {"FastGelu", "SkipLayerNormalization"},
    "training/llama": {"FusedMatMul", "QuickGelu"},
    "training/cnn": {"FusedConv"},
    "training/mlp": {"FusedGemm"},
}
SLOW = {"clip", "t5", "whisper", "gpt2", "llama", "vit"}


def optimized(
    source: onnx.ModelProto | Path, target: Path, level: Level = Level.ORT_ENABLE_EXTENDED
) -> onnx.ModelProto:
    """The model as onnxruntime saves it."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    options.optimized_model_filepath = str(target)
    options.intra_op_num_threads = 1
    options.log_severity_level = 3  # it warns that the file is for machines like this one
    given = str(source) if isinstance(source, Path) else source.SerializeToString()
    onnxruntime.InferenceSession(given, options, providers=["CPUExecutionProvider"])
    return onnx.load(target)


def readers(model: onnx.ModelProto) -> Counter[str]:
    return Counter(name for n in model.graph.node for name in n.input)


def weights_of_both(a: onnx.ModelProto, b: onnx.ModelProto) -> list[str]:
    """Float weights (no lone numbers, such as exponents) that are the same in both: onnxruntime folds the transpose of
    a tied one into a second weight.
    """
    mine, other = (
        {t.name: t for t in m.graph.initializer if t.data_type == 1 and t.dims} for m in (a, b)
    )
    uses = readers(a), readers(b)
    return [
        n for n in mine if n in other and mine[n].dims == other[n].dims and uses[0][n] == uses[1][n]
    ]


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in FUSED]
)
def test_gradients_are_those_of_the_original(name: str, tmp_path: Path) -> None:
    path = MODELS / f"{name}.onnx"
    original, fused = onnx.load(path), optimized(path, tmp_path / "fused.onnx")
    assert {n.op_type for n in fused.graph.node if n.domain == "com.microsoft"} >= FUSED[name]
    data = np.load(path.with_suffix(".npz"))
    feeds = {k.removeprefix("in:"): data[k] for k in data.files if k.startswith("in:")}
    target = original.graph.output[0].name
    wrt = weights_of_both(original, fused)
    wrt += [
        v.name
        for v in original.graph.input
        if v.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    ]
    assert len(wrt) >= 6
    shape = run(original, feeds)[target].shape
    feeds[f"{target}_grad"] = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    wanted, got = (run(gradient(m, wrt, target, adjoint="input"), feeds) for m in (original, fused))
    scale = max(
        np.linalg.norm(wanted[f"{w}_grad"]) for w in wrt
    )  # a true gradient may be zero: attention's key bias
    for w in wrt:
        assert np.linalg.norm(got[f"{w}_grad"] - wanted[f"{w}_grad"]) <= 1e-5 * scale, w


OLD = {
    "LayerNormalization": """<ir_version: 7, opset_import: ["" : 13]>
        g (float[2,3,8] x, float[8] w, float[8] b) => (float[2,3,8] y) <float two = {2.0}, float tiny = {0.00001},
           float half = {0.5}, float one = {1.0}, float root = {1.4142135381698608}> {
          m = ReduceMean <axes = [-1]> (x) d = Sub (x, m) p = Pow (d, two) v = ReduceMean <axes = [-1]> (p)
          e = Add (v, tiny) s = Sqrt (e) n = Div (d, s) k = Mul (n, w) l = Add (k, b)
          q = Div (l, root) f = Erf (q) h = Add (f, one) i = Mul (l, h) y = Mul (i, half) }""",
    "SimplifiedLayerNormalization": """<ir_version: 7, opset_import: ["" : 14]>
        g (float[2,3,8] x, float[8] w) => (float[2,3,8] y) <float two = {2.0}, float tiny = {0.00001}> {
          p = Pow (x, two) v = ReduceMean <axes = [-1]> (p) e = Add (v, tiny) s = Sqrt (e) n = Div (x, s)
          k = Mul (n, w) l = Sigmoid (k) y = Mul (k, l) }""",
}


@pytest.mark.parametrize("name", OLD)
def test_old_opsets_hold_onnxruntimes_normalisation_in_the_default_domain(
    name: str, tmp_path: Path
) -> None:
    model = onnx.parser.parse_model(OLD[name])
    fused = optimized(model, tmp_path / "fused.onnx")
    assert [n.op_type for n in fused.graph.node if not n.domain] == [name] and len(
        fused.graph.node
    ) == 2
    rng = np.random.default_rng(0)
    feeds = {
        v.name: rng.standard_normal([d.dim_value for d in v.type.tensor_type.shape.dim])
        for v in model.graph.input
    }
    feeds = {
        n: v.astype(np.float32)
        for n, v in {**feeds, "y_grad": rng.standard_normal((2, 3, 8))}.items()
    }
    wanted, got = (run(gradient(m, adjoint="input"), feeds) for m in (model, fused))
    for key, value in wanted.items():
        np.testing.assert_allclose(got[key], value, rtol=1e-4, atol=1e-5)


def test_files_in_the_layout_of_one_machine_are_refused_with_advice(tmp_path: Path) -> None:
    path = MODELS / "training" / "cnn.onnx"
    fused = optimized(path, tmp_path / "fused.onnx", Level.ORT_ENABLE_ALL)
    if not any(n.domain == "com.microsoft.nchwc" for n in fused.graph.node):
        pytest.skip("onnxruntime blocks no channels on this processor")
    with pytest.raises(
        InputError, match=r"no gradient rule for com.microsoft.nchwc::.*ORT_ENABLE_EXTENDED"
    ):
        gradient(fused, "params")
