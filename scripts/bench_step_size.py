"""The size of a training step's files, which omit states of zeros and exporters' metadata.

    python scripts/bench_step_size.py

Records scripts/results/step_size.md. Needs PyTorch: its export of a U-Net has such metadata.
"""

from __future__ import annotations

import contextlib
import io
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from curve_networks import _UNet
from records import write_record

from onnxgrad.ir.save import to_bytes
from onnxgrad.train import AdamW, TrainingStep, save_step, training_step

WIDTH, LAYERS = 3857, 4  # 59.5 million numbers


def wide() -> onnx.ModelProto:
    """Products with square matrices."""
    names = [f"h{i}" for i in range(LAYERS)] + ["logits"]
    nodes = "  ".join(f"{names[i + 1]} = MatMul ({names[i]}, w{i})" for i in range(LAYERS))
    text = f"g (float[N, {WIDTH}] h0) => (float[N, {WIDTH}] logits) {{ {nodes} }}"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]> {text}')
    rng = np.random.default_rng(0)
    for i in range(LAYERS):
        value = rng.standard_normal((WIDTH, WIDTH), dtype=np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, f"w{i}"))
    return model


def unet(path: Path) -> Path:
    """PyTorch's export in training mode, not optimised."""
    torch.manual_seed(0)
    options = {"dynamo": True, "optimize": False, "external_data": False, "verbose": False}
    names = {"input_names": ["x"], "output_names": ["logits"]}
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        torch.onnx.export(_UNet().train(), (torch.randn(2, 1, 32, 32),), path, **options, **names)
    return path


def row(name: str, before: int, after: int) -> str:
    return f"| {name} | {before:,} | {after:,} | {after / before:.2f} |"


def saved(step: TrainingStep, folder: Path) -> dict[str, int]:
    save_step(step, folder)
    return {path.name: path.stat().st_size for path in folder.iterdir()}


def main() -> None:
    lines = [
        "`scripts/bench_step_size.py`: bytes of a step's files, AdamW. Before: with states of",
        "zeros and exporters' notes.", "",
        "| file | before | bytes | ratio |", "|---|---|---|---|",
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as scratch:
        step = training_step(wide(), "mse", AdamW())
        every = sum(a.nbytes for a in step.initial.values())
        sizes = saved(step, Path(scratch) / "wide")
        lines.append(row("59.5 M numbers: state.safetensors", every, sizes["state.safetensors"]))
        del step
        step = training_step(unet(Path(scratch) / "u.onnx"), "mse", AdamW(), batch_norm="train")
        sizes = saved(step, Path(scratch) / "unet")
        for name, program in (("train.onnx", step.train), ("eval.onnx", step.evaluation)):
            lines.append(row(f"U-Net: {name}", len(to_bytes(program)), sizes[name]))
    print(write_record("step_size", lines).read_text())


if __name__ == "__main__":
    main()
