"""Time of forward plus all weight gradients: onnxgrad's graph in stock onnxruntime beside PyTorch,
eager or compiled, and beside the forward graph alone, in turns.

Needs PyTorch with what the model needs (see export_training.py), and the full-size models exported
there. Each run starts after a pause in which the other's threads stop waiting for work in loops:
without it either would wait for the other's cores, and with OMP_WAIT_POLICY=PASSIVE, as this script
ran before, PyTorch takes up to 1.7 of its time. onnxruntime runs without spinning, which costs only
itself. The ratio to PyTorch uses wall times, or with --cpu CPU times,
which other load disturbs less. The ratio to the forward graph always uses CPU times.

    python scripts/bench_training.py [NAME ...] [--threads 2] [--rounds 15] [--cpu] [--compile]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from exporting.losses import MODELS
from fetch_models import cache_folder
from records import conditions
from reference_gradients import build
from sessions import session

from onnxgrad import gradient

TEN = (
    *("mlp", "bert", "gpt2", "llama", "vit"),
    *("resnet18", "mobilenet_v2", "convnext", "unet", "lstm"),
)


PAUSE = 0.05  # seconds; libgomp's threads wait in loops for some milliseconds


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Wall and CPU seconds, after a pause."""
    time.sleep(PAUSE)
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def compare(name: str, rounds: int, threads: int, clock: int, compiled: bool) -> str:
    """Returns one line: medians of both and of the ratios of neighbouring runs."""
    model, inputs = build(MODELS[name], full=True)
    loss = torch.compile(model) if compiled else model
    path = cache_folder("training") / f"{name}.onnx"
    with np.load(path.with_suffix(".npz")) as record:
        requested = [key.removeprefix("grad:") for key in record.files if key.startswith("grad:")]
    started = time.perf_counter()
    graph = gradient(path, [n for n in requested if n not in inputs], "loss")
    built = time.perf_counter() - started
    graph_run = session(graph, threads)
    forward = session(path.read_bytes(), threads)
    outputs = [o.name for o in graph_run.get_outputs() if o.name.endswith("_grad")]
    feeds = {k: v.detach().numpy() for k, v in inputs.items()}

    def theirs() -> None:
        model.zero_grad(set_to_none=True)
        loss(*inputs.values()).backward()

    three = (
        lambda: graph_run.run(outputs, feeds),
        theirs,
        lambda: forward.run(None, feeds),
    )
    for work in (*three, *three):
        work()
    turns = [[timed(work) for work in three] for _ in range(rounds)]
    a, b = (1000 * statistics.median(turn[i][clock] for turn in turns) for i in (0, 1))
    ratios = sorted(turn[0][clock] / turn[1][clock] for turn in turns)
    spread = f"{ratios[len(ratios) // 4]:.2f}-{ratios[-1 - len(ratios) // 4]:.2f}"
    times = statistics.median(turn[0][1] / turn[2][1] for turn in turns)
    nodes = sum(n.op_type not in ("Constant", "Identity") for n in graph.graph.node)
    return (
        f"| {name} | {nodes} | {a:.1f} | {b:.1f} | {np.median(ratios):.2f} | {spread} | "
        f"{times:.2f} | {built:.2f} |"
    )


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=TEN)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cpu", action="store_true", help="CPU times in place of wall times")
    parser.add_argument("--compile", action="store_true", help="torch.compile, not eager")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    theirs = f"PyTorch {torch.__version__}, {'compiled' if arguments.compile else 'eager'}"
    print(
        f"{conditions()[:-1]}, {theirs}, {arguments.threads} threads, {arguments.rounds} rounds, "
        f"{'CPU' if arguments.cpu else 'wall'} times"
    )
    print("| model | nodes | onnxgrad ms | PyTorch ms | ratio | quartiles | / forward | build s |")
    print("|---|---|---|---|---|---|---|---|")
    for name in arguments.names or TEN:
        line = compare(
            name, arguments.rounds, arguments.threads, int(arguments.cpu), arguments.compile
        )
        print(line, flush=True)


if __name__ == "__main__":
    main()
