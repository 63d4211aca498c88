"""Nodes, graphs and tensors of a protobuf: traversal, order, elements and counts."""

from __future__ import annotations

import heapq
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field
from fnmatch import fnmatchcase
from typing import Any, TypeVar

import numpy as np
from google.protobuf.message import Message
from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    numpy_helper,
)

from onnxgrad.errors import InputError
from onnxgrad.frozen import frozen
from onnxgrad.ir import domains
from onnxgrad.ir.attributes import text
from onnxgrad.ir.preflight.tensors import raw_bytes
from onnxgrad.ir.storage.external_data import tensors
from onnxgrad.ir.types import Array, dtype_name
from onnxgrad.results import Plain

Proto = TypeVar("Proto", bound=Message)


def copy_of(proto: Proto) -> Proto:
    """Returns a copy of a protobuf."""
    made: Proto = type(proto)()
    made.CopyFrom(proto)
    return made


def copy_fields(source: Any, target: Any, skip: tuple[str, ...]) -> None:
    """Copies every set field of a protobuf message except those named."""
    for entry, value in source.ListFields():
        if entry.name in skip:
            continue
        if entry.is_repeated:
            getattr(target, entry.name).extend(value)
        elif entry.message_type is not None:
            getattr(target, entry.name).SetInParent()
            getattr(target, entry.name).CopyFrom(value)
        else:
            setattr(target, entry.name, value)


# where a tensor holds its elements or names their place
DATA_FIELDS = (
    "raw_data", "float_data", "double_data", "int32_data", "int64_data", "uint64_data",
    "string_data", "external_data", "data_location",
)  # fmt: skip


def clear_data(tensor: TensorProto) -> None:
    """Removes the data of a tensor; name, dtype and shape stay."""
    for name in DATA_FIELDS:
        tensor.ClearField(name)


def graphs_of(node: NodeProto) -> list[GraphProto]:
    """The graphs that a node holds as attributes."""
    found = []
    for a in node.attribute:
        if a.type not in _WITHOUT_GRAPHS:  # before the fields, whose access takes longer
            if a.HasField("g"):
                found.append(a.g)
            found += a.graphs
    return found


_A = AttributeProto
_WITHOUT_GRAPHS = {*_A.AttributeType.values()} - {_A.UNDEFINED, _A.GRAPH, _A.GRAPHS}


def every_node(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """Every node, those of nested graphs included."""
    for node in nodes:
        yield node
        for graph in graphs_of(node):
            yield from every_node(graph.node)


def model_nodes(model: ModelProto) -> Iterator[NodeProto]:
    """Every node of a model: of its graphs, nested ones included, and of its functions."""
    for nodes in (model.graph.node, *(f.node for f in model.functions)):
        yield from every_node(nodes)


def every_graph(graph: GraphProto) -> Iterator[GraphProto]:
    """The graph and all nested ones, outer before inner."""
    yield graph
    for node in graph.node:
        for inner in graphs_of(node):
            yield from every_graph(inner)


def described(body: GraphProto | FunctionProto) -> Iterator[Any]:
    """A graph or function, and its declarations and initializers: all that have a doc string and
    metadata, but the nodes.
    """
    yield body
    yield from body.value_info
    if isinstance(body, GraphProto):
        for values in (body.input, body.output, body.initializer):
            yield from values


_MARKS = "onnxgrad."  # of checkpoints, outlined functions and others, which commands read


def described_by(message: Any, keys: str) -> list[str]:
    """The keys of the metadata of a message that match a glob, with "doc_string" for a doc string.
    Marks of onnxgrad match only a glob that begins as they do.
    """
    found = ["doc_string"] if message.doc_string else []
    found += [entry.key for entry in message.metadata_props]
    named = keys.startswith(_MARKS)
    return [k for k in found if fnmatchcase(k, keys) and (named or not k.startswith(_MARKS))]


def strip(message: Any, keys: str) -> None:
    """Removes what `described_by` returns from a message."""
    gone = described_by(message, keys)
    if "doc_string" in gone:
        message.ClearField("doc_string")
    if gone:
        keep(message.metadata_props, lambda entry: entry.key not in gone)


def keep(entries: Any, wanted: Callable[[Any], bool]) -> None:
    """Keeps the entries of a repeated field for which the predicate is true."""
    kept = [entry for entry in entries if wanted(entry)]
    del entries[:]
    entries.extend(kept)


def weight_elements(graph: GraphProto) -> int:
    """Returns the number of elements of the initializers, those of nested graphs included."""
    return sum(math.prod(t.dims) for inner in every_graph(graph) for t in inner.initializer)


# dtypes with the same bytes in memory and in a file; onnx's helpers take ten times as long
_AS_IT_LIES: dict[np.dtype[np.generic], int] = {
    np.dtype(kind): number
    for kind, number in (
        (np.float32, TensorProto.FLOAT),
        (np.float64, TensorProto.DOUBLE),
        (np.int64, TensorProto.INT64),
        (np.int32, TensorProto.INT32),
        (np.bool_, TensorProto.BOOL),
    )
    if sys.byteorder == "little"
}


def tensor_of(array: Array, name: str) -> TensorProto:
    """Returns the tensor of an array, as `onnx.numpy_helper.from_array` does."""
    number = _AS_IT_LIES.get(array.dtype)
    if number is None:
        return numpy_helper.from_array(array, name)
    return TensorProto(name=name, data_type=number, dims=array.shape, raw_data=array.tobytes())


def elements(tensor: TensorProto) -> Array:
    """Returns the tensor as an array; strings, which need not be UTF-8, as objects. Raises
    InputError if it is damaged.
    """
    try:
        if tensor.data_type == TensorProto.STRING:
            return np.array([text(s) for s in tensor.string_data], object).reshape(tensor.dims)
        return numpy_helper.to_array(tensor)
    except (TypeError, ValueError) as e:
        reason = (str(e) or type(e).__name__).splitlines()[0]
        raise InputError(f"the data of tensor '{tensor.name}' is damaged: {reason}") from e


@frozen
class Stats(Plain):
    """Counts of a model. Nodes include those of nested graphs and function bodies. Parameters are
    the elements of all constant tensors. Bytes are those of the file and of its external data.
    """

    json_keys = "nodes parameters bytes operators=by_name"

    nodes: int
    parameters: int
    bytes: int
    operators: Counter[str] = field(default_factory=Counter)
    dtypes: Counter[str] = field(default_factory=Counter)

    @property
    def by_name(self) -> dict[str, int]:
        """The counts of operators, sorted by name."""
        return dict(sorted(self.operators.items()))


def stats_of(model: ModelProto) -> Stats:
    """Returns the counts of one model; its external data is not read."""
    operators = Counter(operator(n) for n in model_nodes(model))
    dtypes: Counter[str] = Counter()
    outside: dict[tuple[str, str], int] = {}
    for tensor in tensors(model):
        dtypes[dtype_name(tensor.data_type)] += math.prod(tensor.dims)
        if tensor.data_location == TensorProto.EXTERNAL:
            place = {e.key: e.value for e in tensor.external_data}
            where = place.get("location", ""), place.get("offset", "0")
            outside[where] = raw_bytes(tensor) or 0
    return Stats(
        operators.total(),
        dtypes.total(),
        model.ByteSize() + sum(outside.values()),
        operators,
        dtypes,
    )


def operator(node: NodeProto) -> str:
    """`Conv`, or `com.example::Conv` outside the default domain."""
    return domains.full_name(node.domain, node.op_type)


def scheduled(nodes: Sequence[NodeProto]) -> list[NodeProto]:
    """Returns the nodes in a stable topological order: each comes after those whose outputs it or
    its nested graphs read. Nodes on a cycle come last, in their original order.
    """
    maker = {name: i for i, node in enumerate(nodes) for name in node.output if name}
    waits = [
        {maker[name] for name in reads(node) if name in maker} - {i} for i, node in enumerate(nodes)
    ]
    if all(max(before, default=-1) < i for i, before in enumerate(waits)):
        return list(nodes)
    readers: list[list[int]] = [[] for _ in nodes]
    for i, before in enumerate(waits):
        for j in before:
            readers[j].append(i)
    ready = [i for i, before in enumerate(waits) if not before]
    order: list[int] = []
    while ready:
        i = heapq.heappop(ready)
        order.append(i)
        for j in readers[i]:
            waits[j].discard(i)
            if not waits[j]:
                heapq.heappush(ready, j)
    done = set(order)
    return [nodes[i] for i in (*order, *(i for i in range(len(nodes)) if i not in done))]


def reads(node: NodeProto) -> Iterable[str]:
    """Yields the names that a node may need: its inputs, and every name in its nested graphs,
    including names that those graphs define.
    """
    yield from node.input
    for graph in graphs_of(node):
        yield from (value.name for value in graph.output)
        for inner in graph.node:
            yield from reads(inner)
