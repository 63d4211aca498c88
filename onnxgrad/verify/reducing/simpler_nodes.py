"""Smaller models by single nodes: one left out, opened, or without an attribute or an operand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onnx import AttributeProto, ModelProto, NodeProto

from onnxgrad.ir.protobufs import every_graph, graphs_of
from onnxgrad.verify.reducing.candidate import Candidates, Types, copied

_GRAPHS = (AttributeProto.GRAPH, AttributeProto.GRAPHS)


def bypassed(model: ModelProto, types: Types) -> Candidates:
    """A node of one result is gone: its readers read one of its operands of the same type."""
    for i, node in enumerate(model.graph.node):
        if len(node.output) != 1:
            continue
        for operand in dict.fromkeys(node.input):
            if operand and operand in types and types.get(node.output[0]) == types[operand]:
                made = copied(model)
                del made.graph.node[i]
                _read_instead(made.graph, node.output[0], operand)
                yield made
    for path in _places(model):
        count = len(path(model).node)
        for i in range(count):
            for j in range(len(path(model).node[i].input)):
                made = copied(model)
                graph = path(made)
                inner = graph.node[i]
                if len(inner.output) == 1 and inner.input[j]:
                    result, operand = inner.output[0], inner.input[j]
                    del graph.node[i]
                    _read_instead(graph, result, operand)
                    yield made


def _places(model: ModelProto) -> list[Callable[[ModelProto], Any]]:
    """Ways to every nested graph and function body of a model, in any copy of it."""
    found: list[Callable[[ModelProto], Any]] = []
    found += [lambda m, i=i: m.functions[i] for i in range(len(model.functions))]  # type: ignore[misc]
    count = sum(1 for _ in every_graph(model.graph))
    found += [lambda m, i=i: list(every_graph(m.graph))[i] for i in range(1, count)]  # type: ignore[misc]
    return found


def _read_instead(graph: Any, old: str, new: str) -> None:
    """Let every reader in `graph` (or a function) read another value; an output takes over its
    name or is renamed.
    """
    for node in graph.node:
        _rename(node, old, new)
    outputs = graph.output
    for i, v in enumerate(outputs):
        if isinstance(v, str):
            if v == old:
                outputs[i] = new
        elif v.name == old:
            graph.node.append(NodeProto(op_type="Identity", input=[new], output=[old]))


def _rename(node: NodeProto, old: str, new: str) -> None:
    node.input[:] = [new if n == old else n for n in node.input]
    for inner in graphs_of(node):
        for n in inner.node:
            _rename(n, old, new)
        for v in inner.output:
            if v.name == old:
                inner.node.append(
                    NodeProto(op_type="Identity", input=[new], output=[f"{old}:{inner.name}"])
                )
                v.name = f"{old}:{inner.name}"


def opened(model: ModelProto, types: Types) -> Candidates:
    """The nodes of a branch in the place of its If; functions in the place of their calls."""
    for i, node in enumerate(model.graph.node):
        for branch in graphs_of(node) if node.op_type == "If" else ():
            made = copied(model)
            inner = [*branch.node]
            for given, result in zip(branch.output, node.output):
                inner.append(NodeProto(op_type="Identity", input=[given.name], output=[result]))
            nodes = [*made.graph.node[:i], *inner, *made.graph.node[i + 1 :]]
            kept = [NodeProto.FromString(n.SerializeToString()) for n in nodes]
            del made.graph.node[:]
            made.graph.node.extend(kept)
            made.graph.initializer.extend(branch.initializer)
            yield made
    if model.functions:
        from onnx import inliner

        try:
            yield inliner.inline_local_functions(model)
        except Exception:  # noqa: BLE001  # its own errors, of a model it cannot handle: there is just no such candidate
            return


def plainer_attributes(model: ModelProto, types: Types) -> Candidates:
    """A node without one of its attributes, or of its trailing operands."""
    for i, node in enumerate(model.graph.node):
        for j, a in enumerate(node.attribute):
            if a.type not in _GRAPHS and node.op_type != "Constant":
                made = copied(model)
                del made.graph.node[i].attribute[j]
                yield made
        if len(node.input) > 1:
            made = copied(model)
            del made.graph.node[i].input[-1]
            yield made
