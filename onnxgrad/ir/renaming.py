"""Renames values, nodes, symbols of dimensions and local functions in a protobuf, in nested graphs
too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TypeProto, ValueInfoProto

from onnxgrad.ir import domains
from onnxgrad.ir.program import FunctionKey
from onnxgrad.ir.protobufs import every_graph, every_node, model_nodes

_SYMBOL = re.compile(r"[^\W\d]\w*")


def value_names(graph: GraphProto) -> dict[str, None]:
    """The names of the values that a graph and its nested graphs define or read."""
    found: dict[str, None] = {}
    for inner in every_graph(graph):
        found |= dict.fromkeys(v.name for v in (*inner.input, *inner.output, *inner.value_info))
        found |= dict.fromkeys(t.name for t in inner.initializer)
        found |= dict.fromkeys(t.values.name for t in inner.sparse_initializer)
        for node in inner.node:
            found |= dict.fromkeys(name for name in (*node.input, *node.output) if name)
    return found


def node_names(graph: GraphProto) -> dict[str, None]:
    """The names of the nodes of a graph and its nested graphs."""
    return {node.name: None for node in every_node(graph.node) if node.name}


def rename_values(graph: GraphProto, names: Mapping[str, str]) -> None:
    """Renames values in a graph, its nested graphs, its quantization annotations and the shards of
    its nodes, all at once: two values may exchange their names.
    """
    for inner in every_graph(graph):
        for entry in (*inner.input, *inner.output, *inner.value_info, *inner.initializer):
            entry.name = names.get(entry.name, entry.name)
        for sparse in inner.sparse_initializer:
            sparse.values.name = names.get(sparse.values.name, sparse.values.name)
        for note in inner.quantization_annotation:
            note.tensor_name = names.get(note.tensor_name, note.tensor_name)
            for entry in note.quant_parameter_tensor_names:
                entry.value = names.get(entry.value, entry.value)
        for node in inner.node:
            _rename_operands(node, names)


def _rename_operands(node: NodeProto, names: Mapping[str, str]) -> None:
    for values in (node.input, node.output):
        if any(name in names for name in values):
            values[:] = [names.get(name, name) for name in values]
    for placed in node.device_configurations:
        for shard in placed.sharding_spec:
            shard.tensor_name = names.get(shard.tensor_name, shard.tensor_name)


def rename_nodes(graph: GraphProto, names: Mapping[str, str]) -> None:
    """Renames nodes in a graph and its nested graphs."""
    for node in every_node(graph.node):
        node.name = names.get(node.name, node.name)


def _kinds(kind: TypeProto) -> Iterator[TypeProto.Tensor]:
    which = kind.WhichOneof("value")
    if which in ("tensor_type", "sparse_tensor_type"):
        yield getattr(kind, which)
    elif which == "map_type":
        yield from _kinds(kind.map_type.value_type)
    elif which in ("sequence_type", "optional_type"):
        yield from _kinds(getattr(kind, which).elem_type)


def _declarations(graph: GraphProto) -> Iterator[ValueInfoProto]:
    for inner in every_graph(graph):
        yield from (*inner.input, *inner.output, *inner.value_info)


def symbols(graph: GraphProto) -> dict[str, None]:
    """The symbols in the declared shapes of a graph and its nested graphs."""
    dims = (d for v in _declarations(graph) for k in _kinds(v.type) for d in k.shape.dim)
    return {
        name: None for d in dims for name in (d.dim_param, *_SYMBOL.findall(d.dim_param)) if name
    }


def rename_symbols(graph: GraphProto, names: Mapping[str, str]) -> None:
    """Renames symbols in the declared shapes of a graph and its nested graphs, in formulas too."""
    for value in _declarations(graph):
        for kind in _kinds(value.type):
            for dim in kind.shape.dim:
                if dim.dim_param in names:
                    dim.dim_param = names[dim.dim_param]
                elif dim.dim_param:
                    dim.dim_param = _SYMBOL.sub(lambda m: _inside(names, m[0]), dim.dim_param)


def _inside(names: Mapping[str, str], symbol: str) -> str:
    """Returns the new name of a symbol in a formula, in brackets if the new name is itself a
    formula.
    """
    found = names.get(symbol, symbol)
    return found if found.isidentifier() else f"({found})"


def called(node: NodeProto) -> FunctionKey:
    """The key of the function that a node would call."""
    return domains.canonical(node.domain), node.op_type, node.overload


def key_of(function: FunctionProto) -> FunctionKey:
    """The key of a function, by which nodes call it."""
    return domains.canonical(function.domain), function.name, function.overload


def rename_functions(model: ModelProto, names: Mapping[FunctionKey, str]) -> None:
    """Renames local functions, and the calls of them."""
    for node in model_nodes(model):
        node.op_type = names.get(called(node), node.op_type)
    for f in model.functions:
        f.name = names.get(key_of(f), f.name)
