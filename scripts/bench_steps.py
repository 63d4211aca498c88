"""Whole training steps with AdamW: our trainer's two forms against PyTorch's default and its fused
AdamW, in turns.

    python scripts/bench_steps.py [NAME ...] [--threads 1] [--rounds 9] [--turn 4] [--wall]

Times are CPU time of one process with that many threads, medians over turns of several steps. The
first half of a turn does not count, because the other forms have filled the caches. Needs PyTorch
and the full-size models that export_training.py writes. Threads do not spin on either side.
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
import onnxruntime
import torch
from exporting.losses import MODELS
from fetch_models import cache_folder
from records import conditions
from reference_gradients import build

from onnxgrad import train

clock = time.process_time
SIX = ("mlp", "bert", "gpt2", "llama", "vit", "resnet18")


def ours(name: str, batch: dict[str, Any], threads: int, engine: Any) -> Callable[[], float]:
    """Returns a function that runs one step of a trainer and returns its CPU seconds."""
    path = cache_folder("training") / f"{name}.onnx"
    with np.load(path.with_suffix(".npz")) as record:
        requested = [key.removeprefix("grad:") for key in record.files if key.startswith("grad:")]
    task = train.training_step(path, None, train.AdamW(), [n for n in requested if n not in batch])
    trainer = train.Trainer(task, 1e-4, threads=threads, engine=engine)
    return lambda: _timed(lambda: trainer.step(batch))


def theirs(model: Any, inputs: dict[str, torch.Tensor], fused: bool) -> Callable[[], float]:
    """Returns a function that runs one step of PyTorch and returns its CPU seconds."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=fused)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        model(*inputs.values()).backward()
        optimizer.step()

    return lambda: _timed(step)


def _timed(work: Callable[[], object]) -> float:
    begin = clock()
    work()
    return clock() - begin


class Waiting(onnxruntime.SessionOptions):  # type: ignore[misc]  # it has no types
    """Returns options of sessions whose threads do not spin."""

    def __init__(self) -> None:
        super().__init__()
        self.add_session_config_entry("session.intra_op.allow_spinning", "0")


def compare(name: str, rounds: int, turn: int, threads: int) -> str:
    """Returns one line: medians, and the ratios of neighbouring turns."""
    torch.manual_seed(0)
    forms: dict[str, Callable[[], float]] = {}
    for fused in (False, True):
        model, inputs = build(MODELS[name], full=True)
        forms["fused" if fused else "eager"] = theirs(model, inputs, fused)
    batch = {k: v.detach().numpy() for k, v in inputs.items()}
    for engine in ("blocks", "graph"):
        forms[engine] = ours(name, batch, threads, engine)
    times: dict[str, list[float]] = {form: [] for form in forms}
    for number in range(rounds + 1):
        for form, step in forms.items():
            took = [step() for _ in range(turn)]
            if number:
                times[form].append(statistics.median(took[turn // 2 :]))

    def ratio(a: str, b: str) -> float:
        return statistics.median(x / y for x, y in zip(times[a], times[b], strict=True))

    shown = " | ".join(
        f"{1000 * statistics.median(times[f]):.1f}" for f in ("blocks", "graph", "eager", "fused")
    )
    ratios = (
        f"{ratio('blocks', 'eager'):.2f} | {ratio('blocks', 'fused'):.2f} | "
        f"{ratio('graph', 'eager'):.2f}"
    )
    return f"| {name} | {shown} | {ratios} |"


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=SIX)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--turn", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--wall", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    onnxruntime.SessionOptions = Waiting
    if args.wall:
        global clock
        clock = time.perf_counter
    kind = "Wall-clock" if args.wall else "CPU"
    print(f"{conditions()[:-1]}, PyTorch {torch.__version__}.\n")
    print(f"{kind} milliseconds per step, {args.threads} thread(s)\n")
    columns = ("model", "blocks", "graph", "PyTorch", "fused")
    ratios = ("blocks/PyTorch", "blocks/fused", "graph/PyTorch")
    print(f"| {' | '.join((*columns, *ratios))} |")
    print("|---|---|---|---|---|---|---|---|")
    for name in args.names:
        print(compare(name, args.rounds, args.turn, args.threads), flush=True)


if __name__ == "__main__":
    main()
