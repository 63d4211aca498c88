"""A smaller model in the making: a copy to change, and what it then no longer needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from onnx import ModelProto, NodeProto, TypeProto

from onnxgrad.ir.protobufs import every_node
from onnxgrad.verify.changed_region import reads

Types = Mapping[str, TypeProto]
Candidates = Iterator[ModelProto]


def copied(model: ModelProto) -> ModelProto:
    """A copy to change."""
    made = ModelProto()
    made.CopyFrom(model)
    return made


def pruned(model: ModelProto) -> ModelProto:
    """Without what no output needs: nodes, constants, inputs, functions, imports. Changes and
    answers `model`.
    """
    graph = model.graph
    wanted = {v.name for v in graph.output}
    kept: list[NodeProto] = []
    for node in reversed(graph.node):
        if not wanted.isdisjoint(node.output):
            wanted |= reads(node)
            kept.append(node)
    assign(graph.node, kept[::-1])
    assign(graph.initializer, [t for t in graph.initializer if t.name in wanted])
    assign(
        graph.sparse_initializer, [t for t in graph.sparse_initializer if t.values.name in wanted]
    )
    assign(graph.input, [v for v in graph.input if v.name in wanted])
    defined = {n for node in graph.node for n in node.output} - {v.name for v in graph.output}
    assign(graph.value_info, [v for v in graph.value_info if v.name in defined])
    called = {(n.domain, n.op_type) for n in every_node(graph.node)}
    while True:
        more = {
            (n.domain, n.op_type)
            for f in model.functions
            if (f.domain, f.name) in called
            for n in every_node(f.node)
        }
        if more <= called:
            break
        called |= more
    assign(model.functions, [f for f in model.functions if (f.domain, f.name) in called])
    domains = {domain for domain, _ in called} | {"", "ai.onnx"}
    assign(model.opset_import, [o for o in model.opset_import if o.domain in domains])
    return model


def assign(field: Any, values: Sequence[Any]) -> None:
    """Make a repeated field hold `values`, some of its own messages."""
    if len(values) != len(field):
        kept = [type(v).FromString(v.SerializeToString()) for v in values]
        del field[:]
        field.extend(kept)
