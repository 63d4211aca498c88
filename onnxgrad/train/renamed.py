"""Values of a protobuf graph under other names, and the names that it uses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from onnx import GraphProto, NodeProto

from onnxgrad.ir.nodes import every_graph, graphs_of
from onnxgrad.train.manifest import Manifest


def names_of(graph: GraphProto) -> set[str]:
    """The names of all values of a graph, nested graphs included."""
    found: set[str] = set()
    for g in every_graph(graph):
        found |= own_names(g)
    return found - {""}


def own_names(graph: GraphProto) -> set[str]:
    """The names of the values that a graph itself defines."""
    return {
        *(v.name for v in graph.input),
        *(t.name for t in graph.initializer),
        *(s.values.name for s in graph.sparse_initializer),
        *(name for node in graph.node for name in node.output),
    }


def node_names(graph: GraphProto) -> set[str]:
    """The names of all nodes of a graph, nested graphs included."""
    return {node.name for g in every_graph(graph) for node in g.node}


def reads(node: NodeProto) -> Iterator[str]:
    """The names of the values that a node reads from outside, nested graphs included."""
    yield from (name for name in node.input if name)
    for graph in graphs_of(node):
        inside = own_names(graph)
        used = (name for n in graph.node for name in reads(n))
        yield from (name for name in used if name not in inside)
        yield from (v.name for v in graph.output if v.name not in inside)


def renamed(graph: GraphProto, new: Mapping[str, str]) -> GraphProto:
    """A copy in which values have their new names, in nested graphs too."""
    copy = GraphProto()
    copy.CopyFrom(graph)
    for g in every_graph(copy):
        for named in (*g.input, *g.output, *g.value_info, *g.initializer):
            named.name = new.get(named.name, named.name)
        for sparse in g.sparse_initializer:
            sparse.values.name = new.get(sparse.values.name, sparse.values.name)
        for node in g.node:
            node.input[:] = _all(node.input, new)
            node.output[:] = _all(node.output, new)
    return copy


def renamed_manifest(manifest: Manifest, new: Mapping[str, str]) -> Manifest:
    """What the manifest says, of values under their new names."""

    def other(name: str | None) -> str | None:
        return None if name is None else new.get(name, name)

    return replace(
        manifest,
        inputs=tuple(
            replace(
                fed,
                name=new.get(fed.name, fed.name),
                next=other(fed.next),
                of=other(fed.of),
                gradient=other(fed.gradient),
                adjoint=other(fed.adjoint),
            )
            for fed in manifest.inputs
        ),
        loss=new.get(manifest.loss, manifest.loss),
        metrics=tuple(new.get(name, name) for name in manifest.metrics),
        gradient_norm=other(manifest.gradient_norm),
    )


def _all(names: Iterable[str], new: Mapping[str, str]) -> list[str]:
    return [new.get(name, name) for name in names]
