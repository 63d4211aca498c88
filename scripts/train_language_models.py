"""Trains adapters of quantised language models with onnxgrad, and with PyTorch on the dequantised
weights.

    python scripts/train_language_models.py --write

Needs torch. Nine files in the form of onnxruntime-genai (tests/language_models.py) take 200 steps
of AdamW, PyTorch in float64. One file of real width takes --steps, PyTorch in float32: float64
would need twice the memory. Its rate is a tenth, since at a rate of 1e-3 the adapters of so wide
products more than double in 20 steps, and rounding grows with them.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import numpy as np
import torch

from scripts.records import write_record
from tests.language_models import ARCHITECTURES, WEIGHTS, LanguageModel
from tests.torch_language_models import both

WIDE = {
    "hidden": 2048, "layers": 4, "width": 5632, "vocabulary": 2048, "heads": 32, "kv_heads": 4,
    "block": 32,
}  # fmt: skip
COLUMNS = (
    "architecture", "weights", "hidden size, layers", "steps", "first loss", "last, onnxgrad",
    "last, PyTorch", "worst difference",
)  # fmt: skip


def line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def row(language: LanguageModel, losses: list[float], wanted: list[float]) -> str:
    worst = np.max(np.abs(np.array(losses) / np.array(wanted) - 1))
    ends = (wanted[0], losses[-1], wanted[-1])
    size = f"{language.hidden:,}, {language.layers}"
    cells = [language.architecture, language.weights, size, f"{len(losses)}"]
    cells += [*(f"{x:.6f}" for x in ends), f"{worst:.1e}"]
    return line(cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write results/language_models.md")
    parser.add_argument("--steps", type=int, default=20, help="steps at real width (default: 20)")
    args = parser.parse_args()
    lines = [line(COLUMNS), "|---" * len(COLUMNS) + "|"]
    for architecture in ARCHITECTURES:
        for weights in WEIGHTS:
            language = LanguageModel(architecture, weights)
            lines.append(row(language, *both(language, "*attn*,*mlp*", 200, 1e-3)))
            print(lines[-1], flush=True)
    start = time.perf_counter()
    wide = LanguageModel("llama", "packed", **WIDE)
    found = both(wide, "*attn*", args.steps, 1e-4, length=16, threads=2, dtype=torch.float32)
    lines.append(row(wide, *found))
    print(lines[-1], f"{time.perf_counter() - start:.0f} s")
    lines += [
        "",
        "Adapters of rank 4 beside all products of attention and, but in the last row, of the MLP. "
        "The rate is 1e-3, in the last row 1e-4. "
        "Differences of losses are relative, the worst of all steps. Packed: MatMulNBits of 4 bits "
        "in blocks; int8 and int4: DequantizeLinear by columns and in blocks. "
        f"PyTorch {torch.__version__} computes in float64, in the last row in float32.",
    ]
    if args.write:
        print(write_record("language_models", lines))


if __name__ == "__main__":
    main()
