"""Export the topologies of models/ with PyTorch: `python scripts/export_models.py [NAME ...]
[--both] [--out FOLDER] [--wider N]`.

Needs torch, onnx, onnxscript and onnxruntime; plus transformers and diffusers for the transformer
topologies, or torchvision for the convolutional ones (models/README.md has the two environments).
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import sys
import warnings
from pathlib import Path

from exporting.common import OPTIMIZED, RAW, Spec, export

BOTH = (OPTIMIZED, RAW)
BATCH_SEQUENCE = {0: "batch", 1: "sequence"}


def _spec(
    module: str, name: str, what: str, outputs: tuple[str, ...], **rest: object
) -> tuple[str, Spec]:
    def build() -> object:
        return getattr(
            importlib.import_module(f"exporting.{module}"), name
        )()  # only this model's library is imported

    return name, Spec(name=name, build=build, what=what, outputs=outputs, **rest)  # type: ignore[arg-type]


MODELS = dict(
    [
        _spec(
            "vision",
            "mobilenet_v2",
            "MobileNetV2, width 0.35",
            ("logits",),
            counts={"Conv": 52},
            files=(RAW,),
            dynamic={"x": {0: "batch"}},
        ),
        _spec(
            "hf",
            "bert",
            "BERT-base, hidden 24",
            ("last_hidden_state",),
            counts={"MatMul+Gemm": 96},
            files=BOTH,
            dynamic={"input_ids": BATCH_SEQUENCE, "attention_mask": BATCH_SEQUENCE},
        ),
        _spec(
            "hf",
            "gpt2",
            "GPT-2, n_embd 24, tied head",
            ("logits",),
            dynamic={"input_ids": BATCH_SEQUENCE},
        ),
        _spec(
            "hf",
            "llama",
            "Llama with grouped-query attention, hidden 32",
            ("logits",),
            counts={"MatMul+Gemm": 109},
            files=BOTH,
        ),
        _spec(
            "hf", "vit", "ViT-base, hidden 24", ("last_hidden_state",), counts={"MatMul+Gemm": 96}
        ),
        _spec(
            "hf",
            "clip",
            "CLIP text encoder, hidden 24",
            ("last_hidden_state", "pooler_output"),
            counts={"MatMul+Gemm": 96},
        ),
        _spec("hf", "t5", "T5-small, d_model 32", ("logits",), counts={"MatMul+Gemm": 133}),
        _spec(
            "hf",
            "whisper",
            "Whisper-tiny, d_model 24",
            ("logits",),
            counts={"MatMul+Gemm": 89},
            files=BOTH,
        ),
        _spec(
            "hf", "unet", "Stable Diffusion 1.x UNet", ("out_sample",), counts={"MatMul+Gemm": 248}
        ),
        _spec(
            "own",
            "lstmcell",
            "16 unrolled LSTM steps, gates as separate Linears",
            ("states", "cell"),
            counts={"MatMul+Gemm": 128},
        ),
        _spec("vision", "resnet18", "ResNet18, widths / 8", ("logits",), counts={"Conv": 20}),
        _spec("vision", "googlenet", "GoogLeNet, widths / 8", ("logits",), counts={"Conv": 57}),
        _spec(
            "vision", "inception_v3", "Inception v3, widths / 16", ("logits",), counts={"Conv": 94}
        ),
        _spec(
            "vision", "densenet121", "DenseNet121, growth rate 4", ("logits",), counts={"Conv": 120}
        ),
        _spec(
            "hf",
            "bert_script",
            "BERT, 4 layers, through TorchScript",
            ("last_hidden_state",),
            script=True,
            counts={"MatMul+Gemm": 32},
            dynamic={"input_ids": BATCH_SEQUENCE, "attention_mask": BATCH_SEQUENCE},
        ),
        _spec(
            "own",
            "yolox_script",
            "YOLOX-like detector through TorchScript",
            ("detections",),
            script=True,
            counts={"Conv": 65},
            dynamic={"x": {0: "batch"}},
        ),
        _spec(
            "own",
            "lstm_script",
            "two bidirectional LSTM layers by TorchScript",
            ("states", "hidden", "cell"),
            script=True,
            dynamic={"x": {0: "batch", 1: "steps"}},
        ),
        _spec("own", "yolox", "YOLOX-like detector", ("detections",), counts={"Conv": 65}),
    ]
)


def main(arguments: list[str]) -> int:
    """Exports the named models (all by default) and prints one line per file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(MODELS)}")
    parser.add_argument(
        "--both", action="store_true", help="both NAME.onnx and NAME.raw.onnx (optimize=False)"
    )
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).resolve().parent.parent / "models"
    )
    parser.add_argument(
        "--wider",
        type=int,
        metavar="N",
        help="transformers N times wider (16: hidden 384 or 512), for measuring; needs --out",
    )
    parser.add_argument("--json", type=Path, help="write the summary rows here as well")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in MODELS]
    if unknown:
        parser.error(f"no such model: {', '.join(unknown)}")
    if options.wider is not None:
        if options.out == parser.get_default("out"):
            parser.error("--wider models are not committed: say where they go with --out")
        importlib.import_module("exporting.hf").WIDER = options.wider  # type: ignore[attr-defined]
    warnings.filterwarnings("ignore")
    logging.disable(
        logging.WARNING
    )  # the exporter logs each torchvision operator that it can't register
    options.out.mkdir(parents=True, exist_ok=True)
    rows: dict[str, object] = {}
    for name in options.names or MODELS:
        spec = MODELS[name]
        for file, row in export(spec, options.out, BOTH if options.both else spec.files).items():
            rows[file] = row
            counts = {
                k: row["counts"][k]
                for k in ("MatMul+Gemm", "Conv", "BatchNormalization")
                if row["counts"][k]
            }
            print(
                f"{file:24} {row['bytes'] / 1e6:6.2f} MB {row['nodes']:5} nodes  opset "
                f"{row['opset']} ir {row['ir']}"
                f"  |onnx-torch| {row['worst']:.1e}  {counts}",
                flush=True,
            )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
