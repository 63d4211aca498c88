"""Forward plus all weight gradients: onnxgrad's graph in stock onnxruntime against PyTorch eager,
in turns.

Needs PyTorch with what the model needs (see export_training.py), and the full-size models exported
there. Two threads each; PyTorch with OMP_WAIT_POLICY=PASSIVE and onnxruntime without spinning, or
each would wait for the other's cores. `python scripts/bench_training.py [NAME ...] [--rounds N]`
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import argparse
import statistics
import time

import numpy as np
import onnxruntime
import torch
from exporting.losses import MODELS
from fetch_models import cache_folder
from reference_gradients import build

from onnxgrad.grad import gradient

SIX = ("mlp", "bert", "resnet18", "vit", "gpt2", "llama")


def session_of(graph: bytes) -> onnxruntime.InferenceSession:
    """A session with two threads that do not spin."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


def compare(name: str, rounds: int) -> str:
    """One line: medians of both and of the ratios of neighbouring runs."""
    model, inputs = build(MODELS[name], full=True)
    path = cache_folder("training") / f"{name}.onnx"
    with np.load(path.with_suffix(".npz")) as record:
        asked = [key.removeprefix("grad:") for key in record.files if key.startswith("grad:")]
    started = time.perf_counter()
    graph = gradient(path, [n for n in asked if n not in inputs], "loss")
    built = time.perf_counter() - started
    session = session_of(graph.SerializeToString())
    outputs = [o.name for o in session.get_outputs() if o.name.endswith("_grad")]
    feeds = {k: v.detach().numpy() for k, v in inputs.items()}

    def ours() -> float:
        begin = time.perf_counter()
        session.run(outputs, feeds)
        return time.perf_counter() - begin

    def theirs() -> float:
        begin = time.perf_counter()
        model.zero_grad(set_to_none=True)
        model(*inputs.values()).backward()
        return time.perf_counter() - begin

    for _ in range(2):
        ours()
        theirs()
    pairs = [(ours(), theirs()) for _ in range(rounds)]
    a, b = (statistics.median(p[i] for p in pairs) for i in (0, 1))
    ratios = sorted(x / y for x, y in pairs)
    spread = f"{ratios[len(ratios) // 4]:.2f}-{ratios[-1 - len(ratios) // 4]:.2f}"
    nodes = sum(n.op_type not in ("Constant", "Identity") for n in graph.graph.node)
    ratio = np.median(ratios)
    return (
        f"| {name} | {nodes} | {1000 * a:.1f} | {1000 * b:.1f} | {ratio:.2f} | {spread} | "
        f"{built:.2f} |"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=SIX)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    torch.set_num_threads(2)
    print(
        f"onnxruntime {onnxruntime.__version__}, PyTorch {torch.__version__}, 2 threads, "
        f"{arguments.rounds} rounds"
    )
    print("| model | nodes | onnxgrad ms | PyTorch ms | ratio | quartiles | build s |")
    print("|---|---|---|---|---|---|---|")
    for name in arguments.names or SIX:
        print(compare(name, arguments.rounds), flush=True)


if __name__ == "__main__":
    main()
