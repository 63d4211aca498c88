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
from onnxgrad.verify.reference.evaluate import reference
from onnxgrad.verify.running.session import run
from tests.grad.numeric import check_model
from tests.helpers import stored_arrays

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
    data = stored_arrays(path.with_suffix(".npz"))
    feeds = {k.removeprefix("in:"): data[k] for k in data if k.startswith("in:")}
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


def decoder() -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Two layers as onnxruntime-genai builds them: quantised tables and matrices, a cache, rotary embedding."""
    rng, (width, heads, keys, size, vocabulary) = np.random.default_rng(0), (32, 2, 1, 16, 48)
    nodes, weights, values = [], {}, []

    def matrix(name: str, x: str, y: str, k: int, n: int) -> str:
        weights[f"{name}.q"] = rng.integers(0, 256, (n, k // 16, 8)).astype(np.uint8)
        weights[f"{name}.scale"] = rng.uniform(0.01, 0.03, n * k // 16).astype(np.float32)
        return (
            f'["{name}"] "{y}" = com.microsoft.MatMulNBits <K = {k}, N = {n}, bits = 4, block_size = 16> '
            f'("{x}", "{name}.q", "{name}.scale")'
        )

    weights["table"] = rng.integers(0, 256, (vocabulary, width // 2)).astype(np.uint8)
    weights["table.scale"] = rng.uniform(0.1, 0.2, (vocabulary, width // 16)).astype(np.float32)
    angles = np.arange(16)[:, None] / 10000 ** (np.arange(size // 2) / (size // 2))
    weights |= {n: f(angles).astype(np.float32) for n, f in (("cos", np.cos), ("sin", np.sin))}
    nodes.append(
        "h0 = com.microsoft.GatherBlockQuantized <bits = 4, block_size = 16, gather_axis = 0, quantize_axis = 1> "
        '(table, ids, "table.scale")'
    )
    nodes.append("n0 = SimplifiedLayerNormalization <epsilon = 0.00001> (h0, norm)")
    weights["norm"] = rng.uniform(0.5, 1.5, width).astype(np.float32)
    for i in (0, 1):
        values.append(f"float[B,{keys},P,{size}] pk{i}, float[B,{keys},P,{size}] pv{i}")
        nodes.append(matrix(f"qkv{i}", f"n{i}", f"p{i}", width, (heads + 2 * keys) * size))
        nodes.append(
            f"a{i}, k{i}, v{i} = com.microsoft.GroupQueryAttention <num_heads = {heads}, kv_num_heads = {keys}, "
            f"do_rotary = 1, local_window_size = 4> (p{i}, , , pk{i}, pv{i}, seqlens, total, cos, sin)"
        )
        nodes.append(matrix(f"o{i}", f"a{i}", f"r{i}", heads * size, width))
        nodes.append(
            f"m{i}, , , s{i} = com.microsoft.SkipSimplifiedLayerNormalization (h{i}, r{i}, norm)"
        )
        nodes.append(matrix(f"up{i}", f"m{i}", f"u{i}", width, 64))
        nodes.append(f"f{i} = com.microsoft.QuickGelu <alpha = 1.0> (u{i})")
        nodes.append(matrix(f"down{i}", f"f{i}", f"d{i}", 64, width))
        nodes.append(
            f"n{i + 1}, , , h{i + 1} = com.microsoft.SkipSimplifiedLayerNormalization (s{i}, d{i}, norm)"
        )
    nodes.append(matrix("head", "n2", "logits", width, vocabulary))
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
        decoder (int64[B,S] ids, int32[B] seqlens, int32 total, {", ".join(values)})
        => (float[B,S,{vocabulary}] logits) {{ {" ".join(nodes)} }}"""
    )
    model.graph.initializer.extend(onnx.numpy_helper.from_array(v, n) for n, v in weights.items())
    feeds = {
        "ids": np.array([[1, 40, 7]]),
        "seqlens": np.array([4], np.int32),
        "total": np.array(5, np.int32),
    }
    for name in ("pk0", "pv0", "pk1", "pv1"):
        feeds[name] = rng.standard_normal((1, keys, 2, size)).astype(np.float32)
    return model, feeds


@pytest.mark.slow
def test_a_decoder_with_a_cache_as_onnxruntime_genai_builds_it() -> None:
    model, feeds = decoder()
    wrt = ["norm", "table.scale", "qkv0.scale", "head.scale", "pk0", "pv1"]
    # without the cache as a result onnxruntime's kernel reads what is not there
    shown = onnx.ModelProto()
    shown.CopyFrom(model)
    shown.graph.output.extend(
        onnx.helper.make_empty_tensor_value_info(n) for n in ("k0", "v0", "k1", "v1")
    )
    np.testing.assert_allclose(
        run(shown, feeds)["logits"], reference(shown, feeds)["logits"], rtol=1e-3, atol=1e-5
    )
    check_model(model, feeds, wrt, seeds=(0,), rtol=3e-4)


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")
def test_a_diffusion_model_that_onnxruntime_optimised_for_gpus(tmp_path: Path) -> None:
    """The CPU has no kernels of most of its operators; their bodies give the gradients of the original."""
    torch = pytest.importorskip("torch")
    diffusers = pytest.importorskip("diffusers")
    from diffusers.models.attention_processor import AttnProcessor
    from onnxruntime.transformers import optimizer
    from onnxruntime.transformers.fusion_options import FusionOptions

    torch.manual_seed(0)
    unet = diffusers.UNet2DConditionModel(
        sample_size=8,
        layers_per_block=1,
        block_out_channels=(32, 64),
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=16,
        norm_num_groups=8,
    ).eval()
    unet.set_attn_processor(AttnProcessor())

    class Result(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.unet = unet

        def forward(self, sample: object, timestep: object, text: object) -> object:
            return self.unet(sample, timestep, text, return_dict=False)[0]

    given = (torch.randn(1, 4, 8, 8), torch.tensor([3.0]), torch.randn(1, 7, 16))
    names = ["sample", "timestep", "text"]
    path = str(tmp_path / "unet.onnx")
    torch.onnx.export(
        Result(), given, path, dynamo=False, opset_version=17, input_names=names, output_names=["y"]
    )
    options = FusionOptions("unet")
    options.enable_packed_kv = options.enable_packed_qkv = False
    fused = optimizer.optimize_model(
        path, "unet", num_heads=0, hidden_size=0, optimization_options=options, opt_level=0
    ).model
    assert {n.op_type for n in fused.graph.node if n.domain} >= {
        "NhwcConv", "SkipGroupNorm", "GroupNorm", "MultiHeadAttention", "BiasSplitGelu", "BiasAdd",
    }  # fmt: skip
    original = onnx.load(path)
    wrt = ["sample", "text", *weights_of_both(original, fused)]
    assert len(wrt) > 100
    feeds = {n: v.numpy() for n, v in zip(names, given)}
    feeds["y_grad"] = np.random.default_rng(0).standard_normal((1, 4, 8, 8)).astype(np.float32)
    wanted, got = (run(gradient(m, wrt, "y", adjoint="input"), feeds) for m in (original, fused))
    scale = max(np.linalg.norm(wanted[f"{w}_grad"]) for w in wrt)
    for w in wrt:
        assert np.linalg.norm(got[f"{w}_grad"] - wanted[f"{w}_grad"]) <= 1e-5 * scale, w
