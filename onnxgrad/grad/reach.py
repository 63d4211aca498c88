"""Which values can move a target at all, by the graph alone and apart from the walk that makes
gradients.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping

from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from onnxgrad.ir import domains
from onnxgrad.ir.protobufs import every_node, graphs_of

_FLOATS = {
    TensorProto.FLOAT,
    TensorProto.DOUBLE,
    TensorProto.FLOAT16,
    TensorProto.BFLOAT16,
    TensorProto.UNDEFINED,
}
# constant between their steps: what passes through them alone has the derivative 0
_FLAT = {"Shape", "Size", "Floor", "Ceil", "Round", "Sign"}


def values_reaching(
    model: ModelProto,
    targets: Iterable[str],
    dtypes: Mapping[str, int | None],
    stops: Container[str] = (),
) -> set[str]:
    """The targets and every value from which a path leads to one of them, through floating-point
    values.

    `dtypes`: what is known of values by name; an unknown one may be a float. A node with nested
    graphs passes on everything that they read. No path goes on before one of `stops`.
    """
    makers: dict[str, list[NodeProto]] = {}
    for node in every_node(model.graph.node):
        for name in node.output:
            makers.setdefault(name, []).append(node)
    found: set[str] = set()
    todo = [*targets]
    while todo:
        name = todo.pop()
        if name in found or (dtypes.get(name) or TensorProto.UNDEFINED) not in _FLOATS:
            continue
        found.add(name)
        for node in makers.get(name, ()) if name not in stops else ():
            if node.op_type not in _FLAT or not domains.is_default(node.domain):
                todo += node.input
                todo += (read for graph in graphs_of(node) for read in _reads(graph))
    return found


def _reads(graph: GraphProto) -> Iterator[str]:
    yield from (value.name for value in graph.output)
    for node in every_node(graph.node):
        yield from node.input
