"""onnx's inference of a whole model, on a copy that is cheap to infer and leaves out everything
that onnx infers wrongly.

Data propagation is off: it creates one message for each element of every vector, so `Cast(Range(0,
2^62))` would use all memory. Computed shapes are followed by `symbols`, binding by binding, up to
the longest vector that can be a shape.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Set

import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto

from onnxgrad.ir import domains
from onnxgrad.ir.preflight.model import inlined_nodes
from onnxgrad.ir.program import Program
from onnxgrad.ir.type_inference import misinferred
from onnxgrad.ir.types import type_from_proto, type_to_proto

# larger tensors take part in inference by type only
_DATA_BYTES = 1 << 12
# onnx infers through function bodies call by call; beyond this many nodes the calls stay untyped
_INLINED_NODES = 200_000
# no operator has this name, so onnx infers nothing about the results
_UNKNOWN = "Unknown"
_GRAPH = AttributeProto.GRAPH  # looked up once, not for every attribute of a model


def infer_model(program: Program, symbols: Iterable[str], hidden: Set[str]) -> ModelProto | None:
    """Returns the program's model with the types that onnx infers. None for models, some of them
    legal, that onnx rejects as a whole.

    Nodes with a result named in `hidden` stay untyped. The names that onnx invents for sizes differ
    from `symbols` and from any other name that the file declares.
    """
    light = _light_copy(program)
    invented = [s for s in symbols if is_invented(s)]
    if invented:
        name = "declared symbols"
        while name in program.names:
            name += "'"
        shape = light.graph.value_info.add(name=name).type.tensor_type.shape
        for symbol in invented:
            shape.dim.add(dim_param=symbol)
    _prepare(light.graph.node, hidden)
    for function in light.functions:
        _prepare(function.node, hidden)
        _forget_symbols(function.node)
    try:
        return onnx.shape_inference.infer_shapes(light, data_prop=False)
    except (
        onnx.shape_inference.InferenceError,
        onnx.checker.ValidationError,
        RuntimeError,
        ValueError,
    ):
        return None


def is_invented(symbol: str) -> bool:
    """Whether a symbol looks like a name that onnx invents for a size that it cannot compute. Files
    may declare such names too.
    """
    return symbol.startswith("unk__")


def _light_copy(program: Program) -> ModelProto:
    """The model without weights, metadata and value_info, and with outputs known by element type
    only.
    """
    proto, source = program.proto, program.proto.graph
    light = ModelProto(ir_version=proto.ir_version)
    light.opset_import.extend(proto.opset_import)
    if proto.functions and inlined_nodes(proto) <= _INLINED_NODES:
        light.functions.extend(proto.functions)
    graph = light.graph
    graph.name = source.name or "graph"
    for b in program.main.bindings:
        graph.node.add().CopyFrom(_light_constant(b.node) if b.op == "Constant" else b.node)
    graph.input.extend(source.input)
    named = {v.name: v.type for v in program.main.inputs if v.shape is not None}
    for value in graph.input:
        # unnamed sizes, and those named like formulas, have names of ours
        if named.get(value.name) not in (None, type_from_proto(value.type)):
            value.type.CopyFrom(type_to_proto(named.get(value.name)))
    graph.sparse_initializer.extend(source.sparse_initializer)
    # a default that a caller may override fixes no shape
    fixed = {v.name for v in program.main.initializers.values() if not v.overridable}
    graph.initializer.extend(
        [_light_tensor(tensor) for tensor in source.initializer if tensor.name in fixed]
    )
    # an output that is an input or a weight has its type: a stub would hide the shape from all its
    # readers
    known = {
        v.name
        for v in (
            *source.input,
            *source.initializer,
            *(t.values for t in source.sparse_initializer),
        )
    }
    for value in source.output:
        if value.name in known:
            continue
        stub = graph.output.add(name=value.name)
        if value.type.HasField("tensor_type"):
            stub.type.tensor_type.elem_type = value.type.tensor_type.elem_type
        else:
            stub.type.CopyFrom(value.type)
    return light


def _light_tensor(tensor: TensorProto) -> TensorProto:
    if 8 * math.prod(tensor.dims) <= _DATA_BYTES and tensor.data_location != TensorProto.EXTERNAL:
        return tensor
    return TensorProto(
        name=tensor.name,
        data_type=tensor.data_type,
        dims=tensor.dims,
        data_location=TensorProto.EXTERNAL,
    )


def _light_constant(node: NodeProto) -> NodeProto:
    if node.ByteSize() <= _DATA_BYTES:
        return node
    copy = NodeProto(op_type=node.op_type, domain=node.domain, input=node.input, output=node.output)
    for a in node.attribute:
        if a.type == AttributeProto.TENSOR:
            copy.attribute.add(name=a.name, type=a.type, t=_light_tensor(a.t))
        else:
            copy.attribute.append(a)
    return copy


def _prepare(nodes: Iterable[NodeProto], hidden: Set[str]) -> None:
    """Drops from our copy what inference does not need, and would copy twice, and what it gets
    wrong.

    Also spell the default domain in one way.
    """
    for node in nodes:
        domains.respell(node)
        node.ClearField("metadata_props")
        node.ClearField("doc_string")
        if node.op_type in misinferred.OPERATORS:
            misinferred.spell_out(node)
            if misinferred.needs_types(node):
                node.op_type = _UNKNOWN
        if hidden and not hidden.isdisjoint(node.output):
            node.op_type = _UNKNOWN
        for a in node.attribute[:]:
            if a.type == _GRAPH:
                _forget_results(a.g)
                for tensor in a.g.initializer:
                    light = _light_tensor(tensor)
                    if light is not tensor:
                        tensor.CopyFrom(light)
                _prepare(a.g.node, hidden)


def _forget_results(graph: GraphProto) -> None:
    """Clears the shapes that a nested graph declares for results: onnx would trust them."""
    del graph.value_info[:]
    made = {name for n in graph.node for name in n.output}
    for value in graph.output:
        if value.name in made and value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")


def _forget_symbols(nodes: Iterable[NodeProto]) -> None:
    """Clears the symbols of a function's graphs: their sizes differ from call to call."""
    for node in nodes:
        for a in node.attribute:
            if a.type != _GRAPH:
                continue
            for value in (*a.g.input, *a.g.output):
                for dim in (
                    value.type.tensor_type.shape.dim if value.type.HasField("tensor_type") else ()
                ):
                    dim.ClearField("dim_param")
            _forget_symbols(a.g.node)
