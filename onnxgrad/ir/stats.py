"""Counts of a model: nodes, operators, parameters, bytes."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import onnx
from onnx import ModelProto, NodeProto, TensorProto

from onnxgrad.ir import domains
from onnxgrad.ir.nodes import every_node
from onnxgrad.ir.types import dtype_name
from onnxgrad.ir.weights import tensors


@dataclass(frozen=True)
class Stats:
    """Nodes count those of nested graphs and function bodies too; parameters are the elements of
    all constant tensors; bytes are the file's plus those of its external data.
    """

    nodes: int
    parameters: int
    bytes: int
    operators: Counter[str] = field(default_factory=Counter)
    dtypes: Counter[str] = field(default_factory=Counter)

    def to_dict(self) -> dict[str, Any]:
        """JSON's types."""
        return {
            "nodes": self.nodes,
            "parameters": self.parameters,
            "bytes": self.bytes,
            "operators": dict(sorted(self.operators.items())),
        }


def stats_of(model: ModelProto) -> Stats:
    """The counts of one model; its external data is not read."""
    operators: Counter[str] = Counter()
    for nodes in (model.graph.node, *(f.node for f in model.functions)):
        operators.update(operator(n) for n in every_node(nodes))
    dtypes: Counter[str] = Counter()
    outside: dict[tuple[str, str], int] = {}
    for tensor in tensors(model):
        dtypes[dtype_name(tensor.data_type)] += math.prod(tensor.dims)
        if tensor.data_location == TensorProto.EXTERNAL:
            entries = {e.key: e.value for e in tensor.external_data}
            outside[entries.get("location", ""), entries.get("offset", "0")] = _external_bytes(
                tensor, entries
            )
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


def _external_bytes(tensor: TensorProto, entries: dict[str, str]) -> int:
    if entries.get("length", "").isdecimal():
        return int(entries["length"])
    itemsize: int = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    return itemsize * int(math.prod(tensor.dims))
