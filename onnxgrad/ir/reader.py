"""Blocks from the protobufs of graphs and functions: names become values, each defined once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto

from onnxgrad.errors import InputError, InternalError
from onnxgrad.ir import attributes, domains
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.program import Program
from onnxgrad.ir.types import TensorType, type_from_proto, without_symbols
from onnxgrad.ir.var import Var

_GRAPH_KINDS = (AttributeProto.GRAPH, AttributeProto.GRAPHS)


class Reader:
    """Builds blocks; knows the model's own functions, whose calls have no schema."""

    def __init__(self, where: str, local: set[tuple[str, str]]) -> None:
        self.where = where
        self.local = local
        self.read: set[Binding] = set()
        self.unordered: dict[BindingBlock, None] = {}

    def graph(self, block: BindingBlock, proto: GraphProto, outer: Mapping[str, Var]) -> None:
        scope: dict[str, Var] = {}
        for value in proto.input:
            var = self._define(scope, Var(value.name, block))
            var.type = type_from_proto(value.type)
            # what a function's graph calls a size is another size at each call
            if block.is_function:
                var.type = without_symbols(var.type)
            var.is_input = True
            block.inputs.append(var)
        for tensor in proto.initializer:
            found = scope.get(tensor.name)
            if found is None or not found.is_input or found.initializer is not None:
                found = self._define(scope, Var(tensor.name, block))
                found.type = TensorType(tensor.data_type, tuple(tensor.dims))
            found.initializer = tensor
            block.initializers[tensor.name] = found
        for sparse in proto.sparse_initializer:
            found = scope.get(sparse.values.name)
            if found is None or not found.is_input or found.initializer is not None:
                found = self._define(scope, Var(sparse.values.name, block))
                found.type = TensorType(sparse.values.data_type, tuple(sparse.dims))
            block.sparse.append(found)
        self._bindings(block, proto.node, scope, outer)
        for value in proto.output:
            self._return(block, value.name, scope, outer, f"output of graph '{proto.name}'")
        names = block.program.names
        names.update(scope)
        # a stale declaration must not be taken for that of a new value
        names.update([v.name for v in proto.value_info])

    def function(self, program: Program, proto: FunctionProto) -> BindingBlock:
        """The block of a function body; its values have the types that the file declares, mostly
        none.
        """
        block = BindingBlock(program, proto, domains.versions(proto.opset_import))
        scope: dict[str, Var] = {}
        for name in proto.input:
            var = self._define(scope, Var(name, block))
            var.is_input = True
            block.inputs.append(var)
        self._bindings(block, proto.node, scope, {})
        for name in proto.output:
            self._return(block, name, scope, {}, f"output of function '{proto.name}'")
        program.names.update(scope)
        program.names.update([v.name for v in proto.value_info])
        return block

    def put_in_order(self) -> None:
        """Sort the blocks whose file lists a reader before what it reads. Raises InputError for
        a cycle.
        """
        for block in self.unordered:
            try:
                block.schedule()
            except InternalError as e:
                raise InputError(f"{self.where}: graph '{block.name}': {e}") from e

    def _bindings(
        self,
        block: BindingBlock,
        nodes: Iterable[NodeProto],
        scope: dict[str, Var],
        outer: Mapping[str, Var],
    ) -> None:
        # results first, operands second: a file may list its nodes in any order. Short containers
        # are sliced, here and elsewhere: the end of one costs an exception, a list's does not
        self._define_results(block, nodes, scope)
        visible = {**outer, **scope} if outer else scope
        checked: set[tuple[str, str]] = set()
        for binding in block.bindings:
            operator = (binding.node.domain, binding.op)
            if operator not in checked:
                self._check_operator(binding)
                checked.add(operator)
            self._read_operands(binding, visible)
            for attribute in binding.node.attribute[:]:
                if attribute.type in _GRAPH_KINDS and not attribute.ref_attr_name:
                    self._nested(binding, attribute, visible)
            self.read.add(binding)

    def _define_results(
        self, block: BindingBlock, nodes: Iterable[NodeProto], scope: dict[str, Var]
    ) -> None:
        """A binding per node, with its results and yet without operands."""
        names = block.program.names
        for node in nodes:
            outputs: list[Var | None] = []
            binding = Binding(node, block, [], outputs)
            # node names must be unique for onnxruntime, so they are taken as well
            names.add(node.name)
            for name in node.output[:]:
                if not name:
                    outputs.append(None)
                    continue
                var = Var(name, block)
                if scope.setdefault(name, var) is not var:
                    raise self._defined_twice(var)
                var.definition = binding
                outputs.append(var)
            block.bindings[binding] = None

    def _read_operands(self, binding: Binding, visible: Mapping[str, Var]) -> None:
        """The operands by their names; notes blocks that list a reader before what it reads."""
        inputs, read = binding.inputs, self.read
        for name in binding.node.input[:]:
            if not name:
                inputs.append(None)
                continue
            operand = visible.get(name)
            if operand is None:
                node = binding.node
                raise InputError(
                    f"{self.where}: operand '{name}' of {binding.op} '{node.name}' is "
                    "defined nowhere"
                )
            inputs.append(operand)
            operand.users[binding] = operand.users.get(binding, 0) + 1
            if operand.definition is not None and operand.definition not in read:
                self.unordered[operand.block] = None

    def _nested(
        self, binding: Binding, attribute: AttributeProto, visible: Mapping[str, Var]
    ) -> None:
        single = attribute.type != AttributeProto.GRAPHS
        for i, graph in enumerate([attribute.g] if single else attribute.graphs):
            block = BindingBlock(binding.block.program, graph, binding.block.opsets, binding)
            binding.blocks[attribute.name if single else f"{attribute.name}[{i}]"] = block
            self.graph(block, graph, visible)

    def _check_operator(self, binding: Binding) -> None:
        if binding.domain != "" or (self.local and (binding.node.domain, binding.op) in self.local):
            return
        if binding.version == 0:
            raise InputError(
                f"{self.where}: {binding.op} '{binding.node.name}' needs the default opset, which "
                "is not imported"
            )
        if not isinstance(binding.op, str) or (
            attributes.schema(binding.op, binding.version, "") is None
            and not attributes.is_of_onnxruntime(binding.op, binding.version)
        ):
            raise InputError(
                f"{self.where}: unknown operator {binding.op} at opset {binding.version} (node "
                f"'{binding.node.name}')"
            )

    def _define(self, scope: dict[str, Var], var: Var) -> Var:
        if scope.setdefault(var.name, var) is not var:
            raise self._defined_twice(var)
        return var

    def _defined_twice(self, var: Var) -> InputError:
        return InputError(
            f"{self.where}: '{var.name}' is defined twice in graph '{var.block.name}'"
        )

    def _return(
        self,
        block: BindingBlock,
        name: str,
        scope: Mapping[str, Var],
        outer: Mapping[str, Var],
        what: str,
    ) -> None:
        var = scope.get(name) or outer.get(name)
        if var is None:
            raise InputError(f"{self.where}: '{name}', {what}, is defined nowhere")
        block.outputs.append(var)
        var.returned += 1
        if var.definition is not None and var.definition not in self.read:
            self.unordered[var.block] = None
