"""Smaller models: each function yields candidates made from one model, the largest change first."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    TypeProto,
    ValueInfoProto,
    numpy_helper,
)

from onnxgrad.ir.protobufs import every_graph, every_node, graphs_of, model_nodes
from onnxgrad.verify.changed_region import reads

Types = Mapping[str, TypeProto]
Candidates = Iterator[ModelProto]


def pruned(model: ModelProto) -> ModelProto:
    """Removes everything that no output needs: nodes, constants, inputs, functions and imports.
    Changes and returns `model`.
    """
    graph = model.graph
    wanted = {v.name for v in graph.output}
    kept: list[NodeProto] = []
    for node in reversed(graph.node):
        if not wanted.isdisjoint(node.output):
            wanted |= reads(node)
            kept.append(node)
    assign(graph.node, kept[::-1])
    assign(graph.initializer, [t for t in graph.initializer if t.name in wanted])
    assign(
        graph.sparse_initializer, [t for t in graph.sparse_initializer if t.values.name in wanted]
    )
    assign(graph.input, [v for v in graph.input if v.name in wanted])
    defined = {n for node in graph.node for n in node.output} - {v.name for v in graph.output}
    assign(graph.value_info, [v for v in graph.value_info if v.name in defined])
    called = {(n.domain, n.op_type) for n in every_node(graph.node)}
    while True:
        more = {
            (n.domain, n.op_type)
            for f in model.functions
            if (f.domain, f.name) in called
            for n in every_node(f.node)
        }
        if more <= called:
            break
        called |= more
    assign(model.functions, [f for f in model.functions if (f.domain, f.name) in called])
    domains = {domain for domain, _ in called} | {"", "ai.onnx"}
    assign(model.opset_import, [o for o in model.opset_import if o.domain in domains])
    return model


def assign(field: Any, values: Sequence[Any]) -> None:
    """Sets a repeated field to `values`, which are some of its messages."""
    if len(values) != len(field):
        kept = [type(v).FromString(v.SerializeToString()) for v in values]
        del field[:]
        field.extend(kept)


_GRAPHS = (AttributeProto.GRAPH, AttributeProto.GRAPHS)


def bypassed(model: ModelProto, types: Types) -> Candidates:
    """Yields models without a node of one result. Its readers read one of its operands of the same
    type.
    """
    for i, node in enumerate(model.graph.node):
        if len(node.output) != 1:
            continue
        for operand in dict.fromkeys(node.input):
            if operand and operand in types and types.get(node.output[0]) == types[operand]:
                made = deepcopy(model)
                del made.graph.node[i]
                _read_instead(made.graph, node.output[0], operand)
                yield made
    for path in _places(model):
        for i in range(len(path(model).node)):
            for j in range(len(path(model).node[i].input)):
                made = deepcopy(model)
                graph = path(made)
                inner = graph.node[i]
                if len(inner.output) == 1 and inner.input[j]:
                    result, operand = inner.output[0], inner.input[j]
                    del graph.node[i]
                    _read_instead(graph, result, operand)
                    yield made


def _places(model: ModelProto) -> list[Callable[[ModelProto], Any]]:
    """Returns functions that find every nested graph and function body of a model in any copy of
    it.
    """
    found: list[Callable[[ModelProto], Any]] = []
    found += [lambda m, i=i: m.functions[i] for i in range(len(model.functions))]  # type: ignore[misc]
    count = sum(1 for _ in every_graph(model.graph))
    found += [lambda m, i=i: list(every_graph(m.graph))[i] for i in range(1, count)]  # type: ignore[misc]
    return found


def _read_instead(graph: Any, old: str, new: str) -> None:
    """Makes every reader in `graph` (or a function) read another value. An output takes over the
    value's name or is renamed.
    """
    for node in graph.node:
        _rename(node, old, new)
    outputs = graph.output
    for i, v in enumerate(outputs):
        if isinstance(v, str):
            if v == old:
                outputs[i] = new
        elif v.name == old:
            graph.node.append(NodeProto(op_type="Identity", input=[new], output=[old]))


def _rename(node: NodeProto, old: str, new: str) -> None:
    node.input[:] = [new if n == old else n for n in node.input]
    for inner in graphs_of(node):
        for n in inner.node:
            _rename(n, old, new)
        for v in inner.output:
            if v.name == old:
                inner.node.append(
                    NodeProto(op_type="Identity", input=[new], output=[f"{old}:{inner.name}"])
                )
                v.name = f"{old}:{inner.name}"


def opened(model: ModelProto, types: Types) -> Candidates:
    """Yields models with the nodes of a branch in place of its If, or the nodes of a function in
    place of its calls.
    """
    for i, node in enumerate(model.graph.node):
        for branch in graphs_of(node) if node.op_type == "If" else ():
            made = deepcopy(model)
            inner = [*branch.node]
            for given, result in zip(branch.output, node.output):
                inner.append(NodeProto(op_type="Identity", input=[given.name], output=[result]))
            nodes = [*made.graph.node[:i], *inner, *made.graph.node[i + 1 :]]
            kept = [NodeProto.FromString(n.SerializeToString()) for n in nodes]
            del made.graph.node[:]
            made.graph.node.extend(kept)
            made.graph.initializer.extend(branch.initializer)
            yield made
    if model.functions:
        from onnx import inliner

        try:
            yield inliner.inline_local_functions(model)
        except Exception:  # noqa: BLE001  # the model cannot be handled: there is no such candidate
            return


def plainer_attributes(model: ModelProto, types: Types) -> Candidates:
    """Yields models with a node that lacks one of its attributes or of its trailing operands."""
    for i, node in enumerate(model.graph.node):
        for j, a in enumerate(node.attribute):
            if a.type not in _GRAPHS and node.op_type != "Constant":
                made = deepcopy(model)
                del made.graph.node[i].attribute[j]
                yield made
        if len(node.input) > 1:
            made = deepcopy(model)
            del made.graph.node[i].input[-1]
            yield made


_FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16)


def smaller_sizes(model: ModelProto, types: Types) -> Candidates:
    """Yields models in which one size becomes 1 or 2 wherever it occurs: in weights, in types, and
    in constants that hold shapes.
    """
    sizes = {d for t in model.graph.initializer for d in t.dims}
    sizes |= {
        d.dim_value
        for v in [*model.graph.input, *model.graph.output]
        for d in v.type.tensor_type.shape.dim
    }
    for size in sorted((s for s in sizes if s > 1), reverse=True):
        for small in (1, 2, 4):
            if small < size:
                yield _resized(model, size, small)


def _resized(model: ModelProto, size: int, small: int) -> ModelProto:
    made = deepcopy(model)
    for graph in every_graph(made.graph):
        graph.ClearField("value_info")
        for v in [*graph.input, *graph.output]:
            for d in v.type.tensor_type.shape.dim:
                if d.dim_value == size:
                    d.dim_value = small
        for t in _tensors(graph):
            if size in t.dims or t.data_type == TensorProto.INT64:
                array = numpy_helper.to_array(t)
                array = array[
                    tuple(slice(small) if d == size else slice(None) for d in array.shape)
                ]
                if t.data_type == TensorProto.INT64 and array.ndim <= 1:
                    array = np.where(array == size, np.int64(small), array)
                t.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array), t.name))
    return made


def _tensors(graph: GraphProto) -> Iterator[TensorProto]:
    yield from (t for t in graph.initializer if t.data_location != TensorProto.EXTERNAL)
    for n in graph.node:
        yield from (a.t for a in n.attribute if a.type == AttributeProto.TENSOR)


def plainer_numbers(model: ModelProto, types: Types) -> Candidates:
    """Yields models with a floating-point constant of zeros, of ones, or of few digits."""
    plain: list[Callable[[Any], Any]] = [np.zeros_like, np.ones_like, _rounded]
    for i, tensor in enumerate(model.graph.initializer):
        for change in plain[: plainness(tensor)]:
            before = numpy_helper.to_array(tensor)
            after = np.asarray(change(before)).astype(before.dtype)
            if not np.array_equal(before, after):
                made = deepcopy(model)
                made.graph.initializer[i].CopyFrom(numpy_helper.from_array(after, tensor.name))
                yield made


def plainness(tensor: TensorProto) -> int:
    """Returns 0 for zeros and for dtypes other than floats, 1 for ones, 2 for numbers of few
    digits, and 3 for other numbers.
    """
    if tensor.data_type not in _FLOATS:
        return 0
    array = numpy_helper.to_array(tensor)
    if not array.any():
        return 0
    if (array == 1).all():
        return 1
    return 2 if np.array_equal(array, _rounded(array)) else 3


def _rounded(array: Any) -> Any:
    with np.errstate(over="ignore", invalid="ignore"):  # masks contain the largest floats
        return np.round(array, 1).astype(array.dtype)


_MOST_NODES = 400  # with more nodes, single nodes are not tried one by one


def without_words(model: ModelProto, types: Types) -> Candidates:
    """Yields models without metadata, documentation, names of nodes, declared intermediate types
    and training information.
    """

    def strip(made: ModelProto, *, names: bool) -> ModelProto:
        for field in (
            "metadata_props",
            "doc_string",
            "producer_name",
            "producer_version",
            "domain",
            "training_info",
        ):
            made.ClearField(field)
        for graph in every_graph(made.graph):
            for field in ("metadata_props", "doc_string", "value_info", "quantization_annotation"):
                graph.ClearField(field)
        for n in model_nodes(made):
            for field in (
                "metadata_props",
                "doc_string",
                "device_configurations",
                *(("name",) if names else ()),
            ):
                if field in n.DESCRIPTOR.fields_by_name:
                    n.ClearField(field)
        for t in made.graph.initializer:
            t.ClearField("doc_string")
        return made

    yield strip(deepcopy(model), names=True)
    yield strip(deepcopy(model), names=False)


def fewer_outputs(model: ModelProto, types: Types) -> Candidates:
    """Yields models with some of the outputs, down to one."""
    for keep in _subsets(len(model.graph.output)):
        made = deepcopy(model)
        assign(made.graph.output, [v for i, v in enumerate(made.graph.output) if i in keep])
        yield made


def fewer_nodes(model: ModelProto, types: Types) -> Candidates:
    """Yields models with some of the nodes. Values read from removed nodes become inputs, and
    values read by removed nodes become outputs.
    """
    for keep in _subsets(len(model.graph.node)):
        made = _cut(model, keep, types)
        if made is not None:
            yield made


def _subsets(count: int) -> Iterator[set[int]]:
    """Yields parts of range(count) in the order of delta debugging: halves, then everything without
    a quarter, and so on.
    """
    everything = set(range(count))
    parts = 2
    while count > 1 and parts <= max(2, min(count, _MOST_NODES)):
        edges = [count * i // parts for i in range(parts + 1)]
        chunks = [set(range(a, b)) for a, b in itertools.pairwise(edges) if b > a]
        if parts <= 16:
            yield from (c for c in chunks if len(c) < count)
        yield from (everything - c for c in reversed(chunks) if parts > 2 and len(c) < count)
        if parts == min(count, _MOST_NODES):
            return
        parts = min(parts * 2, count, _MOST_NODES)


def _cut(model: ModelProto, keep: set[int], types: Types) -> ModelProto | None:
    made = deepcopy(model)
    graph = made.graph
    nodes = [n for i, n in enumerate(graph.node) if i in keep]
    gone = [n for i, n in enumerate(graph.node) if i not in keep]
    produced = {name for n in nodes for name in n.output if name}
    lost = {name for n in gone for name in n.output if name}
    needed = sorted(set().union(*(reads(n) for n in nodes)) & lost) if nodes else []
    wanted = {name for n in gone for name in reads(n)} | {v.name for v in graph.output}
    if not nodes or any(name not in types for name in needed):
        return None
    outputs = [v for v in graph.output if v.name in produced]
    known = {v.name for v in outputs}
    more = [ValueInfoProto(name=n, type=types.get(n)) for n in sorted(produced & wanted - known)]
    graph.input.extend(ValueInfoProto(name=name, type=types[name]) for name in needed)
    assign(graph.node, nodes)
    assign(graph.output, outputs)
    graph.output.extend(more)
    return made if graph.output else None


STEPS: tuple[tuple[str, Callable[[ModelProto, Types], Candidates]], ...] = (
    ("metadata", without_words),
    ("nodes", fewer_nodes),
    ("outputs", fewer_outputs),
    ("bypass", bypassed),
    ("bodies", opened),
    ("attributes", plainer_attributes),
    ("sizes", smaller_sizes),
    ("numbers", plainer_numbers),
)
