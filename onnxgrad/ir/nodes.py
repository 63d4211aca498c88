"""Nodes and graphs of a protobuf, nested ones included."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from onnx import GraphProto, NodeProto


def graphs_of(node: NodeProto) -> list[GraphProto]:
    """The graphs that a node holds as attributes."""
    found = []
    for a in node.attribute:
        if a.HasField("g"):
            found.append(a.g)
        found += a.graphs
    return found


def every_node(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """Every node, those of nested graphs included."""
    for node in nodes:
        yield node
        for graph in graphs_of(node):
            yield from every_node(graph.node)


def every_graph(graph: GraphProto) -> Iterator[GraphProto]:
    """The graph and all nested ones, outer before inner."""
    yield graph
    for node in graph.node:
        for inner in graphs_of(node):
            yield from every_graph(inner)


def weight_elements(graph: GraphProto) -> int:
    """How many elements the initializers of the graph and of nested ones have."""
    return sum(math.prod(t.dims) for inner in every_graph(graph) for t in inner.initializer)
