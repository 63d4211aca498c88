# ruff: noqa: E501  # graphs as text, one to a line
"""The gain of raising chains to operators of opset 23 and to onnxruntime's own operators, for whole
models and for single operators.

`python scripts/bench_composites.py [vit bert llama] [--seconds S]` needs torch and transformers
beside onnxruntime. With `--only operators` or `--only onnxruntime` it measures one table, needs
neither package, and records nothing. The same PyTorch model is exported at opsets 18 and 23, with
attention as separate operations ("eager") and as one call ("sdpa"). The file of opset 18 is
optimised without options, with `target_opset=23`, and with `for_="onnxruntime"`. All files of a
model run in turns on one thread; times are CPU time. The record is scripts/results/composites.md.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

import onnxgrad  # noqa: E402  # the script runs from a checkout
from onnxgrad import bench  # noqa: E402
from scripts.records import write_record  # noqa: E402

MODELS = {
    "vit": "ViT, hidden 384, 6 layers, 6 heads, 197 tokens",
    "bert": "BERT, hidden 384, 6 layers, 6 heads, (2, 128) ids with a mask",
    "llama": "Llama, hidden 512, 6 layers, 8 heads, 2 of keys and values, 128 ids",
}
FILES = (
    *("18", "23", "18 optimised", "18 raised", "23 optimised"),
    *("18 for onnxruntime", "18 raised for onnxruntime"),
)


def build(name: str, attention: str) -> tuple[Any, dict[str, Any], Any]:
    """Returns a module, its inputs, and the sizes that are symbols."""
    import torch
    import transformers as hf
    from exporting.common import randomise
    from exporting.hf import Ids, IdsMask, Pixels

    torch.manual_seed(0)
    sizes = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 6}
    dynamic = None
    if name == "vit":
        config = hf.ViTConfig(**sizes, intermediate_size=1536)
        inputs = {"pixel_values": torch.randn(1, 3, 224, 224)}
    elif name == "bert":
        config = hf.BertConfig(**sizes, intermediate_size=1536, vocab_size=2000)
        mask = torch.ones(2, 128, dtype=torch.int64)
        mask[1, 100:] = 0
        inputs = {"input_ids": torch.randint(3, 2000, (2, 128)), "attention_mask": mask}
        dynamic = {key: {0: "batch", 1: "sequence"} for key in inputs}
    else:
        config = hf.LlamaConfig(
            hidden_size=512, num_hidden_layers=6, num_attention_heads=8, num_key_value_heads=2,
            intermediate_size=1376, vocab_size=2000, use_cache=False,
        )  # fmt: skip
        inputs = {"input_ids": torch.randint(3, 2000, (1, 128))}
    config._attn_implementation = attention
    hidden = ("last_hidden_state",)
    module = {
        "vit": lambda: Pixels(hf.ViTModel(config, add_pooling_layer=False), hidden),
        "bert": lambda: IdsMask(hf.BertModel(config, add_pooling_layer=False), hidden),
        "llama": lambda: Ids(hf.LlamaForCausalLM(config), ("logits",)),
    }[name]()
    randomise(module.eval())
    return module, inputs, dynamic


def export(name: str, attention: str, folder: Path) -> tuple[dict[str, Path], dict[str, Any]]:
    """Returns the files to compare and their inputs."""
    import torch

    files: dict[str, Path] = {}
    feeds: dict[str, Any] = {}
    for opset in (18, 23):
        module, inputs, dynamic = build(name, attention)
        program = torch.onnx.export(
            module, kwargs=inputs, dynamo=True, opset_version=opset, dynamic_shapes=dynamic,
            verbose=False,
        )  # fmt: skip
        files[str(opset)] = folder / f"{name}_{attention}_{opset}.onnx"
        program.save(files[str(opset)])
        feeds = {key: value.numpy() for key, value in inputs.items()}
    for label in FILES[2:]:
        done = onnxgrad.optimize(
            files[label[:2]],
            target_opset=23 if "raised" in label else None,
            for_="onnxruntime" if label.endswith("for onnxruntime") else None,
            report=True,
            checks=("onnxruntime",),
            seeds=(0,),
        )
        files[label] = folder / f"{name}_{attention}_{label.replace(' ', '_')}.onnx"
        onnx.save(done.model, files[label])
    return files, feeds


# operator -> its chain, the operator, extra inputs; x is (1, 128, 512)
NUMBERS = """<int64[1] ax = {-1}, float two = {2}, float eps = {0.00001}, float one = {1}, float half = {0.5},
 float r2 = {1.4142135}, float k = {0.044715}, float s = {0.7978845608}, float three = {3}, float six = {6}, float zero = {0}, float a17 = {1.702}>"""
MEAN = "p = Pow(x, two) m = ReduceMean<keepdims = 1>(p, ax) a = Add(m, eps) q = Sqrt(a)"
CENTRE = MEAN.replace("Pow(x", "Pow(d").replace(
    "p = ", "u = ReduceMean<keepdims = 1>(x, ax) d = Sub(x, u) p = ", 1
)
OPERATORS = {
    "RMSNormalization (PyTorch)": (f"{MEAN} i = Reciprocal(q) z = Mul(x, i) y = Mul(w, z)", "y = RMSNormalization(x, w)"),
    "RMSNormalization (divided)": (f"{MEAN} z = Div(x, q) y = Mul(w, z)", "y = RMSNormalization(x, w)"),
    "LayerNormalization": (f"{CENTRE} z = Div(d, q) t = Mul(z, w) y = Add(t, b)", "y = LayerNormalization(x, w, b)"),
    "Gelu": ("d = Div(x, r2) e = Erf(d) a = Add(e, one) m = Mul(x, a) y = Mul(m, half)", "y = Gelu(x)"),
    "Gelu by tanh": ("p = Pow(x, three) m = Mul(p, k) a = Add(x, m) u = Mul(a, s) t = Tanh(u) o = Add(t, one) h = Mul(x, half) y = Mul(h, o)", 'y = Gelu<approximate = "tanh">(x)'),
    "HardSwish": ("a = Add(x, three) q = Clip(a, zero, six) m = Mul(x, q) y = Div(m, six)", "y = HardSwish(x)"),
    "HardSigmoid": ("a = Add(x, three) q = Clip(a, zero, six) y = Div(q, six)", "y = HardSigmoid<alpha = 0.16666667>(x)"),
    "Softmax": ("m = ReduceMax<keepdims = 1>(x, ax) d = Sub(x, m) e = Exp(d) q = ReduceSum<keepdims = 1>(e, ax) y = Div(e, q)", "y = Softmax(x)"),
    "Mish (not raised)": ("m = Softplus(x) t = Tanh(m) y = Mul(x, t)", "y = Mish(x)"),
    "Swish (lowered)": ("g = Sigmoid(x) y = Mul(x, g)", "y = Swish(x)"),
    "QuickGelu of onnxruntime (left)": ("m = Mul(x, a17) g = Sigmoid(m) y = Mul(x, g)", "y = com.microsoft.QuickGelu<alpha = 1.702>(x)"),
    "BiasGelu of onnxruntime (left)": ("a = Add(x, b) y = Gelu(a)", "y = com.microsoft.BiasGelu(x, b)"),
    "SkipLayerNormalization of onnxruntime (lowered)": ("a = Add(x, r) y = LayerNormalization(a, w, b)", "y = com.microsoft.SkipLayerNormalization<epsilon = 0.00001>(x, r, w, b)"),
    "SkipSimplifiedLayerNormalization of onnxruntime (lowered)": ("a = Add(x, r) y = RMSNormalization(a, w)", "y = com.microsoft.SkipSimplifiedLayerNormalization<epsilon = 0.00001>(x, r, w)"),
    "GroupNormalization (lowered)": ("h = Reshape(x, rows) n = InstanceNormalization(h, ones, none) v = Shape(x) c = Reshape(n, v) d = Mul(c, gw) y = Add(c, gb)", "y = GroupNormalization<num_groups = 8>(x, gs, go)"),
}  # fmt: skip
INPUTS = "float[1,128,512] x, float[1,128,512] r, float[512] w, float[512] b, float[8] ones, float[8] none, float[128,1] gw, float[128,1] gb, float[128] gs, float[128] go"


# form -> inputs, the chain, onnxruntime's operator, and the operator of opset 23 if there is one.
# R rows of D numbers, N heads of W
ROWS = "float[1,R,D] x, float[1,R,D] k, float[1,R,D] v"
SPLIT = " ".join(
    f"{u}r = Reshape({u}, split) {u}h = Transpose<perm = [0, 2, 1, 3]>({u}r)" for u in "xkv"
)
SCORES = f"{SPLIT} kt = Transpose<perm = [0, 1, 3, 2]>(kh) s = MatMul(xh, kt) z = Mul(s, scale)"
JOIN = "c = MatMul(p, vh) t = Transpose<perm = [0, 2, 1, 3]>(c) y = Reshape(t, join)"
SKIP = "float[1,R,D] x, float[1,R,D] r, float[D] w, float[D] b"
FUSED = {
    "MultiHeadAttention": (
        ROWS, f"{SCORES} p = Softmax<axis = -1>(z) {JOIN}", "y = com.microsoft.MultiHeadAttention<num_heads = N, scale = 0.125>(x, k, v)",
        "y = Attention<q_num_heads = N, kv_num_heads = N, scale = 0.125>(x, k, v)",
    ),
    "MultiHeadAttention, a mask": (
        f"{ROWS}, float[1,1,R,R] m", f"{SCORES} a = Add(z, m) p = Softmax<axis = -1>(a) {JOIN}",
        "y = com.microsoft.MultiHeadAttention<num_heads = N, scale = 0.125>(x, k, v, , , m)", "y = Attention<q_num_heads = N, kv_num_heads = N, scale = 0.125>(x, k, v, m)",
    ),
    "MultiHeadAttention, causal": (
        f"{ROWS}, float[1,1,R,R] m", f"{SCORES} a = Add(z, m) p = Softmax<axis = -1>(a) {JOIN}",
        "y = com.microsoft.MultiHeadAttention<num_heads = N, scale = 0.125, unidirectional = 1>(x, k, v)", "y = Attention<q_num_heads = N, kv_num_heads = N, scale = 0.125, is_causal = 1>(x, k, v)",
    ),
    "SkipLayerNormalization": (SKIP, "a = Add(x, r) y = LayerNormalization(a, w, b)", "y = com.microsoft.SkipLayerNormalization<epsilon = 0.00001>(x, r, w, b)", ""),
    "SkipSimplifiedLayerNormalization": (SKIP, "a = Add(x, r) y = RMSNormalization(a, w)", "y = com.microsoft.SkipSimplifiedLayerNormalization<epsilon = 0.00001>(x, r, w)", ""),
    "BiasGelu": (SKIP, "a = Add(x, b) d = Div(a, r2) e = Erf(d) o = Add(e, one) m = Mul(a, o) y = Mul(m, half)", "y = com.microsoft.BiasGelu(x, b)", "a = Add(x, b) y = Gelu(a)"),
    "FastGelu": (
        SKIP, "a = Add(x, b) p = Pow(a, three) m = Mul(p, c4) t = Add(a, m) u = Mul(t, c7) h = Tanh(u) o = Add(h, one) f = Mul(a, half) y = Mul(f, o)",
        "y = com.microsoft.FastGelu(x, b)", 'a = Add(x, b) y = Gelu<approximate = "tanh">(a)',
    ),
    "QuickGelu": (SKIP, "m = Mul(x, a17) g = Sigmoid(m) y = Mul(x, g)", "y = com.microsoft.QuickGelu<alpha = 1.702>(x)", ""),
    "FusedConv": ("float[1,64,H,H] x, float[64,64,3,3] w, float[64] b", "c = Conv<pads = [1, 1, 1, 1]>(x, w, b) y = Relu(c)", 'y = com.microsoft.FusedConv<pads = [1, 1, 1, 1], activation = "Relu">(x, w, b)', ""),
    "FusedConv, a sum": ("float[1,64,H,H] x, float[1,64,H,H] r, float[64,64,3,3] w, float[64] b", "c = Conv<pads = [1, 1, 1, 1]>(x, w, b) a = Add(c, r) y = Relu(a)", 'y = com.microsoft.FusedConv<pads = [1, 1, 1, 1], activation = "Relu">(x, w, b, r)', ""),
    "FusedMatMul": ("float[N,R,W] x, float[N,R,W] k", "t = Transpose<perm = [0, 2, 1]>(k) s = MatMul(x, t) y = Mul(s, scale)", "y = com.microsoft.FusedMatMul<transB = 1, alpha = 0.125>(x, k)", ""),
    "RotaryEmbedding": (
        "float[1,N,R,W] x, float[R,E] c, float[R,E] s, int64[1,R] at",
        "cc = Concat<axis = -1>(c, c) ss = Concat<axis = -1>(s, s) a, b = Split<axis = -1, num_outputs = 2>(x) n = Neg(b) t = Concat<axis = -1>(n, a) p = Mul(x, cc) q = Mul(t, ss) y = Add(p, q)",
        "y = com.microsoft.RotaryEmbedding(x, at, c, s)", "y = RotaryEmbedding(x, c, s, at)",
    ),
}  # fmt: skip
OWN = "onnxruntime's"
CONSTANTS = {
    "split": "int64[4] split = {0, 0, N, W}", "join": "int64[3] join = {0, 0, D}",
    **{k: f"float {k} = {{{v}}}" for k, v in {"scale": 0.125, "r2": 1.4142135, "one": 1, "half": 0.5, "three": 3, "c4": 0.044715, "c7": 0.7978845608, "a17": 1.702}.items()},
}  # fmt: skip
AT_ROWS = (128, 512, 1024)
AT_HIDDEN = (384, 768)


def fused_models(form: str, rows: int, hidden: int, folder: Path) -> tuple[dict[str, Path], Any]:
    """Returns the files of one form at one size and their inputs."""
    inputs, *bodies = FUSED[form]
    sizes = {"R": rows, "D": hidden, "N": 12, "W": hidden // 12, "E": hidden // 24, "H": rows // 8}
    files = {}
    for label, body in zip(("chain", OWN, "operator"), bodies, strict=True):
        if not body:
            continue
        numbers = ", ".join(v for k, v in CONSTANTS.items() if re.search(rf"\b{k}\b(?! =)", body))
        text = re.sub(
            r"\b[RDNWEH]\b",
            lambda m: str(sizes[m[0]]),
            f"g ({inputs}) => (float[] y) <{numbers}> {{ {body} }}",
        )
        text = f'<ir_version: 11, opset_import: ["" : 24, "com.microsoft" : 1]> {text.replace("(float[] y)", "(float y)")}'
        model = onnx.parser.parse_model(text)
        model.graph.output[0].type.tensor_type.ClearField("shape")
        files[label] = folder / f"{label}.onnx"
        onnx.save(model, files[label])
    rng = np.random.default_rng(0)
    feeds: dict[str, Any] = {}
    for value in model.graph.input:
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        feeds[value.name] = rng.normal(size=shape).astype(np.float32)
        if value.name == "at":
            feeds["at"] = np.arange(rows)[None]
        if value.name == "m" and "causal" in form:
            feeds["m"] = np.where(np.tri(rows), 0, -1e30).astype(np.float32)[None, None]
    return files, feeds


def fused(args: argparse.Namespace) -> list[str]:
    """Returns the table of onnxruntime's own operators."""
    lines = [
        "",
        "Forms of com.microsoft against what onnxruntime makes of the chain by itself, 12 heads; "
        "in brackets the operator of opset 20 or 23.",
        "",
        "| form | " + " | ".join(f"{r} rows of {d}" for d in AT_HIDDEN for r in AT_ROWS) + " |",
        "|---" * (1 + len(AT_HIDDEN) * len(AT_ROWS)) + "|",
    ]
    for form in args.forms:
        cells = []
        for hidden in AT_HIDDEN:
            for rows in AT_ROWS:
                with tempfile.TemporaryDirectory() as folder:
                    found = ratios(*fused_models(form, rows, hidden, Path(folder)), args)
                more = f" ({found['operator']:.2f})" if "operator" in found else ""
                cells.append(f"{found[OWN]:.2f}{more}")
        lines.append(f"| {form} | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    return lines


def operator_models(chain: str, operator: str, folder: Path) -> dict[str, Path]:
    """Returns the two files of one row."""
    found = {}
    for label, body in (("chain", chain), ("operator", operator)):
        numbers = NUMBERS.replace("<", "<int64[3] rows = {0, 8, -1}, ", 1)
        text = f'<ir_version: 11, opset_import: ["" : 24, "com.microsoft" : 1]> g ({INPUTS}) => (float[1,128,512] y) {numbers} {{ {body} }}'
        found[label] = folder / f"{label}.onnx"
        onnx.save(onnx.parser.parse_model(text), found[label])
    return found


def ratios(files: dict[str, Path], feeds: Any, args: argparse.Namespace) -> dict[str, float]:
    """Returns the CPU time by file: the first in ms, the others relative to it."""
    report = bench(
        {label: str(path) for label, path in files.items()},
        inputs=feeds, seconds=args.seconds, rounds=args.rounds, threads=1,
    ).to_dict()  # fmt: skip
    first, *others = report["timings"]
    return {
        first["name"]: first["cpu"]["median"] * 1e3,
        **{t["name"]: t["cpu_ratio"]["median"] for t in others},
    }


def wholes(args: argparse.Namespace) -> list[str]:
    """Returns the table of whole models."""
    lines = [
        "| model | attention | 18, ms | "
        + " | ".join(FILES[1:]).replace("23 |", "23 / 18 |", 1)
        + " |",
        "|---" * (2 + len(FILES)) + "|",
    ]
    for name in args.models or MODELS:
        for attention in ("sdpa", "eager"):
            with tempfile.TemporaryDirectory() as folder:
                files, feeds = export(name, attention, Path(folder))
                found = ratios({label: files[label] for label in FILES}, feeds, args)
            cells = [f"{found['18']:.1f}", *(f"{found[label]:.3f}" for label in FILES[1:])]
            lines.append(f"| {MODELS[name]} | {attention} | {' | '.join(cells)} |")
            print(lines[-1], flush=True)
    return lines


def operators(args: argparse.Namespace) -> list[str]:
    """Returns the table of single operators of ONNX."""
    lines = ["", "| operator | chain, ms | operator / chain |", "|---|---|---|"]
    rng = np.random.default_rng(0)
    shapes = {part.split()[1]: part.split()[0] for part in INPUTS.split(", ")}
    feeds = {
        key: rng.uniform(0.5, 1.5, [int(d) for d in kind[6:-1].split(",")]).astype(np.float32)
        for key, kind in shapes.items()
    }
    for name, (chain, operator) in OPERATORS.items():
        with tempfile.TemporaryDirectory() as folder:
            found = ratios(operator_models(chain, operator, Path(folder)), feeds, args)
        lines.append(f"| {name} | {found['chain']:.3f} | {found['operator']:.2f} |")
        print(lines[-1], flush=True)
    return lines


PARTS = {"models": wholes, "operators": operators, "onnxruntime": fused}


def main() -> None:
    """Measures, prints and records."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument("--only", choices=PARTS, help="one table, and no record")
    parser.add_argument("--forms", nargs="*", default=[*FUSED], help="of onnxruntime's")
    parser.add_argument("--seconds", type=float, default=1.5, help="measuring time for each file")
    parser.add_argument("--rounds", type=int, default=12)
    args = parser.parse_args()
    lines = [
        "CPU time, one thread, in turns, medians; ratios to the export of opset 18. Raised: "
        "`onnxgrad optimize --target-opset 23`; for onnxruntime: `--for onnxruntime`; optimised: "
        "without these options.",
        f"Load average at the start {os.getloadavg()[0]:.1f}.",
        "",
    ]
    for name, part in PARTS.items():
        if args.only in (None, name):
            lines += part(args)
    if args.only is None:
        print(write_record("composites", lines))


if __name__ == "__main__":
    main()
