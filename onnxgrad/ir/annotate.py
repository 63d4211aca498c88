"""Types for every value of a program, from onnx's shape inference and what the file declares.

The file's declared shapes can be wrong, so inference runs without them; a declaration only adds what inference left
open. What that (or `symbolic`, which knows more about computed shapes) adds then flows on, binding by binding.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, helper

from onnxgrad.ir import attributes, ceil_mode, infer, symbolic
from onnxgrad.ir.block import Binding, BindingBlock, Var
from onnxgrad.ir.preflight import inlined_nodes
from onnxgrad.ir.program import Program
from onnxgrad.ir.types import Dim, TensorType, Type, type_from_proto

# larger tensors take part in inference by type only
_DATA_BYTES = 1 << 12
# onnx infers through function bodies call by call; beyond this many nodes the calls stay untyped
_INLINED_NODES = 200_000


def annotate(program: Program) -> None:
    """Give every Var of the program the best type that can be shown."""
    light = _light_copy(program)
    inferred = _infer(light)
    while inferred is not None and ceil_mode.correct(light, inferred):
        inferred = _infer(light)
    graph = (inferred or light).graph
    _assign(program.main, _types(graph), graph.node)
    for function in program.functions.values():
        _assign(function, {}, ())
        _type_constants(function)
    # with nothing inferred everything is to be typed, binding by binding
    _complete(program.main, None if inferred is None else set())


# ---- onnx's inference ------------------------------------------------------------------------------------------


def _infer(model: ModelProto) -> ModelProto | None:
    """The model with its inferred types; None for the models, some of them legal, that onnx gives up on as a whole."""
    try:
        return onnx.shape_inference.infer_shapes(model, data_prop=True)
    except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError, RuntimeError, ValueError):
        return None


def _light_copy(program: Program) -> ModelProto:
    """The model without weights, metadata and value_info, and with outputs known by element type only."""
    proto, source = program.proto, program.proto.graph
    light = ModelProto(ir_version=proto.ir_version)
    light.opset_import.extend(proto.opset_import)
    if proto.functions and inlined_nodes(proto) <= _INLINED_NODES:
        light.functions.extend(proto.functions)
    graph = light.graph
    graph.name = source.name or "graph"
    graph.node.extend([_light_constant(b.node) if b.op == "Constant" else b.node for b in program.main.bindings])
    _strip_nodes(graph.node)
    graph.input.extend(source.input)
    graph.sparse_initializer.extend(source.sparse_initializer)
    # a default that a caller may override fixes no shape
    fixed = {v.name for v in program.main.initializers.values() if not v.overridable}
    graph.initializer.extend([_light_tensor(tensor) for tensor in source.initializer if tensor.name in fixed])
    # an output that is an input or a weight has its type: a stub would take the shape from all that reads it
    known = {v.name for v in (*source.input, *source.initializer, *(t.values for t in source.sparse_initializer))}
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
    count = 8
    for d in tensor.dims:
        count *= d
    if count <= _DATA_BYTES and tensor.data_location != TensorProto.EXTERNAL:
        return tensor
    return TensorProto(
        name=tensor.name, data_type=tensor.data_type, dims=tensor.dims, data_location=TensorProto.EXTERNAL
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


def _strip_nodes(nodes: Iterable[NodeProto]) -> None:
    """Drop, in our copy, what inference has no use for and would have to copy twice; one spelling for one domain."""
    for node in nodes:
        if node.domain == "ai.onnx":
            node.domain = ""
        if node.metadata_props:
            node.ClearField("metadata_props")
        if node.doc_string:
            node.ClearField("doc_string")
        for a in node.attribute:
            if a.type == AttributeProto.GRAPH:
                _strip_graph(a.g)


def _strip_graph(graph: GraphProto) -> None:
    del graph.value_info[:]
    for tensor in graph.initializer:
        light = _light_tensor(tensor)
        if light is not tensor:
            tensor.CopyFrom(light)
    _strip_nodes(graph.node)


# ---- from protobuf to Vars -------------------------------------------------------------------------------------


def _types(graph: GraphProto) -> dict[str, TypeProto]:
    return {v.name: v.type for v in (*graph.value_info, *graph.output)}


def _assign(block: BindingBlock, types: Mapping[str, TypeProto], nodes: Iterable[NodeProto]) -> None:
    """Hand the inferred types to the block's results; `nodes` are the inferred ones, whose graphs are looked into."""
    graphs = {tuple(n.output): n for n in nodes if any(a.type == AttributeProto.GRAPH for a in n.attribute)}
    for b in block.bindings:
        for out in b.outputs:
            if out is not None:
                out._proto = types.get(out.name)
        for name, nested in b.blocks.items():
            node = graphs.get(tuple(b.node.output))
            found = None if node is None else next((a.g for a in node.attribute if a.name == name), None)
            if found is None:
                _assign(nested, {}, ())
                continue
            inputs = {v.name: v.type for v in found.input}
            for var in nested.inputs:
                if var.type is None and var.name in inputs:
                    var._proto = inputs[var.name]
            _assign(nested, _types(found), found.node)


def _type_constants(block: BindingBlock) -> None:
    """Nothing is inferred inside functions, whose parameters are untyped; but a constant is what it is."""
    for b in block.walk():
        if b.is_op("Constant") and b.outputs and b.outputs[0] is not None:
            value = attributes.constant_value(b.attrs)
            if isinstance(value, TensorProto):
                b.outputs[0].type = TensorType(value.data_type, tuple(value.dims))
            elif value is not None and value.dtype != object:
                b.outputs[0].type = TensorType(helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)


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
    dims: list[Dim] = []
    for i, s in zip(inferred.shape, said.shape, strict=True):
        if i != s and isinstance(i, int) and isinstance(s, int):
            return inferred  # a declaration wrong in one place is not believed in another
        dims.append(s if s is not None and _is_open(i) else i)
    return TensorType(inferred.dtype, tuple(dims))


# ---- declarations, and what flows on from them -----------------------------------------------------------------


def _complete(block: BindingBlock, improved: set[Var] | None) -> None:
    """In order, complete the results that are not fully known: by what the file declares about values between, by
    typing again where that is not enough and operands became better known (without `improved`: always), and last by
    what the file declares about outputs, whose sizes exporters like to name anew.
    """
    proto = block.proto
    between = {v.name: v.type for v in proto.value_info}
    returned = {v.name: v.type for v in proto.output} if isinstance(proto, GraphProto) else {}
    for b in block.bindings:
        for nested in b.blocks.values():
            _complete(nested, improved)
        unknown = _incomplete(b.outputs)
        if not unknown:
            continue
        _take(between, unknown, improved)
        unknown = _incomplete(unknown)
        if not unknown:
            continue
        computed = b.domain == "" and b.op in symbolic.REFINED
        if not b.blocks and (improved is None or computed or any(v in improved for v in b.inputs)):
            _again(b, improved)
        _take(returned, unknown, improved)


def _incomplete(results: Iterable[Var | None]) -> list[Var]:
    return [out for out in results if out is not None and _is_incomplete(out.type)]


def _take(declared: Mapping[str, TypeProto], results: Iterable[Var], improved: set[Var] | None) -> None:
    for out in results:
        if out.name in declared:
            _improve(out, type_from_proto(declared[out.name]), improved)


def _again(b: Binding, improved: set[Var] | None) -> None:
    schema = attributes.schema(b.op, b.version, b.domain)
    try:
        types = infer.result_types(schema, b.node, b.inputs, b.block)
    except infer.TypeMismatch:
        return  # the file's own trouble: onnx said nothing about it either
    for out, found in zip(b.outputs, types, strict=True):
        if out is not None and isinstance(found, TensorType):
            _improve(out, found, improved)


def _improve(var: Var, more: Type | None, improved: set[Var] | None) -> None:
    better = _merge(var.type, more)
    if better != var.type:
        var.type = better
        if improved is not None:
            improved.add(var)


def _is_incomplete(type_: Type | None) -> bool:
    if not isinstance(type_, TensorType):
        return type_ is None
    if type_.shape is None:
        return True
    for d in type_.shape:  # noqa: SIM110  # asked for every value of a model, so without a generator
        if d is None or (isinstance(d, str) and d.startswith("unk__")):
            return True
    return False


def _is_open(dim: Dim) -> bool:
    """Unknown, or only named by onnx, which makes up a name for each size that it cannot compute."""
    return dim is None or (isinstance(dim, str) and dim.startswith("unk__"))
