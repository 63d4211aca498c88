"""Draws README's picture: the head of a real model before and after optimising, the nodes that a
gradient adds, and the time of a training step.

    python scripts/make_picture.py                       # writes scripts/results/picture.svg

The graphs are those of models/mobilenet_v2.raw.onnx and models/training/mlp.onnx; the numbers come
from the records in scripts/results. A test draws the picture again and compares.
"""

from __future__ import annotations

import html
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # the script runs from a checkout

import onnxgrad  # noqa: E402
from scripts.records import RESULTS, column  # noqa: E402

PICTURE = RESULTS / "picture.svg"
WIDTH, HEIGHT = 880, 342
STYLE = """
  text { font: 11px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #1c2024 }
  .title { font-size: 14px; font-weight: 600 } .soft { fill: #59636e }
  .op { font-size: 9px; text-anchor: middle }
  .wire { fill: none; stroke: #8c959f; stroke-width: 1 }
  .stays { fill: #dbeafe; stroke: #2563eb } .new { fill: #ffe7cc; stroke: #d9730d }
  .goes { fill: #f3f4f6; stroke: #9aa4af; stroke-dasharray: 3 2 }
  .bar { fill: #2563eb } .line { stroke: #59636e; stroke-dasharray: 2 2 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6e9ed } .soft { fill: #a3adb8 }
    .wire { stroke: #6b7580 }
    .stays { fill: #16325c; stroke: #6ea8fe } .goes { fill: #23282e; stroke: #6b7580 }
    .new { fill: #4a2c0c; stroke: #f0a04b } .bar { fill: #6ea8fe } .line { stroke: #a3adb8 }
  }
"""


@dataclass
class Node:
    """A node with its position; `kind` is its class in STYLE."""

    op: str
    inputs: list[str]
    outputs: list[str]
    kind: str = "stays"
    x: float = 0.0
    y: float = 0.0


def nodes_of(model: onnx.ModelProto) -> list[Node]:
    """The nodes of the main graph in the file's order."""
    return [Node(n.op_type, list(n.input), list(n.output)) for n in model.graph.node]


def before(nodes: list[Node], value: str) -> list[Node]:
    """Returns the nodes on which `value` depends."""
    wanted, found = {value}, []
    for node in reversed(nodes):
        if wanted & set(node.outputs):
            wanted |= set(node.inputs)
            found.append(node)
    return found[::-1]


def readers(nodes: list[Node], node: Node) -> list[Node]:
    """Returns the nodes in `nodes` that read a result of `node`."""
    return [n for n in nodes if set(node.outputs) & set(n.inputs)]


def writers(nodes: list[Node], node: Node) -> list[Node]:
    """Returns the nodes in `nodes` whose results `node` reads."""
    return [n for n in nodes if set(n.outputs) & set(node.inputs)]


def half(node: Node) -> float:
    """Returns half of the width of a node."""
    return 6 + 2.7 * len(node.op)


def spread(row: list[Node], gap: float) -> None:
    """Places the nodes of one column below each other, centred on their readers."""
    row.sort(key=lambda n: n.y)
    middle = sum(n.y for n in row) / len(row)
    for i, node in enumerate(row):
        node.y = middle + (i - (len(row) - 1) / 2) * gap


def before_readers(nodes: list[Node], gap: float) -> None:
    """Places a graph that ends in one node at x = 0: each node is just before its reader."""
    depth: dict[int, int] = {}
    for node in reversed(nodes):
        depth[id(node)] = max((depth[id(r)] + 1 for r in readers(nodes, node)), default=0)
    x = 0.0
    for d in range(max(depth.values()) + 1):
        row = [n for n in nodes if depth[id(n)] == d]
        widest = max(map(half, row))
        x -= widest
        for node in row:
            near = [r.y for r in readers(nodes, node)]
            node.x, node.y = x, sum(near) / len(near) if near else 0.0
        spread(row, gap)
        x -= widest + 9


def there_and_back(nodes: list[Node], width: float, gap: float) -> None:
    """Places a gradient graph: the forward part to the right, the backward part below it."""
    for kind, sign in (("stays", 1), ("new", -1)):
        part = [n for n in nodes if n.kind == kind]
        depth: dict[int, int] = {}
        for node in part:
            depth[id(node)] = max((depth[id(w)] + 1 for w in writers(part, node)), default=0)
        for node in reversed(part):
            after = [depth[id(r)] - 1 for r in readers(part, node)]
            depth[id(node)] = min(after, default=depth[id(node)])
        most = max(depth.values())
        for d in range(most + 1):
            for i, node in enumerate(n for n in part if depth[id(n)] == d):
                node.x = width * (d if sign > 0 else most - d) / most
                node.y = -sign * (18 + i * gap)


def drawn(nodes: list[Node], x: float, y: float) -> Iterable[str]:
    """Returns the SVG of wires and of nodes above them, moved by (x, y)."""
    for node in nodes:
        for reader in readers(nodes, node):
            a, b = (node.x + x, node.y + y), (reader.x + x, reader.y + y)
            bend = (b[0] - a[0]) / 2
            yield (
                f'<path class="wire" d="M{a[0]:.0f} {a[1]:.0f} C{a[0] + bend:.0f} {a[1]:.0f} '
                f'{b[0] - bend:.0f} {b[1]:.0f} {b[0]:.0f} {b[1]:.0f}"/>'
            )
    for node in nodes:
        yield (
            f'<rect class="{node.kind}" x="{node.x + x - half(node):.0f}" y="{node.y + y - 8:.0f}" '
            f'width="{2 * half(node):.0f}" height="16" rx="8"/>'
        )
        yield f'<text class="op" x="{node.x + x:.0f}" y="{node.y + y + 3:.0f}">{node.op}</text>'


def label(x: float, y: float, text: str, kind: str = "") -> str:
    """Returns the SVG of a text that begins at a position."""
    style = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.0f}" y="{y:.0f}"{style}>{html.escape(text)}</text>'


def optimised() -> Iterable[str]:
    """The head of mobilenet_v2, up to its first activation, before and after."""
    path = ROOT / "models" / "mobilenet_v2.raw.onnx"
    whole = [onnx.load(path), onnxgrad.optimize(onnx.load(path), verify=False)]
    graphs = [before(nodes_of(model), "hardtanh") for model in whole]
    left = {n.op for n in graphs[1]} | {name for n in graphs[1] for name in n.outputs}
    for node in graphs[0]:
        known = node.outputs[0] if node.op == "Constant" else node.op
        node.kind = "stays" if known in left else "goes"
    sizes = [len(model.graph.node) for model in whole]
    ratio = column("latency_peers.md", "onnxgrad default")["mobilenet_v2.raw.onnx"]
    found = f"mobilenet_v2: {sizes[0]} → {sizes[1]} nodes, {ratio:.2f} of the time; here its head"
    yield label(16, 24, "optimise", "title")
    yield label(90, 24, found, "soft")
    for graph, end in zip(graphs, (460, 600)):
        before_readers(graph, gap=22)
        yield from drawn(graph, end, 100)
    yield label(474, 104, "→")


def differentiated() -> Iterable[str]:
    """The gradient graph of mlp, with added nodes in another colour."""
    path = ROOT / "models" / "training" / "mlp.onnx"
    forward = {name for node in nodes_of(onnx.load(path)) for name in node.outputs}
    nodes = nodes_of(onnxgrad.gradient(onnx.load(path), "params", "loss"))
    for node in nodes:
        node.kind = "stays" if set(node.outputs) & forward else "new"
    count = sum(n.kind == "stays" for n in nodes)
    found = (
        f"mlp: {count} → {len(nodes)} nodes, the loss and the gradient of every weight; what is "
        "new runs back below"
    )
    yield label(16, 204, "differentiate", "title")
    yield label(122, 204, found, "soft")
    there_and_back(nodes, width=770, gap=22)
    yield from drawn(nodes, 50, 248)


def trained(steps: Mapping[str, float]) -> Iterable[str]:
    """The time of a step with AdamW relative to PyTorch's."""
    left, unit = 690, 130  # the start of the bars, and the length of PyTorch's time
    yield label(630, 24, "train", "title")
    yield label(672, 24, "AdamW step, CPU time / PyTorch", "soft")
    for i, (name, ratio) in enumerate(steps.items()):
        y = 44 + 22 * i
        yield label(630, y + 11, name)
        width = f"{unit * ratio:.0f}"
        yield f'<rect class="bar" x="{left}" y="{y}" width="{width}" height="14" rx="2"/>'
        yield label(left + unit * max(ratio, 1.0) + 8, y + 11, f"{ratio:.2f}")
    end = 44 + 22 * len(steps)
    yield f'<path class="line" d="M{left + unit} 38 V{end}"/>'


def picture() -> str:
    """The picture as SVG."""
    parts = [*optimised(), *trained(column("steps.md", "blocks/PyTorch")), *differentiated()]
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="Graphs before and after optimising and differentiating, times of steps">\n'
        f"<style>{STYLE}</style>\n{body}\n</svg>\n"
    )


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
    print(PICTURE)
