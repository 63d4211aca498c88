"""Scan of opset 8, which runs once for each member of a batch, as the newer Scan over that batch.

onnx.version_converter drops the batch axis, from declared inputs and outputs too: what it makes of
such a Scan is the body of a Scan along the first axis of all operands, and the declarations are put
back.
"""

from __future__ import annotations

from typing import Any

from onnx import GraphProto, ModelProto, NodeProto, TypeProto, ValueInfoProto, helper

from onnxgrad.errors import InputError
from onnxgrad.ir.program import Program

BATCHES_UNTIL = 8  # the last opset whose Scan has a batch axis


def refuse_batched_scans(program: Program) -> None:
    """Raises InputError for a Scan with lengths for its sequences, and for one inside another
    graph or function.
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
    """Put the batches back that the conversion of `source` dropped."""
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
    options: dict[str, Any] = {"body": body, "num_scan_inputs": scanned}
    directions = next((list(a.ints) for a in old.attribute if a.name == "directions"), None)
    if directions is not None:
        options["scan_input_directions"] = directions
    inner = helper.make_node(
        "Scan",
        [f"{stem}_member_{i}" for i in range(len(node.input))],
        [f"{stem}_of_member_{i}" for i in range(len(body.output))],
        **options,
    )
    types = [v.type if i < states else _series(v.type) for i, v in enumerate(body.input)]
    results = [v.type if i < states else _series(v.type) for i, v in enumerate(body.output)]
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
    """The type of what is scanned: one axis of unknown size more."""
    shape = element.tensor_type.shape if element.tensor_type.HasField("shape") else None
    dims = (
        None if shape is None else [None, *(d.dim_value or d.dim_param or None for d in shape.dim)]
    )
    return helper.make_tensor_type_proto(element.tensor_type.elem_type, dims)


def _values(names: list[str], types: list[TypeProto]) -> list[ValueInfoProto]:
    return [ValueInfoProto(name=n, type=t) for n, t in zip(names, types, strict=True)]
