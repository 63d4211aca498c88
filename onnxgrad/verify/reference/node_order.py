"""Nodes in an order in which they can run: converters append theirs at the end, and onnxruntime
sorts for itself.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

from onnx import AttributeProto, GraphProto, NodeProto


def scheduled(nodes: Sequence[NodeProto]) -> list[NodeProto]:
    """The nodes, each after those whose outputs it or its nested graphs read; among those that can
    run, the first first, so that what is in order keeps its order. Nodes on a cycle come last, as
    they stood.
    """
    maker = {name: i for i, node in enumerate(nodes) for name in node.output if name}
    waits = [
        {maker[name] for name in reads(node) if name in maker} - {i} for i, node in enumerate(nodes)
    ]
    if all(max(before, default=-1) < i for i, before in enumerate(waits)):
        return list(nodes)
    readers: list[list[int]] = [[] for _ in nodes]
    for i, before in enumerate(waits):
        for j in before:
            readers[j].append(i)
    ready = [i for i, before in enumerate(waits) if not before]
    order: list[int] = []
    while ready:
        i = heapq.heappop(ready)
        order.append(i)
        for j in readers[i]:
            waits[j].discard(i)
            if not waits[j]:
                heapq.heappush(ready, j)
    done = set(order)
    return [nodes[i] for i in (*order, *(i for i in range(len(nodes)) if i not in done))]


def reads(node: NodeProto) -> Iterable[str]:
    """Returns the names that a node needs: its inputs, and every name in its nested graphs (their
    own names are made in them).
    """
    yield from node.input
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs) if attribute.type in _GRAPHS else ():
            yield from _names(graph)


def _names(graph: GraphProto) -> Iterable[str]:
    yield from (value.name for value in graph.output)
    for node in graph.node:
        yield from reads(node)


_GRAPHS = (AttributeProto.GRAPH, AttributeProto.GRAPHS)
