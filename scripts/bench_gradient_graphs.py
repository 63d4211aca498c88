"""Gradient graphs by all weights: their nodes, their time relative to the forward graph, and the
share of the machine's GEMM peak that they reach.

    python scripts/bench_gradient_graphs.py [NAME ...] [--before CHECKOUT] [--rounds 15]
        [--threads 1] [--wall] [--write]

Nodes are counted in models/training. Times are those of the full-size models, which
`export_training.py --full` writes to the cache folder: CPU time (--wall: wall time), graphs in
turns, medians of the ratios of neighbouring runs. --before also builds each gradient with the code
of another checkout, and compares time and results. `small` is the time of --form small relative to
the default form. The products of a graph are its MatMul, Gemm, Conv and ConvTranspose nodes, with
two operations for each product of two numbers. The peak is that of a MatMul of 768 to 1,536 rows.
`products alone` is the share of the peak that the kernels of the products reach, as if the graph
had no other node: a bound of `share of peak` for these shapes in onnxruntime.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts.fetch_models import cache_folder  # noqa: E402  # the script runs from a checkout
from scripts.records import write_record  # noqa: E402
from scripts.sessions import session  # noqa: E402

SMALL = ROOT / "models" / "training"
# the numbers of nodes that issue 13 lists
COUNTED = {
    "mlp": 30, "cnn": 197, "bert": 596, "gpt2": 514, "llama": 665, "vit": 759, "resnet18": 664,
    "unet": 467,
}  # fmt: skip
PRODUCTS = ("MatMul", "Gemm", "Conv", "ConvTranspose")
BUILD = """
import sys
checkout, model, path, form, *names = sys.argv[1:]
sys.path.insert(0, checkout)
import onnx, onnxgrad
assert onnxgrad.__file__.startswith(checkout), onnxgrad.__file__
options = {"form": form} if form != "fast" else {}
onnx.save(onnxgrad.gradient(onnx.load(model), names or "params", "loss", **options), path)
"""

Feeds = Mapping[str, np.ndarray[Any, Any]]


def build(
    checkout: Path, model: Path, names: Sequence[str] = (), form: str = "fast"
) -> onnx.ModelProto:
    """Returns the gradient by `names` or all weights, built by the package of a checkout."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "gradient.onnx"
        command = [sys.executable, "-c", BUILD, str(checkout), str(model), str(path), form, *names]
        subprocess.run(command, check=True, cwd=folder)
        return onnx.load(path)


def nodes_of(graph: onnx.ModelProto) -> Counter[str]:
    """Returns the number of nodes per operator, without nodes that compute nothing."""
    return Counter(n.op_type for n in graph.graph.node if n.op_type not in ("Constant", "Identity"))


def counts() -> Iterator[str]:
    """The table of nodes."""
    yield from (
        "| model | forward nodes | counted before | nodes | ratio | most frequent |",
        "|---" * 6 + "|",
    )
    total = 0
    for name, before in COUNTED.items():
        path = SMALL / f"{name}.onnx"
        found = nodes_of(build(ROOT, path))
        total += found.total()
        frequent = ", ".join(f"{op} {n}" for op, n in found.most_common(6))
        forward = nodes_of(onnx.load(path)).total()
        ratio = found.total() / before
        yield f"| {name} | {forward} | {before} | {found.total()} | {ratio:.2f} | {frequent} |"
    before = sum(COUNTED.values())
    yield f"| together | | {before} | {total} | {total / before:.3f} | |"


def timed(work: Callable[[], object], clock: Callable[[], float]) -> float:
    """Seconds of one call."""
    begin = clock()
    work()
    return clock() - begin


def peak(threads: int, clock: Callable[[], float]) -> float:
    """Operations a second of the fastest MatMul."""
    best = 0.0
    for n in (768, 1024, 1536):
        values = [helper.make_tensor_value_info(v, TensorProto.FLOAT, [n, n]) for v in "abc"]
        product = [helper.make_node("MatMul", ["a", "b"], ["c"])]
        graph = helper.make_graph(product, "peak", values[:2], values[2:])
        opset = [helper.make_opsetid("", 18)]
        model = helper.make_model(graph, opset_imports=opset, ir_version=9)
        ready = session(model, threads)
        a = np.random.default_rng(0).random((n, n), dtype=np.float32)
        for _ in range(12):
            seconds = timed(lambda: ready.run(None, {"a": a, "b": a}), clock)  # noqa: B023
            best = max(best, 2 * n**3 / seconds)
    return best


def operations(model: onnx.ModelProto, feeds: Feeds) -> int:
    """Returns the number of operations in the products, for the shapes of a run."""
    watched = onnx.ModelProto()
    watched.CopyFrom(model)
    products = [n for n in model.graph.node if n.op_type in PRODUCTS]
    shapes = {t.name: tuple(t.dims) for t in model.graph.initializer}
    shapes |= {k: v.shape for k, v in feeds.items()}
    present = {v.name for v in model.graph.output} | set(shapes)
    for v in dict.fromkeys(v for n in products for v in (*n.input[:2], n.output[0])):
        if v not in present:
            watched.graph.output.append(helper.make_empty_tensor_value_info(v))
    ready = session(watched)
    names = [v.name for v in ready.get_outputs()]
    shapes |= {k: v.shape for k, v in zip(names, ready.run(None, feeds), strict=True)}
    return sum(_operations(n, shapes) for n in products)


def _operations(n: onnx.NodeProto, shapes: Mapping[str, tuple[int, ...]]) -> int:
    a, w, y = (shapes[v] for v in (*n.input[:2], n.output[0]))
    if n.op_type in ("Conv", "ConvTranspose"):
        return 2 * prod(y if n.op_type == "Conv" else a) * prod(w[1:])
    turned = any(k.name == "transA" and k.i for k in n.attribute)
    return 2 * prod(y) * (a[0] if turned else a[-1])


def by_operator(graph: bytes, feeds: Feeds, threads: int) -> Counter[str]:
    """Returns each operator's microseconds in kernels: the fastest of 11 runs for each node."""
    with tempfile.TemporaryDirectory() as folder:
        prefix = str(Path(folder) / "profile")
        ready = session(graph, threads, enable_profiling=True, profile_file_prefix=prefix)
        for _ in range(11):
            ready.run(None, feeds)
        events = json.loads(Path(ready.end_profiling()).read_text(encoding="utf-8"))
    fastest: dict[tuple[str, str], int] = {}
    for e in events:
        if e.get("cat") == "Node" and e["name"].endswith("_kernel_time"):
            node = e["args"]["op_name"], e["name"]
            fastest[node] = min(e["dur"], fastest.get(node, e["dur"]))
    times: Counter[str] = Counter()
    for (operator, _), microseconds in fastest.items():
        times[operator] += microseconds
    return times


def row(name: str, arguments: argparse.Namespace, limit: float) -> str:
    """One line of the table of times."""
    clock = time.perf_counter if arguments.wall else time.process_time
    path = cache_folder("training") / f"{name}.onnx"
    with np.load(path.with_suffix(".npz")) as record:
        given = {k.removeprefix("in:"): record[k] for k in record.files if k.startswith("in:")}
        by = [k.removeprefix("grad:") for k in record.files if k.startswith("grad:")]
    names = [n for n in by if n not in given]
    graphs = {"now": build(ROOT, path, names), "small": build(ROOT, path, names, "small")}
    if arguments.before:
        graphs["before"] = build(arguments.before.resolve(), path, names)
    files = {k: g.SerializeToString() for k, g in graphs.items()} | {"forward": path.read_bytes()}
    runs = {k: session(f, arguments.threads) for k, f in files.items()}
    feeds = {k: {i.name: given[i.name] for i in s.get_inputs()} for k, s in runs.items()}
    first = {k: s.run(None, feeds[k]) for k, s in runs.items()}
    turns = [
        {k: timed(lambda: s.run(None, feeds[k]), clock) for k, s in runs.items()}  # noqa: B023
        for _ in range(arguments.rounds)
    ]
    seconds = statistics.median(t["now"] for t in turns)
    over = statistics.median(t["now"] / t["forward"] for t in turns)
    small = statistics.median(t["small"] / t["now"] for t in turns)
    counted = operations(graphs["now"], feeds["now"]) / limit
    kernels = by_operator(files["now"], feeds["now"], arguments.threads)
    alone = sum(t for op, t in kernels.items() if op.removeprefix("Fused") in PRODUCTS) / 1e6
    cells = [
        name,
        nodes_of(graphs["now"]).total(),
        f"{1000 * seconds:.1f}",
        f"{over:.2f}",
        f"{counted / seconds:.0%}",
        f"{counted / alone:.0%}",
        ", ".join(f"{op} {t / kernels.total():.0%}" for op, t in kernels.most_common(9)),
        nodes_of(graphs["small"]).total(),
        f"{small:.2f}",
    ]
    if arguments.before:
        ratio = statistics.median(t["now"] / t["before"] for t in turns)
        fastest = min(t["now"] for t in turns) / min(t["before"] for t in turns)
        scale = max(float(np.abs(v).max()) for v in first["before"])
        differ = max(float(np.abs(a - b).max()) for a, b in zip(first["now"], first["before"]))
        before = nodes_of(graphs["before"]).total()
        cells += [before, f"{ratio:.3f}", f"{fastest:.3f}", f"{differ / scale:.0e}"]
    return f"| {' | '.join(map(str, cells))} |"


def times(arguments: argparse.Namespace) -> Iterator[str]:
    """The table of times."""
    clock = time.perf_counter if arguments.wall else time.process_time
    limit = peak(arguments.threads, clock)
    kind = "wall" if arguments.wall else "CPU"
    yield f"{kind} time, {arguments.threads} threads, GEMM peak {limit / 1e9:.0f} GFLOP/s."
    yield ""
    columns = ["model", "nodes", "ms", "over forward", "share of peak", "products alone"]
    columns += ["kernel times", "small: nodes", "small: time"]
    if arguments.before:
        columns += ["nodes before", "time over before", "fastest runs", "difference"]
    yield f"| {' | '.join(columns)} |"
    yield "|---" * len(columns) + "|"
    for name in arguments.names:
        yield row(name, arguments, limit)


def main() -> None:
    """Prints the tables; with --write, records them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="full-size models to run")
    parser.add_argument("--before", type=Path, metavar="CHECKOUT", help="code to compare with")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--wall", action="store_true", help="wall times in place of CPU times")
    parser.add_argument("--write", action="store_true", help="record the result in scripts/results")
    arguments = parser.parse_args()
    lines = []
    for line in chain(counts(), [""], times(arguments) if arguments.names else ()):
        print(line, flush=True)
        lines.append(line)
    if arguments.write:
        threads = f"_{arguments.threads}_threads" if arguments.threads > 1 else ""
        write_record(f"gradient_graphs{threads}", lines)


if __name__ == "__main__":
    main()
