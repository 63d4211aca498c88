"""Time to build gradient graphs: the models of models/training, and chains of 1 000 and 10 000
nodes.

`python scripts/bench_gradient.py [--rounds N] [--write]`: medians of wall and CPU time in one
process. The chains run in turns; their ratio is the median of the ratios of neighbouring runs.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper, numpy_helper

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from onnxgrad import gradient  # noqa: E402  # the script runs from a checkout
from scripts.records import write_record  # noqa: E402

FOLDER = ROOT / "models" / "training"


def chain(nodes: int) -> ModelProto:
    """A dense network of about `nodes` nodes with a weight and a bias in each layer of four."""
    layers = nodes // 4
    weights, bindings, x = [], [], "x"
    for i in range(layers):
        weights += [numpy_helper.from_array(np.eye(4, dtype=np.float32), f"w{i}")]
        weights += [numpy_helper.from_array(np.zeros(4, np.float32), f"b{i}")]
        bindings += [
            helper.make_node("MatMul", [x, f"w{i}"], [f"p{i}"]),
            helper.make_node("Add", [f"p{i}", f"b{i}"], [f"a{i}"]),
            helper.make_node("Tanh", [f"a{i}"], [f"t{i}"]),
            helper.make_node("Add", [f"t{i}", x], [f"x{i}"]),
        ]
        x = f"x{i}"
    bindings.append(helper.make_node("ReduceSum", [x], ["loss"], keepdims=0))
    graph = helper.make_graph(
        bindings,
        "chain",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])],
        [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def built(model: ModelProto) -> tuple[float, float, int]:
    """Wall and CPU seconds of `gradient` by all weights, and the nodes of the result."""
    wall, cpu = time.perf_counter(), time.process_time()
    graph = gradient(model, "params", "loss")
    nodes = sum(n.op_type not in ("Constant", "Identity") for n in graph.graph.node)
    return time.perf_counter() - wall, time.process_time() - cpu, nodes


def table(rounds: int) -> list[str]:
    """Returns Markdown lines, one per model."""
    lines = [
        "| model | forward nodes | gradient nodes | wall ms | CPU ms | fastest ms |",
        "|---|---|---|---|---|---|",
    ]
    for path in sorted(FOLDER.glob("*.onnx")):
        model = onnx.load(path)
        found = [built(model) for _ in range(rounds)]
        wall, cpu = (1000 * statistics.median(f[i] for f in found) for i in (0, 1))
        fastest = 1000 * min(f[0] for f in found)
        lines.append(
            f"| {path.stem} | {len(model.graph.node)} | {found[0][2]} | {wall:.0f} | {cpu:.0f} | "
            f"{fastest:.0f} |"
        )
    return lines


def chains(rounds: int) -> str:
    """The two chains, in turns."""
    small, large = chain(1_000), chain(10_000)
    pairs = [(built(small), built(large)) for _ in range(rounds)]
    few, many = (statistics.median(p[i][1] for p in pairs) for i in (0, 1))
    ratio = statistics.median(b[1] / a[1] for a, b in pairs)
    return (
        f"Chain of 1 000 nodes: {few:.2f} s of CPU time; of 10 000 nodes: {many:.2f} s "
        f"({ratio:.1f}x)."
    )


def main() -> None:
    """Prints the tables; with --write, records them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--write", action="store_true", help="record the result in scripts/results")
    arguments = parser.parse_args()
    lines = ["Building the gradient by all weights, warm, one process, medians.", ""]
    lines += [*table(arguments.rounds), "", chains(max(3, arguments.rounds // 3))]
    print("\n".join(lines))
    if arguments.write:
        write_record("bench_gradient", lines)


if __name__ == "__main__":
    main()
