"""What became of each node between two graphs, and which rewrites had to do with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onnxgrad.ir.binding import Binding
from onnxgrad.report.html.graph import Drawn, first_result
from onnxgrad.rewrite.trace import Firing

# as the page knows them; a node without a word is as it was
_GONE, _NEW, _CHANGED = "removed", "added", "changed"


def compared(before: Drawn, after: Drawn, firings: Sequence[Firing] = ()) -> list[dict[str, Any]]:
    """Both graphs in JSON's types, each node with what became of it and the numbers of its
    rewrites. Nodes are matched by their first result.
    """
    sides = [{first_result(b): b for b in side.nodes} for side in (before, after)]
    graphs = [before.to_dict(), after.to_dict()]
    numbers = _rewrites(firings)
    for drawn, graph, other, word in zip(
        (before, after), graphs, reversed(sides), (_GONE, _NEW), strict=True
    ):
        for b, node in zip(drawn.nodes, graph["nodes"], strict=True):
            name = first_result(b)
            if name not in other:
                node["c"] = word
            elif _call(b) != _call(other[name]):
                node["c"] = _CHANGED
            if "c" in node and name in numbers:
                node["w"] = list(numbers[name])
    return graphs


def _call(b: Binding) -> tuple[Any, ...]:
    inputs = [None if v is None else v.name for v in b.inputs]
    return b.domain, b.op, b.node.overload, inputs, b.attribute_texts()


def _rewrites(firings: Sequence[Firing]) -> Mapping[str, dict[int, None]]:
    """The rewrites, in order, that matched or emitted each node, by its first result's name."""
    found: dict[str, dict[int, None]] = {}
    for firing in firings:
        for name in (*firing.matched, *firing.emitted):
            found.setdefault(name, {})[firing.number] = None
    return found
