"""Model parts that onnx.version_converter drops or breaks: Scans with a batch axis, sparse tensors,
names of nested graphs.
"""

from __future__ import annotations

from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    SparseTensorProto,
    TypeProto,
    ValueInfoProto,
    helper,
)

from onnxgrad.errors import InputError
from onnxgrad.ir import domains
from onnxgrad.ir.program import Program
from onnxgrad.ir.protobufs import every_graph, graphs_of

# ---- Scans of opset 8, which run once for each member of a batch ---------------------------------
#
# onnx.version_converter drops the batch axis, also from declared inputs and outputs. Its result for
# such a Scan becomes the body of a Scan along the first axis of all operands. The declarations are
# restored.

BATCHES_UNTIL = 8  # the last opset whose Scan has a batch axis


def refuse_batched_scans(program: Program) -> None:
    """Raises InputError if a Scan has lengths for its sequences, or stands in a nested graph or
    function.
    """
    for block in program.blocks():
        for b in [b for b in block.bindings if b.is_op("Scan")]:
            where = f"'{b}' of opset {program.opset} has a batch axis"
            if block is not program.main:
                raise InputError(
                    f"{where} inside another graph: export the model again at a newer opset"
                )
            if b.inputs[0] is not None:
                raise InputError(
                    f"{where} and lengths for its sequences: export the model again "
                    "at a newer opset"
                )


def restore_batches(source: ModelProto, converted: ModelProto) -> None:
    """Restores the batch axes that the conversion of `source` dropped."""
    before = {node.output[0]: node for node in source.graph.node if node.op_type == "Scan"}
    if not before:
        return
    for node in converted.graph.node:
        if node.op_type == "Scan" and node.output[0] in before:
            node.CopyFrom(_over_batch(node, before[node.output[0]]))
    del converted.graph.value_info[:]
    for values, declared in (
        (converted.graph.input, source.graph.input),
        (converted.graph.output, source.graph.output),
    ):
        types = {v.name: v.type for v in declared}
        for v in values:
            v.type.CopyFrom(types[v.name])


def _over_batch(node: NodeProto, old: NodeProto) -> NodeProto:
    attributes = {a.name: a for a in node.attribute}
    body: GraphProto = attributes["body"].g
    scanned = attributes["num_scan_inputs"].i
    states = len(node.input) - scanned
    stem = node.output[0]
    inner = helper.make_node(
        "Scan",
        [f"{stem}_member_{i}" for i in range(len(node.input))],
        [f"{stem}_of_member_{i}" for i in range(len(body.output))],
        body=body,
        num_scan_inputs=scanned,
        scan_input_directions=next((a.ints for a in old.attribute if a.name == "directions"), None),
    )
    types, results = (
        [v.type if i < states else _series(v.type) for i, v in enumerate(values)]
        for values in (body.input, body.output)
    )
    outer = helper.make_graph(
        [inner], f"{stem}_batch", _values(inner.input, types), _values(inner.output, results)
    )
    return helper.make_node(
        "Scan",
        list(node.input),
        list(node.output),
        name=node.name,
        body=outer,
        num_scan_inputs=len(node.input),
    )


def _series(element: TypeProto) -> TypeProto:
    """Returns the type of a scanned value: `element` with one more axis of unknown size."""
    shape = element.tensor_type.shape if element.tensor_type.HasField("shape") else None
    dims = (
        None if shape is None else [None, *(d.dim_value or d.dim_param or None for d in shape.dim)]
    )
    return helper.make_tensor_type_proto(element.tensor_type.elem_type, dims)


def _values(names: list[str], types: list[TypeProto]) -> list[ValueInfoProto]:
    return [ValueInfoProto(name=n, type=t) for n, t in zip(names, types, strict=True)]


# ---- sparse tensors: onnx.version_converter does not know them; no opset changed them ------------


# sparse parts by number; the operator that stands for a part bears its number
Taken = dict[str, NodeProto | SparseTensorProto]

_SPARSE = (AttributeProto.SPARSE_TENSOR, AttributeProto.SPARSE_TENSORS)


def take_sparse(graph: GraphProto, domain: str) -> Taken:
    """Removes the sparse initializers, Constants and attributes from the graph and from nested
    graphs. `put_back_sparse` is the inverse.

    An operator of `domain` without operands replaces each initializer or Constant; its result has
    the dense type. An initializer that is also an input leaves only the input. A numbered attribute
    replaces the sparse attributes of a call.
    """
    taken: Taken = {}
    # nested graphs first: the node that holds them is copied later
    for inner in reversed(list(every_graph(graph))):
        declared = {v.name for v in (*inner.input, *inner.output, *inner.value_info)}
        inputs = {v.name for v in inner.input}
        stands, nodes = [], list(inner.node)
        for tensor in inner.sparse_initializer:
            number = f"Sparse{len(taken)}"
            taken[number] = SparseTensorProto()
            taken[number].CopyFrom(tensor)
            if tensor.values.name not in inputs:
                stands.append(_stand(inner, number, tensor.values.name, tensor, domain, declared))
        del inner.sparse_initializer[:]
        for node in nodes:
            if _is_sparse_constant(node):
                number = f"Sparse{len(taken)}"
                kept = taken[number] = NodeProto()
                kept.CopyFrom(node)
                value = kept.attribute[0].sparse_tensor
                node.CopyFrom(_stand(inner, number, kept.output[0], value, domain, declared))
            elif given := [a for a in node.attribute if a.type in _SPARSE and not a.ref_attr_name]:
                number = f"Sparse{len(taken)}"
                kept = taken[number] = NodeProto(attribute=given)
                for a in given:
                    node.attribute.remove(a)
                node.attribute.add(name=domain, type=AttributeProto.STRING, s=number.encode())
        if stands:
            del inner.node[:]
            inner.node.extend([*stands, *nodes])
    return taken


def put_back_sparse(taken: Taken, graph: GraphProto, domain: str) -> None:
    """Restores in the converted graph what `take_sparse` removed, under the names that the values
    have there.
    """
    waiting = dict(taken)
    for inner in reversed(list(every_graph(graph))):
        for node in [n for n in inner.node if n.domain == domain and n.op_type in taken]:
            original, name = waiting.pop(node.op_type), node.output[0]
            if isinstance(original, NodeProto):
                node.CopyFrom(original)
                node.output[0] = name
            else:
                inner.node.remove(node)
                inner.sparse_initializer.append(original)
                inner.sparse_initializer[-1].values.name = name
        for node in inner.node:
            for a in [a for a in node.attribute if a.name == domain]:
                node.attribute.remove(a)
                node.attribute.extend(taken[a.s.decode()].attribute)
    graph.sparse_initializer.extend(t for t in waiting.values() if isinstance(t, SparseTensorProto))


def _is_sparse_constant(node: NodeProto) -> bool:
    if node.op_type != "Constant" or not domains.is_default(node.domain):
        return False
    return [a.name for a in node.attribute if not a.ref_attr_name] == ["sparse_value"]


def _stand(
    graph: GraphProto,
    number: str,
    name: str,
    tensor: SparseTensorProto,
    domain: str,
    declared: set[str],
) -> NodeProto:
    """Returns the operator that stands for `tensor`, and declares its type in `graph`.

    `name` is the tensor's name in `graph`.
    """
    if name not in declared:
        graph.value_info.append(
            helper.make_tensor_value_info(name, tensor.values.data_type, list(tensor.dims))
        )
    return helper.make_node(number, [], [name], domain=domain)


# ---- names: onnxruntime refuses a nested graph that defines a name of an outer graph -------------


def separate_names(graph: GraphProto) -> None:
    """Renames values of nested graphs in place if an outer graph has a value of the same name."""
    taken = {name for g in every_graph(graph) for name in _defined(g)}
    work = [(graph, _defined(graph))]
    while work:
        outer, visible = work.pop()
        for inner in [g for node in outer.node for g in graphs_of(node)]:
            for name in sorted({n for node in inner.node for n in node.output if n} & visible):
                fresh = name
                while fresh in taken:
                    fresh += "_inner"
                taken.add(fresh)
                _rename(inner, name, fresh)
            work.append((inner, visible | _defined(inner)))


def _defined(graph: GraphProto) -> set[str]:
    own = {v.name for v in graph.input} | {t.name for t in graph.initializer}
    return own | {name for node in graph.node for name in node.output if name}


def _rename(graph: GraphProto, old: str, new: str) -> None:
    for inner in every_graph(graph):
        for node in inner.node:
            node.input[:] = [new if name == old else name for name in node.input]
            node.output[:] = [new if name == old else name for name in node.output]
        for v in (*inner.output, *inner.value_info):
            if v.name == old:
                v.name = new
