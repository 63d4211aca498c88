"""Names that onnx.version_converter makes in a nested graph may be those it makes outside;
onnxruntime refuses that.
"""

from __future__ import annotations

from onnx import GraphProto

from onnxgrad.ir.nodes import every_graph, graphs_of


def separate_names(graph: GraphProto) -> None:
    """Rename what a nested graph defines under a name that a graph around it has; renamed in
    place.
    """
    taken = {name for g in every_graph(graph) for name in _defined(g)}
    work = [(graph, _defined(graph))]
    while work:
        outer, visible = work.pop()
        for inner in [g for node in outer.node for g in graphs_of(node)]:
            for name in sorted({n for node in inner.node for n in node.output if n} & visible):
                fresh = name
                while fresh in taken:
                    fresh += "_inner"
                taken.add(fresh)
                _rename(inner, name, fresh)
            work.append((inner, visible | _defined(inner)))


def _defined(graph: GraphProto) -> set[str]:
    own = {v.name for v in graph.input} | {t.name for t in graph.initializer}
    return own | {name for node in graph.node for name in node.output if name}


def _rename(graph: GraphProto, old: str, new: str) -> None:
    for inner in every_graph(graph):
        for node in inner.node:
            node.input[:] = [new if name == old else name for name in node.input]
            node.output[:] = [new if name == old else name for name in node.output]
        for v in (*inner.output, *inner.value_info):
            if v.name == old:
                v.name = new
