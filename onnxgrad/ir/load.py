"""Reading: a path, bytes, ModelProto or an object of another library (`ir.interop`) becomes a Program."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from google.protobuf.message import DecodeError
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto

from onnxgrad.errors import InputError, InternalError
from onnxgrad.ir import attributes, domains
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.collector import collector_paused
from onnxgrad.ir.fault import blaming
from onnxgrad.ir.interop.given import settled
from onnxgrad.ir.preflight.axes import check_axes
from onnxgrad.ir.preflight.model import check_model
from onnxgrad.ir.program import Program
from onnxgrad.ir.save import to_proto
from onnxgrad.ir.type_inference.at_load import annotate
from onnxgrad.ir.types import TensorType, type_from_proto, without_symbols
from onnxgrad.ir.var import Var

# everything the public functions accept; the objects of other libraries have no static type here
ModelLike: TypeAlias = str | os.PathLike[str] | bytes | ModelProto | Any

# what protobuf cannot hold any more
MOST_BYTES = 1 << 31
_GRAPH_KINDS = (AttributeProto.GRAPH, AttributeProto.GRAPHS)


def load(model: ModelLike) -> Program:
    """The Program of a model. The argument is never changed; a Program, or the main block of one, is its own answer.

    Raises InputError when the file is missing, empty or no ONNX model, when an operator or opset is unknown, a
    name is undefined or defined twice.
    """
    model = settled(model)
    if isinstance(model, Program):
        return model
    proto, path = _parsed(model)
    return _program(proto, None if path is None else path.parent, path)


def load_own(model: ModelLike) -> Program:
    """The Program of a model, to be changed: a copy of a Program that someone else holds. Errors as `load`."""
    program = load(model)
    if not isinstance(model, (Program, BindingBlock)):
        return program
    proto = to_proto(program)
    # what is as it was read is still the file's, which a proof may then run
    return _program(proto, program.folder, program.path if proto == program.proto else None)


def proto_of(model: ModelLike) -> tuple[ModelProto, Path | None]:
    """The protobuf of a model without its external data, and the folder where that lies; what its operators are is not
    asked. InputError for what is no model, or damaged.
    """
    model = settled(model)
    if isinstance(model, Program):
        return to_proto(model), model.folder
    proto, path = _parsed(model)
    check_model(proto, "model" if path is None else str(path))
    return proto, None if path is None else path.parent


def _parsed(model: str | os.PathLike[str] | bytes | ModelProto) -> tuple[ModelProto, Path | None]:
    """The model and, of a file, its path."""
    if isinstance(model, ModelProto):
        return model, None
    if isinstance(model, bytes):
        return _parse(model, "the given bytes"), None
    path = Path(model)
    return read_proto(path), path


def read_proto(path: Path) -> ModelProto:
    """Parse a model file without its external data. Raises InputError."""
    try:
        found = path.stat()
        if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
            raise InputError(f"{path}: is a device or a pipe, which is not read twice: pipe it into stdin and give -")
        _check_size(found.st_size, str(path))
        data = path.read_bytes()
    except OSError as e:
        raise InputError(f"{path}: {e.strerror or e}") from e
    return _parse(data, str(path))


def _check_size(size: int, where: str) -> None:
    if size >= MOST_BYTES:
        raise InputError(
            f"{where}: over 2 GB in one file, which protobuf cannot hold: store its weights as external data"
        )


def _parse(data: bytes, where: str) -> ModelProto:
    if not data:
        raise InputError(f"{where}: empty, not an ONNX model")
    _check_size(len(data), where)
    try:
        model = ModelProto()
        model.ParseFromString(data)
        return model
    except DecodeError as e:
        raise InputError(f"{where}: not an ONNX model, or a truncated one (protobuf: {e})") from e


def _program(proto: ModelProto, folder: Path | None, path: Path | None = None) -> Program:
    where = str(path) if path is not None else "model"
    check_model(proto, where)
    with collector_paused(), blaming(proto):
        return _read(proto, folder, path, where)


def _read(proto: ModelProto, folder: Path | None, path: Path | None, where: str) -> Program:
    program = Program(proto, folder, path)
    reader = _Reader(where, {(f.domain, f.name) for f in proto.functions})
    reader.graph(program.main, proto.graph, {})
    for f in proto.functions:
        program.functions[f.domain, f.name, f.overload] = reader.function(program, f)
    _pin(program)
    # protobuf hands out bytes where a string is no UTF-8
    damaged = next((name for name in program.names if not isinstance(name, str)), None)
    if damaged is not None:
        raise InputError(f"{where}: the name {damaged!r} is not UTF-8 text")
    reader.put_in_order()
    annotate(program)
    check_axes(program, where)
    return program


def function_block(program: Program, proto: FunctionProto) -> BindingBlock:
    """The block of a function body that is none of the model's (a schema's): to copy bindings from, not to save."""
    local = {(f.domain, f.name) for f in program.proto.functions}
    return _Reader(f"the body of {proto.name}", local).function(program, proto)


class _Reader:
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
            if block.is_function:  # what a function's graph calls a size is another size at each call
                var.type = without_symbols(type_from_proto(value.type))
            else:
                var._proto = value.type
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
        """The block of a function body; its values have the types that the file declares, mostly none."""
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
        """Sort the blocks whose file lists a reader before what it reads. Raises InputError for a cycle."""
        for block in self.unordered:
            try:
                block.schedule()
            except InternalError as e:
                raise InputError(f"{self.where}: graph '{block.name}': {e}") from e

    def _bindings(
        self, block: BindingBlock, nodes: Iterable[NodeProto], scope: dict[str, Var], outer: Mapping[str, Var]
    ) -> None:
        # results first, operands second: a file may list its nodes in any order
        self._define_results(block, nodes, scope)
        visible = {**outer, **scope} if outer else scope
        checked: set[tuple[str, str]] = set()
        for binding in block.bindings:
            operator = (binding.node.domain, binding.op)
            if operator not in checked:
                self._check_operator(binding)
                checked.add(operator)
            self._read_operands(binding, visible)
            for attribute in binding.node.attribute:
                if attribute.type in _GRAPH_KINDS and not attribute.ref_attr_name:
                    self._nested(binding, attribute, visible)
            self.read.add(binding)

    def _define_results(self, block: BindingBlock, nodes: Iterable[NodeProto], scope: dict[str, Var]) -> None:
        """A binding per node, with its results and yet without operands."""
        names = block.program.names
        for node in nodes:
            outputs: list[Var | None] = []
            binding = Binding(node, block, [], outputs)
            # node names must be unique for onnxruntime, so they are taken as well
            names.add(node.name)
            for name in node.output:
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
        for name in binding.node.input:
            if not name:
                inputs.append(None)
                continue
            operand = visible.get(name)
            if operand is None:
                node = binding.node
                raise InputError(f"{self.where}: operand '{name}' of {binding.op} '{node.name}' is defined nowhere")
            inputs.append(operand)
            operand.users[binding] = operand.users.get(binding, 0) + 1
            if operand.definition is not None and operand.definition not in read:
                self.unordered[operand.block] = None

    def _nested(self, binding: Binding, attribute: AttributeProto, visible: Mapping[str, Var]) -> None:
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
                f"{self.where}: {binding.op} '{binding.node.name}' needs the default opset, which is not imported"
            )
        if not isinstance(binding.op, str) or (
            attributes.schema(binding.op, binding.version, "") is None
            and not attributes.is_of_onnxruntime(binding.op, binding.version)
        ):
            raise InputError(
                f"{self.where}: unknown operator {binding.op} at opset {binding.version} (node '{binding.node.name}')"
            )

    def _define(self, scope: dict[str, Var], var: Var) -> Var:
        if scope.setdefault(var.name, var) is not var:
            raise self._defined_twice(var)
        return var

    def _defined_twice(self, var: Var) -> InputError:
        return InputError(f"{self.where}: '{var.name}' is defined twice in graph '{var.block.name}'")

    def _return(
        self, block: BindingBlock, name: str, scope: Mapping[str, Var], outer: Mapping[str, Var], what: str
    ) -> None:
        var = scope.get(name) or outer.get(name)
        if var is None:
            raise InputError(f"{self.where}: '{name}', {what}, is defined nowhere")
        block.outputs.append(var)
        var.returned += 1
        if var.definition is not None and var.definition not in self.read:
            self.unordered[var.block] = None


def _pin(program: Program) -> None:
    """Values that training_info or quantization annotations name must live on under their names."""
    names: dict[str, None] = {}
    for info in program.proto.training_info:
        for graph in (info.initialization, info.algorithm):
            program.names.update(name for n in graph.node for name in (n.name, *n.output))
        for entry in (*info.initialization_binding, *info.update_binding):
            names[entry.key] = names[entry.value] = None
        for graph in (info.initialization, info.algorithm):
            names.update(dict.fromkeys(name for n in graph.node for name in n.input))
            names.update(dict.fromkeys(value.name for value in graph.output))
    for note in program.proto.graph.quantization_annotation:
        names[note.tensor_name] = None
        names.update(dict.fromkeys(p.value for p in note.quant_parameter_tensor_names))
    if not names:
        return
    for var in program.main.vars():
        if var.name in names:
            var.returned += 1
            program.main.pinned.append(var)
