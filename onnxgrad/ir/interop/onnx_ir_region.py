"""A part of an onnx_ir graph as a program of its own: what one node computes, a few nodes deep.

What lies outside stays outside: a value that comes from there is an input (or a constant, where its
value is fixed), one that is read there is an output.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TypeProto

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.load import load
from onnxgrad.ir.program import Program
from onnxgrad.ir.var import Var

# of what stands for a value of unknown type, since an input would have to have one
OUTSIDE = "onnxgrad.outside"


@dataclass(frozen=True)
class OnnxIrRegion:
    """A program, the binding of the node that it was made for, and the node and value of onnx_ir
    for which each of its bindings and values stands. The results of `root` that anything reads are
    its first outputs.
    """

    program: Program
    root: Binding
    nodes: Mapping[Binding, Any]
    values: Mapping[Var, Any]

    @staticmethod
    def of(model: Any, graph: Any, root: Any, depth: int) -> OnnxIrRegion:
        """What `root`, a node of `graph` (or of a function), computes out of nodes at most `depth`
        steps up. Raises InputError where that is no program.
        """
        nodes = _gathered(root, depth)
        writer = _Writer(set(nodes))
        for node in nodes:
            writer.write(node)
        program = load(writer.model(model, graph, root))
        by_name = {v.name: v for v in program.main.vars()}
        values = {by_name[name]: value for value, name in writer.names.items() if name in by_name}
        found = {v.definition: value.producer() for v, value in values.items()}
        bindings = {b: node for b, node in found.items() if b is not None and node in nodes}
        at = next(b for b, node in bindings.items() if node is root)
        return OnnxIrRegion(program, at, bindings, values)


def is_plain(node: Any) -> bool:
    """Whether it has neither graphs nor references to a function's attributes."""
    import onnx_ir

    graphs = (onnx_ir.AttributeType.GRAPH, onnx_ir.AttributeType.GRAPHS)
    return not any(a.is_ref() or a.type in graphs for a in node.attributes.values())


def _gathered(root: Any, depth: int) -> dict[Any, None]:
    """The nodes of a region; constants are one step further."""
    found, level = {root: None}, [root]
    for step in range(depth):
        above = dict.fromkeys(v.producer() for n in level for v in n.inputs if v is not None)
        level = [
            n
            for n in above
            if n is not None
            and n not in found
            and n.graph is root.graph
            and is_plain(n)
            and (step < depth - 1 or n.op_type == "Constant")
        ]
        found.update(dict.fromkeys(level))
    return found


class _Writer:
    """The protobuf of a region. Values are called by their number: onnx_ir's need no name."""

    def __init__(self, nodes: set[Any]) -> None:
        self.nodes = nodes
        self.names: dict[Any, str] = {}
        self.graph = GraphProto(name="region")

    def write(self, node: Any) -> None:
        """One node, with what it reads from outside."""
        import onnx_ir

        said = NodeProto(op_type=node.op_type, domain=node.domain, overload=node.overload)
        said.input.extend("" if v is None else self._name(v) for v in node.inputs)
        said.output.extend("" if v.name == "" else self._name(v) for v in node.outputs)
        for attribute in node.attributes.values():
            written: AttributeProto = onnx_ir.serde.serialize_attribute(attribute)
            said.attribute.append(written)
        self.graph.node.append(said)

    def model(self, model: Any, graph: Any, root: Any) -> ModelProto:
        """All of it, with its outputs."""
        for value in dict.fromkeys([*root.outputs, *self.names]):
            if value in self.names and self._is_read_outside(value):
                self.graph.output.add(name=self.names[value], type=_type(value))
        imports = dict(graph.opset_imports or model.opset_imports)
        said = ModelProto(ir_version=model.ir_version or 10, graph=self.graph)
        for domain, version in {**imports, OUTSIDE: 1}.items():
            said.opset_import.add(domain=domain, version=version)
        return said

    def _name(self, value: Any) -> str:
        known = self.names.get(value)
        if known is not None:
            return known
        name = self.names[value] = f"v{len(self.names)}"
        said = _type(value)
        if value.producer() in self.nodes:
            if said is not None:
                self.graph.value_info.add(name=name, type=said)
        elif value.const_value is not None and not value.is_graph_input():
            self._constant(value, name)
        elif said is not None:
            self.graph.input.add(name=name, type=said)
        else:
            self.graph.node.add(op_type="Value", domain=OUTSIDE, output=[name])
        return name

    def _constant(self, value: Any, name: str) -> None:
        import onnx_ir

        tensor = onnx_ir.serde.serialize_tensor(value.const_value)
        tensor.name = name
        self.graph.initializer.append(tensor)

    def _is_read_outside(self, value: Any) -> bool:
        return value.is_graph_output() or any(u.node not in self.nodes for u in value.uses())


def _type(value: Any) -> TypeProto | None:
    """The type of a value as a protobuf, None where its dtype is unknown."""
    import onnx_ir

    if value.type is None:
        return None
    said: TypeProto = onnx_ir.serde.serialize_value(value, name="value").type
    return said
