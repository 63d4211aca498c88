"""Gradients of all weights against PyTorch's: `python scripts/gradient_errors.py` writes
scripts/results/gradient_errors.md.

The models and PyTorch's float64 gradients (scripts/reference_gradients.py) are in models/training.
An error is the largest difference of an element relative to the largest element of all gradients.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from records import write_record

from onnxgrad import gradient
from onnxgrad.verify.running.session import run

FOLDER = Path(__file__).resolve().parent.parent / "models" / "training"


def errors(path: Path) -> tuple[int, float, float]:
    """Returns the number of values, and the errors of our gradient and of PyTorch's float32."""
    expected = np.load(path.with_suffix(".npz"))
    names = [k.removeprefix("grad:") for k in expected if k.startswith("grad:")]
    feeds = {k.removeprefix("in:"): expected[k] for k in expected if k.startswith("in:")}
    found = run(gradient(onnx.load(path), names), feeds)
    scale = max(float(np.abs(expected[f"grad:{n}"]).max()) for n in names)
    ours = max(float(np.abs(found[f"{n}_grad"] - expected[f"grad:{n}"]).max()) for n in names)
    return len(names), ours / scale, max(float(expected[f"error32:{n}"]) for n in names) / scale


def main() -> None:
    """Measures and writes the record."""
    lines = ["| model | values | error | PyTorch float32 |", "|---|---|---|---|"]
    for path in sorted(FOLDER.glob("*.onnx")):
        count, ours, torch = errors(path)
        lines.append(f"| {path.stem} | {count} | {ours:.1e} | {torch:.1e} |")
        print(lines[-1], flush=True)
    write_record("gradient_errors", lines)


if __name__ == "__main__":
    main()
