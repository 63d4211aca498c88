"""Nodes that run a custom operator inside, opened: their bodies become parts of the main graph.

If the bodies around a custom operator differ in two models, the nodes that hold them are not the
same boundary in both. The nodes of the bodies then move to the main graph, where the operator
itself is the boundary. An If stays, and its branches return the moved values, so that both branches
are compared. The inputs of the body of a Loop or Scan become inputs of the model, and its outputs
become outputs: bodies that agree for any inputs make loops that agree. A call of a function becomes
its nodes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    OperatorSetIdProto,
    TypeProto,
    ValueInfoProto,
)

from onnxgrad.errors import OnnxgradError
from onnxgrad.ir.load import load
from onnxgrad.ir.protobufs import copy_of, every_node, graphs_of
from onnxgrad.ir.types import type_to_proto

SHELL = "body is apart"  # the domain of a Loop or Scan without its body


class _Names:
    """The names of values in one body, in the main graph."""

    def __init__(self, taken: Mapping[str, str], inside: str = "") -> None:
        self.of, self.inside = dict(taken), inside

    def new(self, name: str) -> str:
        """Returns the name of a value that the body defines."""
        if name:
            self.of[name] = self.of.get(name, f"{name} in {self.inside}")
        return self.of.get(name, name)

    def node(self, node: NodeProto) -> NodeProto:
        """Returns a node of the body for the main graph."""
        made = copy_of(node)
        self._rename(made, self.of)
        made.name = f"{node.name} in {self.inside}" if node.name else ""
        return made

    def _rename(self, node: NodeProto, names: Mapping[str, str]) -> None:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
        for graph in graphs_of(node):
            own = {v.name for v in (*graph.input, *graph.initializer)}
            left = {a: b for a, b in names.items() if a not in own}
            for inner in graph.node:
                self._rename(inner, left)
            for value in graph.output:
                value.name = left.get(value.name, value.name)


def opened(model: ModelProto, nodes: Collection[NodeProto], shared: Collection[str]) -> ModelProto:
    """Returns the model with the bodies of these nodes of its main graph in the main graph.

    `shared` lists the first results of nodes of the same kind in another model; the bodies of the
    other nodes are not compared.
    """
    made = copy_of(model)
    graph = made.graph
    del graph.node[:]
    functions = {(f.domain, f.name, f.overload): f for f in model.functions}
    made.opset_import.append(OperatorSetIdProto(domain=SHELL, version=1))
    types = _Types(model)
    for node in model.graph.node:
        title = next((name for name in node.output if name), "")
        function = functions.get((node.domain, node.op_type, node.overload))
        if not any(node is n for n in nodes):
            graph.node.append(node)
        elif function is not None:
            graph.node.extend(_called(node, function, title))
            _import(made, function)
        elif node.op_type == "If":
            graph.node.extend(_branches(node, graph, title, shared=title in shared))
        else:
            graph.node.extend(_body(node, graph, title, types))
    return made


def _import(model: ModelProto, function: FunctionProto) -> None:
    known = {o.domain for o in model.opset_import}
    model.opset_import.extend(o for o in function.opset_import if o.domain not in known)


def _called(node: NodeProto, function: FunctionProto, title: str) -> Iterator[NodeProto]:
    """Yields the nodes of a function for one call."""
    given = [*node.input, *[""] * len(function.input)]
    taken = dict(zip(function.input, given, strict=False))
    results = dict(zip(function.output, node.output, strict=False))
    names = _Names({**{a: b for a, b in results.items() if b}, **taken}, title)
    for name in (n for inner in function.node for n in inner.output):
        names.new(name)
    values = {a.name: a for a in (*function.attribute_proto, *node.attribute)}
    for inner in function.node:
        made = names.node(inner)
        for each in every_node([made]):
            _fill(each, values)
        yield made
    for name, result in results.items():
        if result and name in function.input:  # an input that the function returns
            yield _copy(taken[name], result)


def _fill(node: NodeProto, values: Mapping[str, AttributeProto]) -> None:
    """Replaces the attributes that refer to those of a function."""
    kept = []
    for a in node.attribute:
        if a.ref_attr_name and a.ref_attr_name not in values:
            continue
        value = copy_of(values[a.ref_attr_name] if a.ref_attr_name else a)
        value.name = a.name
        kept.append(value)
    del node.attribute[:]
    node.attribute.extend(kept)


def _moved(body: GraphProto, graph: GraphProto, names: _Names) -> Iterator[NodeProto]:
    """Moves what a body defines to the main graph; yields its nodes."""
    for tensor in body.initializer:
        value = copy_of(tensor)
        value.name = names.new(tensor.name)
        graph.initializer.append(value)
    for name in (n for inner in body.node for n in inner.output):
        names.new(name)
    for value in (*body.value_info, *body.output):
        if value.type.WhichOneof("value") and value.name in names.of:
            graph.value_info.append(ValueInfoProto(name=names.of[value.name], type=value.type))
    for inner in body.node:
        yield names.node(inner)


def _branches(
    node: NodeProto, graph: GraphProto, title: str, *, shared: bool
) -> Iterator[NodeProto]:
    """Yields the nodes of both branches, and an If that returns their results."""
    made = copy_of(node)
    for a in made.attribute:
        names = _Names({}, f"{a.name} of {title}")
        yield from _moved(a.g, graph, names)
        ends = [names.of.get(v.name, v.name) for v in a.g.output]
        shown = [f"{a.name} of {title}: result {i}" for i in range(len(ends))]
        yield from map(_copy, ends, shown)
        graph.output.extend(ValueInfoProto(name=name) for name in shown if shared)
        bare = GraphProto(name=a.g.name)
        for value, name in zip(a.g.output, shown, strict=True):
            inside = f"{name}'"
            bare.node.append(_copy(name, inside))
            bare.output.append(ValueInfoProto(name=inside, type=value.type))
        a.g.CopyFrom(bare)
    yield made


def _body(node: NodeProto, graph: GraphProto, title: str, types: _Types) -> Iterator[NodeProto]:
    """Yields the nodes of the body of a Loop or Scan, and the node without it."""
    body = next(a.g for a in node.attribute if a.name == "body")
    names = _Names({}, f"body of {title}")
    for i, (value, kind) in enumerate(zip(body.input, types.inputs(node), strict=True)):
        name = names.of[value.name] = f"input {i} of body of {title}"
        graph.input.append(ValueInfoProto(name=name, type=kind))
    yield from _moved(body, graph, names)
    for i, value in enumerate(body.output):
        name = f"body of {title}: result {i}"
        yield _copy(names.of.get(value.name, value.name), name)
        graph.output.append(ValueInfoProto(name=name))
    declared = {v.name for v in (*graph.value_info, *graph.output)}
    graph.value_info.extend(v for v in types.results(node) if v.name not in declared)
    shell = copy_of(node)
    shell.domain = SHELL
    del shell.attribute[:]
    shell.attribute.extend(a for a in node.attribute if a.name != "body")
    yield shell


def _copy(name: str, new: str) -> NodeProto:
    return NodeProto(op_type="Identity", input=[name], output=[new])


class _Types:
    """Types that a model does not declare, from inference."""

    def __init__(self, model: ModelProto) -> None:
        self._model = model
        self._bodies: dict[str, list[TypeProto]] | None = None
        self._values: dict[str, TypeProto] = {}

    def _inferred(self) -> dict[str, list[TypeProto]]:
        if self._bodies is None:
            self._bodies = {}
            try:
                main = load(self._model).main
            except OnnxgradError:
                return self._bodies
            self._values = {v.name: type_to_proto(v.type) for v in main.vars()}
            for b in main.bindings:
                for block in b.blocks.values():
                    self._bodies[b.out.name] = [type_to_proto(v.type) for v in block.inputs]
        return self._bodies

    def inputs(self, node: NodeProto) -> list[TypeProto]:
        """Returns the types of the inputs of a body."""
        declared = [v.type for a in node.attribute if a.name == "body" for v in a.g.input]
        inferred = self._inferred().get(next(name for name in node.output if name), declared)
        return [
            d if d.tensor_type.HasField("shape") or not t.WhichOneof("value") else t
            for d, t in zip(declared, inferred, strict=True)
        ]

    def results(self, node: NodeProto) -> Iterator[ValueInfoProto]:
        """Yields the known types of the results of a node."""
        self._inferred()
        for name in node.output:
            kind = self._values.get(name)
            if kind is not None and kind.WhichOneof("value"):
                yield ValueInfoProto(name=name, type=kind)
