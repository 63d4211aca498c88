"""Reads the protobufs of graphs and functions into blocks: names become values, each defined
once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from onnx import AttributeProto, FunctionProto, GraphProto, TensorProto

from onnxgrad.errors import InputError
from onnxgrad.ir import attributes, domains
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.program import Program
from onnxgrad.ir.types import TensorType, Type, type_from_proto, without_symbols
from onnxgrad.ir.var import Var


class Reader:
    """Builds blocks. `local` holds the model's own functions, whose calls have no schema."""

    def __init__(self, where: str, local: set[tuple[str, str]]) -> None:
        self.where = where
        self.local = local
        self.read: set[Binding] = set()
        self.unordered: dict[BindingBlock, None] = {}

    def graph(self, block: BindingBlock, proto: GraphProto, outer: Mapping[str, Var]) -> None:
        scope: dict[str, Var] = {}
        for value in proto.input:
            type_ = type_from_proto(value.type)
            # a named size in a function's graph may differ from call to call
            self._input(
                scope, value.name, block, without_symbols(type_) if block.is_function else type_
            )
        for tensor in proto.initializer:
            var = self._constant(scope, tensor, tensor.dims, block)
            var.initializer = tensor
            block.initializers[tensor.name] = var
        for sparse in proto.sparse_initializer:
            block.sparse.append(self._constant(scope, sparse.values, sparse.dims, block))
        self._body(block, scope, outer, [v.name for v in proto.output])

    def function(self, program: Program, proto: FunctionProto) -> BindingBlock:
        """Returns the block of a function body; its values have the types that the file declares,
        mostly none.
        """
        block = BindingBlock(program, proto, domains.versions(proto.opset_import))
        scope: dict[str, Var] = {}
        for name in proto.input:
            self._input(scope, name, block, None)
        self._body(block, scope, {}, proto.output)
        return block

    def _input(
        self, scope: dict[str, Var], name: str, block: BindingBlock, type_: Type | None
    ) -> None:
        var = self._define(scope, Var(name, block, type_))
        var.is_input = True
        block.inputs.append(var)

    def _constant(
        self, scope: dict[str, Var], tensor: TensorProto, dims: Iterable[int], block: BindingBlock
    ) -> Var:
        """Returns the value of an initializer: the input of that name if there is one."""
        known = scope.get(tensor.name)
        if known is not None and known.is_input and known.initializer is None:
            return known
        type_ = TensorType(tensor.data_type, tuple(dims))
        return self._define(scope, Var(tensor.name, block, type_))

    def _body(
        self,
        block: BindingBlock,
        scope: dict[str, Var],
        outer: Mapping[str, Var],
        outputs: Iterable[str],
    ) -> None:
        """Reads the nodes and the outputs of a graph or a function."""
        # results first, operands second: a file may list its nodes in any order. Short protobuf
        # containers are sliced, here and elsewhere: the end of a container costs an exception, the
        # end of a list does not
        self._define_results(block, scope)
        visible = {**outer, **scope} if outer else scope
        checked: set[tuple[str, str]] = set()
        for binding in block.bindings:
            operator = (binding.node.domain, binding.op)
            if operator not in checked:
                self._check_operator(binding)
                checked.add(operator)
            self._read_operands(binding, visible)
            for attribute in binding.node.attribute[:]:
                if attribute.type in attributes.GRAPH_KINDS and not attribute.ref_attr_name:
                    self._nested(binding, attribute, visible)
            self.read.add(binding)
        for name in outputs:
            self._return(block, name, visible)
        block.program.names.update(scope)
        # a stale declaration must not be taken for that of a new value
        block.program.names.update([v.name for v in block.proto.value_info])

    def _define_results(self, block: BindingBlock, scope: dict[str, Var]) -> None:
        """Appends a binding for each node, with its results and without operands."""
        names = block.program.names
        for node in block.proto.node:
            outputs: list[Var | None] = []
            binding = Binding(node, block, [], outputs)
            # node names must be unique for onnxruntime, so they are taken as well
            names.add(node.name)
            for name in node.output[:]:
                if not name:
                    outputs.append(None)
                    continue
                var = self._define(scope, Var(name, block))
                var.definition = binding
                outputs.append(var)
            block.bindings[binding] = None

    def _read_operands(self, binding: Binding, visible: Mapping[str, Var]) -> None:
        """Looks up the operands. Records blocks that list a reader before its operand."""
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
            raise InputError(
                f"{self.where}: '{var.name}' is defined twice in graph '{var.block.name}'"
            )
        return var

    def _return(self, block: BindingBlock, name: str, visible: Mapping[str, Var]) -> None:
        var = visible.get(name)
        if var is None:
            kind = "graph" if isinstance(block.proto, GraphProto) else "function"
            raise InputError(
                f"{self.where}: '{name}', output of {kind} '{block.name}', is defined nowhere"
            )
        block.outputs.append(var)
        var.returned += 1
        if var.definition is not None and var.definition not in self.read:
            self.unordered[var.block] = None
