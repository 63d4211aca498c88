"""Builds the protobuf of a program; unchanged parts are copied as they were read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, ValueInfoProto

from onnxgrad.errors import InputError, InternalError
from onnxgrad.ir import domains
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.preflight.invalid_models import blaming
from onnxgrad.ir.program import Program
from onnxgrad.ir.protobufs import copy_fields, described, keep, strip
from onnxgrad.ir.types import TensorType, type_to_proto
from onnxgrad.ir.var import Var, names_of


def is_changed(program: Program) -> bool:
    """Whether anything differs from the model that was read."""
    source = program.proto
    return (
        program.main.changed
        or program.ir_version != source.ir_version
        or program.opsets != domains.versions(source.opset_import)
        or list(program.functions) != [(f.domain, f.name, f.overload) for f in source.functions]
        or _is_described_anew(program)
        or any(block.changed for block in program.functions.values())
    )


def _is_described_anew(program: Program) -> bool:
    """Whether metadata or header differ from those of the model that was read."""
    source = program.proto
    return program.metadata != {e.key: e.value for e in source.metadata_props} or any(
        value != getattr(source, name) for name, value in program.header.items()
    )


def _write_description(program: Program, model: ModelProto) -> None:
    """Writes the changed fields of the header, and the metadata. Metadata entries keep their order;
    new ones come last.
    """
    for name, value in program.header.items():
        if value != getattr(model, name):
            model.ClearField(name)
            if value:
                setattr(model, name, value)
    keep(model.metadata_props, lambda entry: entry.key in program.metadata)
    for entry in model.metadata_props:
        entry.value = program.metadata[entry.key]
    known = {entry.key for entry in model.metadata_props}
    for key, text in program.metadata.items():
        if key not in known:
            model.metadata_props.add(key=key, value=text)


def _write_opsets(program: Program, model: ModelProto) -> None:
    added = dict(program.opsets)
    for entry in program.proto.opset_import:
        domain = domains.canonical(entry.domain)
        if domain in program.opsets:
            model.opset_import.add().CopyFrom(entry)
            model.opset_import[-1].version = program.opsets[domain]
            added.pop(domain, None)
    for domain, version in added.items():
        model.opset_import.add(domain=domain, version=version)


def outline(program: Program) -> ModelProto:
    """Like `to_proto`, but constants whose data is converted when it is read have none: the result
    can only be written by `save`. Raises InputError if `program` is not a Program.
    """
    if not isinstance(program, Program):
        raise InputError(
            f"to_proto takes a Program (see onnxgrad.load), not a {type(program).__name__}"
        )
    model = ModelProto()
    source = program.proto
    if not is_changed(program):
        model.CopyFrom(source)
    else:
        with blaming(source):
            copy_fields(source, model, skip=("graph", "functions", "opset_import", "ir_version"))
            model.ir_version = program.ir_version
            if _is_described_anew(program):
                _write_description(program, model)
            _write_opsets(program, model)
            _write_graph(program.main, model.graph)
            for block in program.functions.values():
                _write_function(block, model.functions.add())
    return model


def _write_graph(block: BindingBlock, graph: GraphProto) -> None:
    source = block.proto
    if not isinstance(source, GraphProto):
        raise InternalError(f"block '{block.name}' is a function's, not a graph's")
    if not block.changed:
        graph.CopyFrom(source)
        return
    copy_fields(source, graph, skip=("node", "initializer", "value_info", "input", "output"))
    block.schedule()
    for b in block.bindings:
        _write_binding(b, graph.node)
    declared = {v.name: info for v, info in block.declared.items() if info is not None}
    _write_declarations(block.inputs, source.input, declared, graph.input)
    _write_declarations(block.outputs, source.output, declared, graph.output)
    _type_results(block, graph)
    for name, v in block.initializers.items():
        if v.initializer is not None:
            tensor = graph.initializer.add()
            tensor.CopyFrom(v.initializer)  # `append` would serialise and parse it
            if tensor.name != name:  # renamed
                tensor.name = name
    for v, sparse in zip(block.sparse, graph.sparse_initializer, strict=True):
        if sparse.values.name != v.name:
            sparse.values.name = v.name
    _write_value_info(block, source, declared, graph)
    _strip(block, graph)


def node_of(b: Binding) -> NodeProto:
    """Returns the node of a binding, with its graphs as they are now."""
    graph = GraphProto()
    _write_binding(b, graph.node)
    node: NodeProto = graph.node[0]
    return node


def _strip(block: BindingBlock, body: GraphProto | FunctionProto) -> None:
    for message in described(body) if block.stripped else ():
        strip(message, block.stripped)


def _write_function(block: BindingBlock, function: FunctionProto) -> None:
    source = block.proto
    if not isinstance(source, FunctionProto):
        raise InternalError(f"block '{block.name}' is a graph's, not a function's")
    if not block.changed:
        function.CopyFrom(source)
        return
    copy_fields(source, function, skip=("node", "input", "output"))
    block.schedule()
    function.input.extend(v.name for v in block.inputs)
    function.output.extend(v.name for v in block.outputs)
    for b in block.bindings:
        _write_binding(b, function.node)
    _strip(block, function)


def _write_binding(b: Binding, nodes: Any) -> None:
    """Appends the node of `b` to `nodes`, a protobuf container (whose class is private)."""
    node = nodes.add()
    node.CopyFrom(b.node)
    if not b.changed:
        return
    node.input[:] = names_of(b.inputs)
    node.output[:] = names_of(b.outputs)
    for name, nested in b.blocks.items():
        base, _, index = name.partition("[")
        attribute = next((a for a in node.attribute if a.name == base), None)
        if attribute is None:
            attribute = node.attribute.add(name=base, type=AttributeProto.GRAPH)
        target = attribute.graphs[int(index[:-1])] if index else attribute.g
        target.Clear()
        _write_graph(nested, target)


def _write_declarations(
    values: list[Var], source: Any, declared: Mapping[str, ValueInfoProto], target: Any
) -> None:
    """Writes inputs or outputs (repeated ValueInfoProto): as a pass declares them, else as the file
    did, else by their type.
    """
    known = {v.name: v for v in source} | dict(declared)
    for var in values:
        target.append(
            known.get(var.name) or ValueInfoProto(name=var.name, type=type_to_proto(var.type))
        )
        target[-1].name = var.name


def _type_results(block: BindingBlock, graph: GraphProto) -> None:
    """Adds the dtypes that the file left out of the body of a SequenceMap: onnxruntime opens none
    without them, except bodies in which it infers them.
    """
    if block.owner is None or not block.owner.is_op("SequenceMap"):
        return
    for v, output in zip(block.outputs, graph.output, strict=True):
        if isinstance(v.type, TensorType) and not output.type.WhichOneof("value"):
            output.type.tensor_type.elem_type = v.type.dtype


def _write_value_info(
    block: BindingBlock,
    source: GraphProto,
    declared: Mapping[str, ValueInfoProto],
    graph: GraphProto,
) -> None:
    """Keeps the declarations of values that still exist. New values are declared if the file
    declares values, or if a pass declares them.
    """
    if not source.value_info and not block.declared:
        return
    before = {name for n in source.node for name in n.output[:]}
    gone = before.difference(v.name for v in block.vars())
    returned = {v.name for v in block.outputs}.difference(v.name for v in source.output)
    kept = [v for v in source.value_info if v.name not in gone and v.name not in returned]
    for v in kept:
        graph.value_info.add().CopyFrom(declared.get(v.name, v))
        graph.value_info[-1].name = v.name
    known = {v.name for v in source.value_info} | {v.name for v in block.outputs}
    for b in block.bindings:
        for out in b.outputs:
            if out is None or out.name in known:
                continue
            if out in block.declared:
                info = block.declared[out]
                if info is not None:
                    graph.value_info.add().CopyFrom(info)
                    graph.value_info[-1].name = out.name
            elif source.value_info and out.type is not None and out.name not in before:
                graph.value_info.add(name=out.name, type=type_to_proto(out.type))
