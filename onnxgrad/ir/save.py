"""Writing: the protobuf of a program, in memory or as files that appear whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto
from onnx.external_data_helper import set_external_data

from onnxgrad.errors import InputError
from onnxgrad.ir.block import Binding, BindingBlock, Var
from onnxgrad.ir.program import Program
from onnxgrad.ir.types import type_to_proto

# protobuf's limit, with room for what surrounds the weights
_MAX_BYTES = (1 << 31) - (1 << 20)
# page-aligned tensors can be mapped into memory
_ALIGNMENT = 4096
# tensors below this stay in the model file even when others go outside
_INLINE_BYTES = 1024


def to_proto(program: Program, *, weights: bool = False) -> ModelProto:
    """The ModelProto of a program; what nothing changed is as it was read, field for field.

    With `weights`, external data is loaded into it; over 2 GB that is an InputError.
    """
    model = ModelProto()
    source = program.proto
    if not (program.main.changed or _header_changed(program)):
        model.CopyFrom(source)
    else:
        _copy_fields(source, model, skip=("graph", "functions", "opset_import", "ir_version"))
        model.ir_version = program.ir_version
        _write_opsets(program, model)
        _write_graph(program.main, model.graph)
        for block in program.functions.values():
            _write_function(block, model.functions.add())
    if weights:
        _load_weights(program, model)
    return model


def save(program: Program, path: str | os.PathLike[str]) -> None:
    """Write a program to `path`: beside it first, then renamed.

    Weights that were in external files go, tensor by tensor, to one new file `<name>.data` beside it; so do the
    weights of a model that would pass 2 GB. Raises InputError when `path` is the model's own file or cannot be written.
    """
    path = Path(path)
    if program.path is not None and path.exists() and path.resolve() == program.path.resolve():
        raise InputError(
            f"{path}: output and input are the same file; the input is never changed, choose another output"
        )
    model = to_proto(program)
    tensors = list(_tensors(model.graph))
    outside = [t for t in tensors if t.data_location == TensorProto.EXTERNAL]
    if not outside and model.ByteSize() >= _MAX_BYTES:
        outside = [t for t in tensors if len(t.raw_data) > _INLINE_BYTES]
    data_path = _free_data_path(path, program) if outside else None
    try:
        if data_path is not None:
            with _WholeFile(data_path) as file:
                for tensor in outside:
                    _move_outside(program, tensor, file, data_path.name)
        with _WholeFile(path) as file:
            file.write(model.SerializeToString())
    except OSError as e:
        raise InputError(f"{path}: cannot be written: {e.strerror or e}") from e


class _WholeFile:
    """Write beside the target and rename on success; nothing is left behind on failure."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> IO[bytes]:
        handle, self.temporary = tempfile.mkstemp(dir=self.path.parent, prefix=f".{self.path.name}.", suffix=".part")
        self.file = os.fdopen(handle, "wb")
        return self.file

    def __exit__(self, kind: object, *rest: object) -> None:
        self.file.close()
        if kind is not None:
            os.unlink(self.temporary)
            return
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(self.temporary, 0o666 & ~umask)  # mkstemp made it private
        os.replace(self.temporary, self.path)


# ---- weights --------------------------------------------------------------------------------------------------


def _tensors(graph: GraphProto) -> Iterator[TensorProto]:
    """Every tensor of a graph that may hold weights, in nested graphs too."""
    yield from graph.initializer
    for node in graph.node:
        for a in node.attribute:
            if a.type == AttributeProto.TENSOR:
                yield a.t
            elif a.type == AttributeProto.GRAPH:
                yield from _tensors(a.g)
            elif a.type == AttributeProto.GRAPHS:
                for g in a.graphs:
                    yield from _tensors(g)


def _load_weights(program: Program, model: ModelProto) -> None:
    total = 0
    for tensor in _tensors(model.graph):
        if tensor.data_location != TensorProto.EXTERNAL:
            continue
        total += next((int(e.value) for e in tensor.external_data if e.key == "length"), 0)
        if total >= _MAX_BYTES:
            raise InputError(
                "the model's weights pass 2 GB, more than a ModelProto can hold: use BindingBlock.load(path) and "
                "block.save(path), or the command line"
            )
        tensor.CopyFrom(program.internalize(tensor))


def _move_outside(program: Program, tensor: TensorProto, file: IO[bytes], location: str) -> None:
    data = program.internalize(tensor).raw_data if tensor.data_location == TensorProto.EXTERNAL else tensor.raw_data
    offset = -(-file.tell() // _ALIGNMENT) * _ALIGNMENT
    file.seek(offset)
    file.write(data)
    tensor.raw_data = b"\0"  # set_external_data wants the field present
    set_external_data(tensor, location, offset, len(data))
    tensor.ClearField("raw_data")


def _free_data_path(path: Path, program: Program) -> Path:
    """`<name>.data` beside the output, unless the model reads its own weights from there."""
    sources = {
        (program.folder / entry.value).resolve()
        for tensor in _tensors(program.proto.graph)
        for entry in tensor.external_data
        if entry.key == "location" and program.folder is not None
    }
    candidate, count = path.with_name(f"{path.name}.data"), 1
    while candidate.resolve() in sources:
        count += 1
        candidate = path.with_name(f"{path.name}.{count}.data")
    return candidate


# ---- protobuf -------------------------------------------------------------------------------------------------


def _header_changed(program: Program) -> bool:
    source = program.proto
    opsets = {"" if o.domain == "ai.onnx" else o.domain: o.version for o in source.opset_import}
    functions = [(f.domain, f.name, f.overload) for f in source.functions]
    return (
        program.ir_version != source.ir_version
        or program.opsets != opsets
        or list(program.functions) != functions
        or any(block.changed for block in program.functions.values())
    )


def _write_opsets(program: Program, model: ModelProto) -> None:
    written = set()
    for entry in program.proto.opset_import:
        domain = "" if entry.domain == "ai.onnx" else entry.domain
        if domain in program.opsets:
            model.opset_import.add().CopyFrom(entry)
            model.opset_import[-1].version = program.opsets[domain]
            written.add(domain)
    for domain, version in program.opsets.items():
        if domain not in written:
            model.opset_import.add(domain=domain, version=version)


def _write_graph(block: BindingBlock, graph: GraphProto) -> None:
    source = block.proto
    assert isinstance(source, GraphProto)
    if not block.changed:
        graph.CopyFrom(source)
        return
    _copy_fields(source, graph, skip=("node", "initializer", "value_info", "input", "output"))
    block.schedule()
    for b in block.bindings:
        _write_binding(b, graph.node)
    _write_declarations(block.inputs, source.input, graph.input)
    _write_declarations(block.outputs, source.output, graph.output)
    graph.initializer.extend(v.initializer for v in block.initializers.values() if v.initializer is not None)
    _write_value_info(block, source, graph)


def _write_function(block: BindingBlock, function: FunctionProto) -> None:
    source = block.proto
    assert isinstance(source, FunctionProto)
    if not block.changed:
        function.CopyFrom(source)
        return
    _copy_fields(source, function, skip=("node", "input", "output"))
    block.schedule()
    function.input.extend(v.name for v in block.inputs)
    function.output.extend(v.name for v in block.outputs)
    for b in block.bindings:
        _write_binding(b, function.node)


def _write_binding(b: Binding, nodes: object) -> None:
    node: NodeProto = nodes.add()  # type: ignore[attr-defined]  # a protobuf container, whose class is private
    node.CopyFrom(b.node)
    if not b.changed:
        return
    del node.input[:]
    del node.output[:]
    node.input.extend("" if v is None else v.name for v in b.inputs)
    node.output.extend("" if v is None else v.name for v in b.outputs)
    for name, nested in b.blocks.items():
        _write_graph_attribute(node, name, nested)


def _write_graph_attribute(node: NodeProto, name: str, nested: BindingBlock) -> None:
    base, _, index = name.partition("[")
    attribute = next((a for a in node.attribute if a.name == base), None)
    if attribute is None:
        attribute = node.attribute.add(name=base, type=AttributeProto.GRAPH)
    target = attribute.graphs[int(index[:-1])] if index else attribute.g
    target.Clear()
    _write_graph(nested, target)


def _write_declarations(values: list[Var], source: object, target: object) -> None:
    declared = {v.name: v for v in source}  # type: ignore[attr-defined]  # repeated ValueInfoProto
    for var in values:
        found = declared.get(var.name)
        if found is None:
            found = ValueInfoProto(name=var.name, type=type_to_proto(var.type))
        target.append(found)  # type: ignore[attr-defined]  # repeated ValueInfoProto


def _write_value_info(block: BindingBlock, source: GraphProto, graph: GraphProto) -> None:
    """What was declared stays for values that live; new values are declared where the file declared its own."""
    if not source.value_info:
        return
    outputs = {v.name for v in block.outputs}
    live = {v.name: v for v in block.vars()}
    graph.value_info.extend(v for v in source.value_info if v.name in live)
    declared = {v.name for v in source.value_info} | outputs
    before = {name for n in source.node for name in n.output}
    for b in block.bindings:
        for out in b.outputs:
            if out is not None and out.name not in declared and out.name not in before and out.type is not None:
                graph.value_info.add(name=out.name, type=type_to_proto(out.type))


def _copy_fields(source: object, target: object, skip: tuple[str, ...]) -> None:
    """Copy every set field except those named."""
    for field, value in source.ListFields():  # type: ignore[attr-defined]  # any protobuf message
        if field.name in skip:
            continue
        if field.is_repeated:
            getattr(target, field.name).extend(value)
        elif field.message_type is not None:
            getattr(target, field.name).CopyFrom(value)
        else:
            setattr(target, field.name, value)
