"""Whole training steps with AdamW: our trainer's two forms against PyTorch's default and its fused
AdamW, in turns.

    python scripts/bench_steps.py [NAME ...] [--threads 1] [--rounds 15]

CPU time of one process with that many threads, medians of interleaved steps. Needs PyTorch and the
full-size models that export_training.py writes.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from exporting.losses import MODELS
from fetch_models import cache_folder
from reference_gradients import build

from onnxgrad import train

SIX = ("mlp", "bert", "gpt2", "llama", "vit", "resnet18")


def ours(name: str, batch: dict[str, Any], threads: int, engine: Any) -> Callable[[], float]:
    """One step of a trainer, as a function that returns its CPU seconds."""
    path = cache_folder("training") / f"{name}.onnx"
    with np.load(path.with_suffix(".npz")) as record:
        asked = [key.removeprefix("grad:") for key in record.files if key.startswith("grad:")]
    task = train.training_step(path, None, train.AdamW(), [n for n in asked if n not in batch])
    trainer = train.Trainer(task, 1e-4, threads=threads, engine=engine)
    return lambda: _timed(lambda: trainer.step(batch))


def theirs(model: Any, inputs: dict[str, torch.Tensor], fused: bool) -> Callable[[], float]:
    """One step of PyTorch."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=fused)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        model(*inputs.values()).backward()
        optimizer.step()

    return lambda: _timed(step)


def _timed(work: Callable[[], object]) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin


def compare(name: str, rounds: int, threads: int) -> str:
    """One line: medians, and the ratios of neighbouring steps."""
    torch.manual_seed(0)
    forms: dict[str, Callable[[], float]] = {}
    for fused in (False, True):
        model, inputs = build(MODELS[name], full=True)
        forms["fused" if fused else "eager"] = theirs(model, inputs, fused)
    batch = {k: v.detach().numpy() for k, v in inputs.items()}
    for engine in ("blocks", "graph"):
        forms[engine] = ours(name, batch, threads, engine)
    times: dict[str, list[float]] = {form: [] for form in forms}
    for number in range(rounds + 3):
        for form, step in forms.items():
            took = step()
            if number >= 3:
                times[form].append(took)

    def ratio(a: str, b: str) -> float:
        return statistics.median(x / y for x, y in zip(times[a], times[b], strict=True))

    shown = " | ".join(
        f"{1000 * statistics.median(times[f]):.1f}" for f in ("blocks", "graph", "eager", "fused")
    )
    ratios = (
        f"{ratio('blocks', 'eager'):.2f} | {ratio('blocks', 'fused'):.2f} | "
        f"{ratio('graph', 'blocks'):.2f}"
    )
    return f"| {name} | {shown} | {ratios} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=SIX)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(f"CPU milliseconds per step, {args.threads} thread(s)\n")
    print(
        "| model | blocks | graph | PyTorch | fused | blocks/PyTorch | blocks/fused | graph/blocks "
        "|"
    )
    print("|---|---|---|---|---|---|---|---|")
    for name in args.names:
        print(compare(name, args.rounds, args.threads), flush=True)


if __name__ == "__main__":
    main()
