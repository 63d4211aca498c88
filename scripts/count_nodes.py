"""How many nodes do packaged models keep, beside onnxslim and onnxsim? `python
scripts/count_nodes.py [NAME ...] --peers-python PYTHON [--jobs N] [--write]`.

Each file of packaged_models.tsv is optimised by the command with its defaults, which proves the
result, and by two tools, which PYTHON has. Nodes are those of the graph, of nested graphs and of
functions, without Constant, which some tools make initializers. A file at which a tool fails counts
as it is. With `--write`, writes scripts/results/packaged_nodes.md.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import onnx
from bench_latency_peers import peer
from count_products import version
from fetch_models import FURTHER, fetch
from onnx import GraphProto
from records import write_record

TOOLS = ("onnxslim", "onnxsim")
TIMEOUT = 600.0


def nodes(graph: GraphProto) -> int:
    """Returns the number of nodes of a graph and those nested in it, Constants left out."""
    inner = [g for n in graph.node for a in n.attribute for g in (a.g, *a.graphs)]
    return sum(n.op_type != "Constant" for n in graph.node) + sum(map(nodes, inner))


def count(path: Path) -> int:
    """Returns the number of nodes of a file."""
    model = onnx.load(path)
    functions = (n for f in model.functions for n in f.node)
    return nodes(model.graph) + sum(n.op_type != "Constant" for n in functions)


def row(python: str, name: str) -> tuple[str, list[int], list[str]]:
    """Returns the counts of one model: before, after `optimize`, after each tool; and what failed.

    Raises FetchError if the model is unreachable.
    """
    path = fetch(name)
    counts, failed = [count(path)], list[str]()
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "onnxgrad.onnx"
        command = [sys.executable, "-m", "onnxgrad", "optimize", str(path), "-o", str(target)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
        if done.returncode:
            failed.append(f"onnxgrad: exit {done.returncode}")
        counts.append(count(target) if target.is_file() else counts[0])
        for tool in TOOLS:
            target = Path(folder) / f"{tool}.onnx"
            if wrong := peer(python, tool, path, target, TIMEOUT):
                failed.append(f"{tool}: {wrong}")
            counts.append(counts[0] if wrong else count(target))
    return name, counts, failed


def main() -> int:
    """Returns 1 if `optimize` failed at a file."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--peers-python", default=sys.executable, metavar="PYTHON")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="files at once")
    parser.add_argument("--write", action="store_true", help="write the record")
    given = parser.parse_args()
    head = ["model", "package", "file", "onnxgrad", *TOOLS]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    totals, problems = [0] * (2 + len(TOOLS)), list[str]()
    with ThreadPoolExecutor(given.jobs) as pool:
        rows = pool.map(partial(row, given.peers_python), given.names or FURTHER)
        for name, counts, failed in rows:
            cells = [name, FURTHER[name].package, *map(str, counts)]
            print(*cells, *failed, flush=True)
            lines.append(f"| {' | '.join(cells)} |")
            problems += [f"{name}: {why}" for why in failed]
            totals = [a + b for a, b in zip(totals, counts, strict=True)]
    lines.append(f"| all |  | {' | '.join(f'{n:,}' for n in totals)} |")
    tools = "; ".join(version(tool, [given.peers_python]) for tool in TOOLS)
    text = [
        f"Nodes without Constant, of nested graphs and functions too (`scripts/count_nodes.py`); "
        f"{tools}.",
        "",
        *lines,
        "",
        f"Failed: {'; '.join(problems) or 'none'}.",
    ]
    print(*text[-3:], sep="\n")
    if given.write:
        write_record("packaged_nodes", text)
    return int(any(": onnxgrad: " in p for p in problems))


if __name__ == "__main__":
    sys.exit(main())
