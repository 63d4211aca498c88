"""Products and convolutions after optimisers: `python scripts/count_products.py [--peers-python
PYTHON ...]` writes scripts/results/merged_products.md.

Counts MatMul and Gemm (Conv in models with parallel Convs) in the file, after `optimize --merge
always`, and after each optimiser that is installed in one of the interpreters.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Collection
from pathlib import Path

import onnx
from bench_latency_peers import PEERS, ROOT, peer
from records import write_record

from onnxgrad.functions import optimize

PRODUCTS = {"MatMul", "Gemm"}
MODELS = ("unet", "bert", "vit", "clip", "llama", "t5", "whisper", "lstmcell", "gpt2")
CONVOLUTIONAL = ("googlenet", "inception_v3", "yolox")


def version(name: str, pythons: list[str]) -> str:
    """Returns the version of an optimiser in the first interpreter that has it."""
    code = f"from importlib.metadata import version; print(version({name!r}))"
    for python in pythons:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True)
        if not done.returncode:
            return f"{name} {done.stdout.strip()}"
    return f"{name} is not installed"


def count(model: onnx.ModelProto, ops: Collection[str]) -> int:
    """Returns the number of nodes of these operators, local functions included."""
    nodes = [*model.graph.node, *(n for f in model.functions for n in f.node)]
    return sum(n.op_type in ops for n in nodes)


def row(path: Path, ops: Collection[str], pythons: list[str]) -> list[str]:
    """Returns the counts of one model, or the error of an optimiser that fails."""
    ours = optimize(path, merge="always", verify=False)
    found = [path.stem, str(count(onnx.load(path), ops)), str(count(ours, ops))]
    with tempfile.TemporaryDirectory() as folder:
        for name in PEERS:
            target, reasons = Path(folder) / f"{name}.onnx", []
            for python in pythons:
                if not (wrong := peer(python, name, path, target, timeout=300)):
                    break
                reasons.append(wrong)
            missing = all("ModuleNotFoundError" in r for r in reasons)
            found.append(
                str(count(onnx.load(target), ops)) if target.is_file()
                else "not installed" if missing else f"fails: {reasons[-1][:60]}"
            )  # fmt: skip
    return found


def main() -> None:
    """Counts and writes the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers-python", nargs="+", default=[sys.executable])
    args = parser.parse_args()
    lines = ["; ".join(version(name, args.peers_python) for name in PEERS), ""]
    for title, names, ops in (
        ("MatMul and Gemm", MODELS, PRODUCTS), ("Conv", CONVOLUTIONAL, {"Conv"})
    ):  # fmt: skip
        head = ["model", "file", "onnxgrad", *PEERS]
        lines += [f"{title}:", "", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
        for name in names:
            cells = row(ROOT / "models" / f"{name}.onnx", ops, args.peers_python)
            print(*cells, flush=True)
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    write_record("merged_products", lines[:-1])


if __name__ == "__main__":
    main()
