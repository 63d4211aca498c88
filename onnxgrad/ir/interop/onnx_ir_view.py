"""A program as an onnx_ir model beside it, node by node and value by value: what tools for that
library read, while the program itself is what is rewritten.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from onnxgrad.errors import InputError
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.program import Program
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.types import type_to_proto
from onnxgrad.ir.var import Var


@dataclass
class OnnxIrView:
    """An onnx_ir.Model with the binding of each node and the Var of each value.

    Its values have the types that the program knows; an initializer that a caller may override has
    no constant value there. `blocks` are the graphs and functions with their blocks.
    """

    model: Any
    bindings: dict[Any, Binding] = field(default_factory=dict)
    values: dict[Any, Var] = field(default_factory=dict)
    blocks: dict[Any, BindingBlock] = field(default_factory=dict)

    @staticmethod
    def of(program: Program) -> OnnxIrView:
        """The view of a program as it is now. Raises InputError where onnx_ir is missing or
        cannot hold it (values that are maps, say).
        """
        view = OnnxIrView(_model(program))
        view._pair(view.model.graph, program.main)
        for function in view.model.functions.values():
            view._pair(function, program.functions[function.identifier()])
        return view

    def _pair(self, graph: Any, block: BindingBlock) -> None:
        """By the names of results, which are unique in a graph: the file may list a reader first,
        where the block is in order.
        """
        self.blocks[graph] = block
        known = {v.name: v for v in block.vars()}
        for value in (*graph.inputs, *getattr(graph, "initializers", {}).values()):
            self._pair_value(value, known.get(value.name))
        for node in graph:
            binding = next((known[v.name].definition for v in node.outputs if v.name), None)
            if binding is not None:
                self.bindings[node] = binding
                for value, var in zip(node.inputs, binding.inputs):
                    self._pair_value(value, var)
                for value, var in zip(node.outputs, binding.outputs):
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
        """What was done to the program: behind the node `at` stand `new_nodes`, and each value of
        `mapping` is read where its key was. Nodes whose bindings are gone go.
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
        """The nodes of a graph that have a live binding; what is put behind one while it is looked
        at comes next.
        """
        for node in graph:
            binding = self.bindings.get(node)
            if binding is not None and binding.is_live:
                yield node, binding


def describe(value: Any, var: Var) -> None:
    """Give a value of onnx_ir the type of a Var, as far as it is known."""
    import onnx_ir

    if var.type is None:
        return
    said = type_to_proto(var.type)
    value.type = onnx_ir.serde.deserialize_type_proto_for_type(said)
    value.shape = onnx_ir.serde.deserialize_type_proto_for_shape(said)


def detach(node: Any) -> None:
    """Let a node read nothing, so that no value counts it among its readers."""
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
    # it raises ValueError, NotImplementedError and others for what it does not hold
    except Exception as e:
        reason = " ".join(str(e).split())[:200]
        raise InputError(f"onnx_ir cannot read this model: {type(e).__name__}: {reason}") from e
    if program.folder is not None:
        onnx_ir.external_data.set_base_dir(model.graph, program.folder)
    return model


def _nested(node: Any, binding: Binding) -> Iterator[tuple[Any, BindingBlock]]:
    for name, nested in binding.blocks.items():
        base, _, index = name.partition("[")
        attribute = node.attributes[base]
        yield attribute.as_graphs()[int(index[:-1])] if index else attribute.as_graph(), nested
