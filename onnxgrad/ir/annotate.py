"""Types for every value of a program, from onnx's shape inference and what the file declares.

The file's declared shapes can be wrong, so inference runs without them first; a declaration only adds what
inference left open, and where it adds something inference runs again from there.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, ValueInfoProto

from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.program import Program
from onnxgrad.ir.types import Dim, TensorType, Type, type_from_proto, type_to_proto

# larger tensors take part in inference by type only
_DATA_BYTES = 1 << 12


def annotate(program: Program) -> None:
    """Give every Var of the program the best type that can be shown."""
    light = _light_copy(program.proto)
    inferred = _infer(light)
    types = _types(inferred.graph)
    declared = {v.name: v.type for v in (*program.proto.graph.value_info, *program.proto.graph.output)}
    completed = _completed(types, declared)
    if completed:
        del light.graph.value_info[:]
        light.graph.value_info.extend(inferred.graph.value_info)
        for value in (*light.graph.value_info, *light.graph.output):
            if value.name in completed:
                value.type.CopyFrom(type_to_proto(completed.pop(value.name)))
        light.graph.value_info.extend(ValueInfoProto(name=n, type=type_to_proto(t)) for n, t in completed.items())
        inferred = _infer(light)
        types = _types(inferred.graph)
    _assign(program.main, types, inferred.graph)
    for key, function in program.functions.items():
        proto = next(f for f in inferred.functions if (f.domain, f.name, f.overload) == key)
        _assign(function, {v.name: v.type for v in proto.value_info}, None)


def _infer(model: ModelProto) -> ModelProto:
    try:
        return onnx.shape_inference.infer_shapes(model, data_prop=True)
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError):
        # inference gives up on the whole model for some legal ones; the declared types remain
        return model


def _light_copy(proto: ModelProto) -> ModelProto:
    """The model without weights, without value_info, and with outputs known by element type only."""
    light = ModelProto(ir_version=proto.ir_version)
    light.opset_import.extend(proto.opset_import)
    light.functions.extend(proto.functions)
    source, graph = proto.graph, light.graph
    graph.name = source.name or "graph"
    graph.node.extend(_light_node(n) if n.op_type == "Constant" else n for n in source.node)
    graph.input.extend(source.input)
    graph.sparse_initializer.extend(source.sparse_initializer)
    for tensor in source.initializer:
        graph.initializer.append(_light_tensor(tensor))
    for value in source.output:
        stub = graph.output.add(name=value.name)
        if value.type.HasField("tensor_type"):
            stub.type.tensor_type.elem_type = value.type.tensor_type.elem_type
        else:
            stub.type.CopyFrom(value.type)
    return light


def _light_tensor(tensor: TensorProto) -> TensorProto:
    count = 8
    for d in tensor.dims:
        count *= d
    if count <= _DATA_BYTES and tensor.data_location != TensorProto.EXTERNAL:
        return tensor
    return TensorProto(
        name=tensor.name, data_type=tensor.data_type, dims=tensor.dims, data_location=TensorProto.EXTERNAL
    )


def _light_node(node: NodeProto) -> NodeProto:
    if node.ByteSize() <= _DATA_BYTES:
        return node
    copy = NodeProto(op_type=node.op_type, domain=node.domain, name=node.name, input=node.input, output=node.output)
    for a in node.attribute:
        if a.type == AttributeProto.TENSOR:
            copy.attribute.add(name=a.name, type=a.type, t=_light_tensor(a.t))
        else:
            copy.attribute.append(a)
    return copy


def _types(graph: GraphProto) -> dict[str, TypeProto]:
    return {v.name: v.type for v in (*graph.value_info, *graph.output)}


def _completed(types: Mapping[str, TypeProto], declared: Mapping[str, TypeProto]) -> dict[str, Type]:
    """The types to which a declaration adds something and does not contradict what was inferred."""
    more: dict[str, Type] = {}
    for name, proto in declared.items():
        known = types.get(name)
        if known is not None and known == proto:
            continue
        said = type_from_proto(proto)
        inferred = None if known is None else type_from_proto(known)
        merged = _merge(inferred, said)
        if merged is not None and merged != inferred:
            more[name] = merged
    return more


def _merge(inferred: Type | None, said: Type | None) -> Type | None:
    if inferred is None or said is None:
        return inferred or said
    if not isinstance(inferred, TensorType) or not isinstance(said, TensorType):
        return inferred
    if said.shape is None or (inferred.dtype and said.dtype != inferred.dtype):
        return inferred
    if inferred.shape is None:
        return said
    if len(inferred.shape) != len(said.shape):
        return inferred
    dims = tuple(_merge_dim(i, s) for i, s in zip(inferred.shape, said.shape, strict=True))
    if any(
        isinstance(i, int) and isinstance(s, int) and i != s for i, s in zip(inferred.shape, said.shape, strict=True)
    ):
        return inferred  # a declaration wrong in one place is not believed in another
    return TensorType(inferred.dtype, dims)


def _merge_dim(inferred: Dim, said: Dim) -> Dim:
    anonymous = inferred is None or (isinstance(inferred, str) and inferred.startswith("unk__"))
    return said if anonymous and said is not None else inferred


def _assign(block: BindingBlock, types: Mapping[str, TypeProto], graph: GraphProto | None) -> None:
    nodes = {} if graph is None else {n.output[0]: n for n in graph.node if n.output and _has_graph(n)}
    for b in block.bindings:
        for out in b.outputs:
            if out is not None and out.name in types:
                out._proto = types[out.name]
        for name, nested in b.blocks.items():
            node = nodes.get(b.outputs[0].name if b.outputs and b.outputs[0] is not None else "")
            found = None if node is None else next((a.g for a in node.attribute if a.name == name), None)
            if found is None:
                _assign(nested, {v.name: v.type for v in nested.proto.value_info}, None)
                continue
            inputs = {v.name: v.type for v in found.input}
            for var in nested.inputs:
                if var.type is None and var.name in inputs:
                    var._proto = inputs[var.name]
            _assign(nested, _types(found), found)


def _has_graph(node: NodeProto) -> bool:
    return any(a.type == AttributeProto.GRAPH for a in node.attribute)
