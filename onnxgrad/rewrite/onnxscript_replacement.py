"""What a rule of onnxscript puts in the place of its match, as bindings of the program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onnx import AttributeProto

from onnxgrad.errors import InternalError
from onnxgrad.ir import attributes, domains
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.bodies import import_opset
from onnxgrad.ir.emission.append import append
from onnxgrad.ir.emission.constant import constant
from onnxgrad.ir.emission.emitter import emitter
from onnxgrad.ir.interop.onnx_ir_view import OnnxIrView, describe, detach
from onnxgrad.ir.types import FLOAT_DTYPES
from onnxgrad.ir.var import Var
from onnxgrad.rewrite.attempt import closes_cycle, fits
from onnxgrad.rewrite.trace import decline


class OnnxscriptReplacement:
    """A rule's answer (`delta`, onnxscript's ReplacementSubgraph) for a match in `block`."""

    def __init__(self, delta: Any, view: OnnxIrView, block: BindingBlock) -> None:
        self.delta = delta
        self.view = view
        self.block = block
        # the bindings of the match, operands first
        self.sources = [view.bindings[n] for n in reversed(delta.match.nodes) if n in view.bindings]
        self._values: dict[Any, Var] = {}
        self._bindings: dict[Any, Binding] = {}
        self._constants: list[Var] = []

    def build(self) -> Mapping[Var, Var]:
        """Emit the new nodes; what stands for each value of the match. A Decline is raised where
        they cannot be bindings of this block.
        """
        import onnxscript.optimizer

        onnxscript.optimizer.basic_constant_propagation(self.delta.new_nodes)
        for value in self.delta.new_initializers:
            self._fix(value)
        for node in self.delta.new_nodes:
            if node.op_type == "Constant" and node.outputs[0].const_value is not None:
                self._fix(node.outputs[0])
            else:
                self._emit(node)
        pairs = zip(self.delta.match.outputs, self.delta.new_outputs, strict=True)
        return {self._var(old): self._var(new) for old, new in pairs}

    def checked(self, answer: Mapping[Var, Var]) -> Mapping[Var, Var]:
        """The values that are read, with what replaces them. A Decline is raised for another type,
        another block, or a cycle.
        """
        found = {old: new for old, new in answer.items() if new is not old and old.use_count}
        for old, new in found.items():
            if old.block is not self.block:
                raise decline(f"its match reaches into another graph, at {old.name}")
            if old.type is not None and new.type is not None and not fits(old.type, new.type):
                raise decline(f"it replaces {old.name}: {old.type} by a value of type {new.type}")
        if closes_cycle(found):
            raise decline("its replacement reads what it replaces")
        return found

    def settle(self, node: Any) -> bool:
        """The replacement is made: import its domains, and bring the view up to date, where `node`
        is the one that the rule was tried at. Whether it brought floating-point constants.
        """
        for domain, version in sorted(self.delta.used_opsets, key=str):
            import_opset(self.block, domains.canonical(domain), version or 1)
        for value, var in self._values.items():
            self.view.values[value] = var
            value.name = var.name
            describe(value, var)
        self.view.bindings.update(self._bindings)
        kept = []
        for made in self.delta.new_nodes:
            if made in self._bindings and not self._bindings[made].is_live:
                detach(made)
            else:
                kept.append(made)
        pairs = zip(self.delta.match.outputs, self.delta.new_outputs, strict=True)
        self.view.replace(node, kept, {old: new for old, new in pairs if old is not new})
        return any(v.use_count and v.dtype in FLOAT_DTYPES for v in self._constants)

    def _fix(self, value: Any) -> None:
        import onnx_ir

        tensor = onnx_ir.serde.serialize_tensor(value.const_value)
        var = constant(self.block.program.array(tensor), name=value.name or "const")
        self._values[value] = var
        self._constants.append(var)

    def _emit(self, node: Any) -> None:
        domain, op_type = domains.canonical(node.domain), node.op_type
        version = self.block.opsets.get(domain, 0)
        schema = attributes.schema(op_type, version, domain)
        if schema is None and not domain and not attributes.is_of_onnxruntime(op_type, version):
            raise decline(f"it builds {op_type}, which opset {version} does not have")
        inputs = [None if v is None else self._var(v) for v in node.inputs]
        given = [(name, _attribute(op_type, a)) for name, a in node.attributes.items()]
        present = [v.name != "" for v in node.outputs]
        try:
            binding = append(emitter(), op_type, domain, schema, inputs, given, present)
        # of its types, or an attribute that no schema describes and that is empty
        except (InternalError, TypeError, ValueError) as error:
            raise decline(f"it builds {op_type} wrongly: {error}") from error
        self._bindings[node] = binding
        for value, var in zip(node.outputs, binding.outputs, strict=True):
            if var is not None:
                self._values[value] = var

    def _var(self, value: Any) -> Var:
        found = self._values.get(value) or self.view.values.get(value)
        if found is None:
            name = getattr(value, "name", value)
            raise decline(f"it reads a value that the graph does not have: {name}")
        return found


def _attribute(op_type: str, attribute: Any) -> Any:
    """An attribute of a new node as emission takes it. A Decline is raised for a graph."""
    import onnx_ir

    if attribute.is_ref():
        return attributes.RefAttr(attribute.ref_attr_name)
    said = onnx_ir.serde.serialize_attribute(attribute)
    if said.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS):
        raise decline(f"it builds {op_type} with a nested graph")
    return attributes.read(said)
