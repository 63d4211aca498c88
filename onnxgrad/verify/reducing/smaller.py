"""Smaller models: each function gives candidates made of one model, the boldest first.

A candidate need not be valid, nor show what is looked for; `reduce` finds that out. The given model
is not changed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

from onnx import ModelProto, ValueInfoProto

from onnxgrad.ir.protobufs import every_graph, every_node
from onnxgrad.verify.changed_region import reads
from onnxgrad.verify.reducing.candidate import Candidates, Types, assign, copied
from onnxgrad.verify.reducing.simpler_nodes import bypassed, opened, plainer_attributes
from onnxgrad.verify.reducing.simpler_numbers import plainer_numbers, smaller_sizes

_MOST_NODES = 400  # beyond that single nodes are not tried one by one


def without_words(model: ModelProto, types: Types) -> Candidates:
    """No metadata, documentation, names of nodes, declared intermediate types, training
    information.
    """

    def strip(made: ModelProto, *, names: bool) -> ModelProto:
        for field in (
            "metadata_props",
            "doc_string",
            "producer_name",
            "producer_version",
            "domain",
            "training_info",
        ):
            made.ClearField(field)
        for graph in every_graph(made.graph):
            for field in ("metadata_props", "doc_string", "value_info", "quantization_annotation"):
                graph.ClearField(field)
        nodes = [
            *every_node(made.graph.node),
            *(n for f in made.functions for n in every_node(f.node)),
        ]
        for n in nodes:
            for field in (
                "metadata_props",
                "doc_string",
                "device_configurations",
                *(("name",) if names else ()),
            ):
                if field in n.DESCRIPTOR.fields_by_name:
                    n.ClearField(field)
        for t in made.graph.initializer:
            t.ClearField("doc_string")
        return made

    yield strip(copied(model), names=True)
    yield strip(copied(model), names=False)


def fewer_outputs(model: ModelProto, types: Types) -> Candidates:
    """Some of the outputs, down to one."""
    for keep in _subsets(len(model.graph.output)):
        made = copied(model)
        assign(made.graph.output, [v for i, v in enumerate(made.graph.output) if i in keep])
        yield made


def fewer_nodes(model: ModelProto, types: Types) -> Candidates:
    """Some of the nodes: what they read of the others becomes an input, what the others read of
    them an output.
    """
    for keep in _subsets(len(model.graph.node)):
        made = _cut(model, keep, types)
        if made is not None:
            yield made


def _subsets(count: int) -> Iterator[set[int]]:
    """Parts of range(count), as delta debugging tries them: halves, then what is left without a
    quarter, ...
    """
    everything = set(range(count))
    parts = 2
    while count > 1 and parts <= max(2, min(count, _MOST_NODES)):
        edges = [count * i // parts for i in range(parts + 1)]
        chunks = [set(range(a, b)) for a, b in itertools.pairwise(edges) if b > a]
        if parts <= 16:
            yield from (c for c in chunks if len(c) < count)
        yield from (everything - c for c in reversed(chunks) if parts > 2 and len(c) < count)
        if parts == min(count, _MOST_NODES):
            return
        parts = min(parts * 2, count, _MOST_NODES)


def _cut(model: ModelProto, keep: set[int], types: Types) -> ModelProto | None:
    made = copied(model)
    graph = made.graph
    nodes = [n for i, n in enumerate(graph.node) if i in keep]
    gone = [n for i, n in enumerate(graph.node) if i not in keep]
    produced = {name for n in nodes for name in n.output if name}
    lost = {name for n in gone for name in n.output if name}
    needed = sorted(set().union(*(reads(n) for n in nodes)) & lost) if nodes else []
    wanted = {name for n in gone for name in reads(n)} | {v.name for v in graph.output}
    if not nodes or any(name not in types for name in needed):
        return None
    outputs = [v for v in graph.output if v.name in produced]
    known = {v.name for v in outputs}
    more = [ValueInfoProto(name=n, type=types.get(n)) for n in sorted(produced & wanted - known)]
    graph.input.extend(ValueInfoProto(name=name, type=types[name]) for name in needed)
    assign(graph.node, nodes)
    assign(graph.output, outputs)
    graph.output.extend(more)
    return made if graph.output else None


STEPS: tuple[tuple[str, Callable[[ModelProto, Types], Candidates]], ...] = (
    ("metadata", without_words),
    ("nodes", fewer_nodes),
    ("outputs", fewer_outputs),
    ("bypass", bypassed),
    ("bodies", opened),
    ("attributes", plainer_attributes),
    ("sizes", smaller_sizes),
    ("numbers", plainer_numbers),
)
