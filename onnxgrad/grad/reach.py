"""Which values can move a target at all, by the graph alone and apart from the walk that makes gradients."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto

_FLOATS = {TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.UNDEFINED}
# constant between their steps: what passes through them alone has the derivative 0
_FLAT = {"Shape", "Size", "Floor", "Ceil", "Round", "Sign"}


def values_reaching(model: ModelProto, targets: Iterable[str], dtypes: Mapping[str, int | None]) -> set[str]:
    """The targets and every value from which a path leads to one of them, through floating-point values.

    `dtypes`: what is known of values by name; an unknown one may be a float. A node with nested graphs passes on
    everything that they read.
    """
    makers: dict[str, list[NodeProto]] = {}
    for node in _nodes(model.graph):
        for name in node.output:
            makers.setdefault(name, []).append(node)
    found: set[str] = set()
    todo = [*targets]
    while todo:
        name = todo.pop()
        if name in found or (dtypes.get(name) or TensorProto.UNDEFINED) not in _FLOATS:
            continue
        found.add(name)
        for node in makers.get(name, ()):
            if node.op_type not in _FLAT or node.domain not in ("", "ai.onnx"):
                todo += node.input
                todo += (read for graph in _bodies(node) for read in _reads(graph))
    return found


def _bodies(node: NodeProto) -> Iterator[GraphProto]:
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == AttributeProto.GRAPHS:
            yield from attribute.graphs


def _nodes(graph: GraphProto) -> Iterator[NodeProto]:
    for node in graph.node:
        yield node
        for body in _bodies(node):
            yield from _nodes(body)


def _reads(graph: GraphProto) -> Iterator[str]:
    yield from (value.name for value in graph.output)
    for node in _nodes(graph):
        yield from node.input
