"""Programs as onnx_ir models: a view of a program, node by node, and a region of an onnx_ir graph
as a program.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from onnx import GraphProto, ModelProto, NodeProto, TypeProto

from onnxgrad.errors import InputError
from onnxgrad.frozen import frozen
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.load import load
from onnxgrad.ir.program import Program
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.types import type_to_proto
from onnxgrad.ir.var import Var
from onnxgrad.wording import one_line


@dataclass
class OnnxIrView:
    """An onnx_ir.Model with the binding of each node and the Var of each value.

    Values of the model have the types that the program knows. An initializer that a caller may
    override has no constant value. `blocks` maps graphs and functions to their blocks.
    """

    model: Any
    bindings: dict[Any, Binding] = field(default_factory=dict)
    values: dict[Any, Var] = field(default_factory=dict)
    blocks: dict[Any, BindingBlock] = field(default_factory=dict)

    @staticmethod
    def of(program: Program) -> OnnxIrView:
        """Returns the view of a program as it is now. Raises InputError if onnx_ir is missing or
        cannot hold the program, for example because a value is a map.
        """
        view = OnnxIrView(_model(program))
        view._pair(view.model.graph, program.main)
        for function in view.model.functions.values():
            view._pair(function, program.functions[function.identifier()])
        return view

    def _pair(self, graph: Any, block: BindingBlock) -> None:
        """Pairs nodes with bindings by the names of results, which are unique in a graph. Positions
        may differ: the block is sorted, while the file may list a reader first.
        """
        self.blocks[graph] = block
        known = {v.name: v for v in block.vars()}
        for value in (*graph.inputs, *getattr(graph, "initializers", {}).values()):
            self._pair_value(value, known.get(value.name))
        for node in graph:
            binding = next((known[v.name].definition for v in node.outputs if v.name), None)
            if binding is not None:
                self.bindings[node] = binding
                operands = zip(node.inputs, binding.inputs)
                for value, var in (*operands, *zip(node.outputs, binding.outputs)):
                    self._pair_value(value, var)
                for inner, nested in _nested(node, binding):
                    self._pair(inner, nested)

    def _pair_value(self, value: Any, var: Var | None) -> None:
        if value is None or var is None or value in self.values:
            return
        self.values[value] = var
        describe(value, var)
        if var.overridable or var.variable:
            value.const_value = None

    def replace(self, at: Any, new_nodes: Iterable[Any], mapping: dict[Any, Any]) -> None:
        """Repeats a rewrite of the program in the view. Inserts `new_nodes` after the node `at`,
        makes readers of each key of `mapping` read its value, and removes nodes whose binding was
        removed.
        """
        import onnx_ir

        graph = at.graph
        graph.insert_after(at, list(new_nodes))
        for i, output in enumerate(graph.outputs):
            graph.outputs[i] = mapping.get(output, output)
        onnx_ir.convenience.replace_all_uses_with(list(mapping), list(mapping.values()))
        gone = [value.producer() for value in mapping]
        while gone:
            node = gone.pop()
            binding = self.bindings.get(node)
            if binding is None or binding.is_live or node.graph is None:
                continue
            gone += [v.producer() for v in node.inputs if v is not None]
            detach(node)
            node.graph.remove(node)

    def nodes(self, graph: Any) -> Iterator[tuple[Any, Binding]]:
        """Yields the nodes of a graph that have a live binding, with the binding. Nodes inserted
        after the current one come next.
        """
        for node in graph:
            binding = self.bindings.get(node)
            if binding is not None and binding.is_live:
                yield node, binding


def describe(value: Any, var: Var) -> None:
    """Sets the type of an onnx_ir value to that of a Var, as far as it is known."""
    import onnx_ir

    if var.type is None:
        return
    proto = type_to_proto(var.type)
    value.type = onnx_ir.serde.deserialize_type_proto_for_type(proto)
    value.shape = onnx_ir.serde.deserialize_type_proto_for_shape(proto)


def detach(node: Any) -> None:
    """Removes a node's operands, so that no value lists the node as a reader."""
    for i in range(len(node.inputs)):
        node.replace_input_with(i, None)


def _model(program: Program) -> Any:
    try:
        import onnx_ir
    except ImportError:
        raise InputError("onnx_ir is not installed: pip install onnx-ir") from None

    proto = to_proto(program)
    try:
        model = onnx_ir.from_proto(proto)
    # it raises ValueError, NotImplementedError and others for fields that it does not support
    except Exception as e:
        reason = one_line(e, 200)
        raise InputError(f"onnx_ir cannot read this model: {type(e).__name__}: {reason}") from e
    if program.folder is not None:
        onnx_ir.external_data.set_base_dir(model.graph, program.folder)
    return model


def _nested(node: Any, binding: Binding) -> Iterator[tuple[Any, BindingBlock]]:
    for name, nested in binding.blocks.items():
        base, _, index = name.partition("[")
        attribute = node.attributes[base]
        yield attribute.as_graphs()[int(index[:-1])] if index else attribute.as_graph(), nested


# the domain of nodes that stand for values of unknown type, since an input needs a type
OUTSIDE = "onnxgrad.outside"


@frozen
class OnnxIrRegion:
    """A program that computes one node of onnx_ir, and the binding `root` of that node. `nodes` and
    `values` map bindings and values to those of onnx_ir. The results of `root` that are read are
    the first outputs.
    """

    program: Program
    root: Binding
    nodes: Mapping[Binding, Any]
    values: Mapping[Var, Any]

    @staticmethod
    def of(model: Any, graph: Any, root: Any, depth: int) -> OnnxIrRegion:
        """Returns the region that computes `root`, a node of `graph` (or of a function), from nodes
        at most `depth` steps up. Raises InputError if the region is not a valid program.
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
    """Whether a node has neither graphs nor references to a function's attributes."""
    import onnx_ir

    graphs = (onnx_ir.AttributeType.GRAPH, onnx_ir.AttributeType.GRAPHS)
    return not any(a.is_ref() or a.type in graphs for a in node.attributes.values())


def _gathered(root: Any, depth: int) -> dict[Any, None]:
    """Returns the nodes of a region. Constants may be one step further up."""
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
    """Writes the protobuf of a region. Values are named by number, because values of onnx_ir need
    no name.
    """

    def __init__(self, nodes: set[Any]) -> None:
        self.nodes = nodes
        self.names: dict[Any, str] = {}
        self.graph = GraphProto(name="region")

    def write(self, node: Any) -> None:
        """Writes one node, and declares its operands that come from outside the region."""
        import onnx_ir

        proto = NodeProto(op_type=node.op_type, domain=node.domain, overload=node.overload)
        proto.input.extend("" if v is None else self._name(v) for v in node.inputs)
        proto.output.extend("" if v.name == "" else self._name(v) for v in node.outputs)
        proto.attribute.extend(map(onnx_ir.serde.serialize_attribute, node.attributes.values()))
        self.graph.node.append(proto)

    def model(self, model: Any, graph: Any, root: Any) -> ModelProto:
        """Returns the model. Its outputs are the values that are read outside of the region."""
        for value in dict.fromkeys([*root.outputs, *self.names]):
            is_read = value.is_graph_output() or any(u.node not in self.nodes for u in value.uses())
            if value in self.names and is_read:
                self.graph.output.add(name=self.names[value], type=_type(value))
        imports = dict(graph.opset_imports or model.opset_imports)
        proto = ModelProto(ir_version=model.ir_version or 10, graph=self.graph)
        for domain, version in {**imports, OUTSIDE: 1}.items():
            proto.opset_import.add(domain=domain, version=version)
        return proto

    def _name(self, value: Any) -> str:
        import onnx_ir

        if value in self.names:
            return self.names[value]
        name = self.names[value] = f"v{len(self.names)}"
        type_ = _type(value)
        if value.producer() in self.nodes:
            if type_ is not None:
                self.graph.value_info.add(name=name, type=type_)
        elif value.const_value is not None and not value.is_graph_input():
            self.graph.initializer.append(onnx_ir.serde.serialize_tensor(value.const_value))
            self.graph.initializer[-1].name = name
        elif type_ is not None:
            self.graph.input.add(name=name, type=type_)
        else:
            self.graph.node.add(op_type="Value", domain=OUTSIDE, output=[name])
        return name


def _type(value: Any) -> TypeProto | None:
    """The type of a value as a protobuf, None if its dtype is unknown."""
    import onnx_ir

    if value.type is None:
        return None
    return onnx_ir.serde.serialize_value(value, name="value").type
