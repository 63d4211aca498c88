"""Small pieces that hostile models are made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def value(
    name: str, shape: Sequence[int | str | None] | None = (2, 3), dtype: int = FLOAT
) -> onnx.ValueInfoProto:
    """A declared value; the shape may lie."""
    return helper.make_tensor_value_info(name, dtype, shape)


def tensor(name: str, data: Any, dtype: Any = None) -> TensorProto:
    """An initializer."""
    return numpy_helper.from_array(np.array(data, dtype), name)


def raw(name: str, dims: Iterable[int], data: bytes = b"", dtype: int = FLOAT) -> TensorProto:
    """An initializer whose bytes need not fit its dims."""
    return TensorProto(name=name, data_type=dtype, dims=list(dims), raw_data=data)


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> NodeProto:
    """A node; names separated by spaces."""
    domain = attributes.pop("domain", "")
    return helper.make_node(
        op, inputs.split(" ") if inputs else [], outputs.split(" "), domain=domain, **attributes
    )


def graph(
    nodes: Iterable[NodeProto],
    inputs: Iterable[onnx.ValueInfoProto] = (),
    outputs: Iterable[onnx.ValueInfoProto] = (),
    weights: Iterable[TensorProto] = (),
) -> GraphProto:
    """A graph, unchecked."""
    return helper.make_graph(list(nodes), "g", list(inputs), list(outputs), list(weights))


def model(
    nodes: Iterable[NodeProto],
    weights: Iterable[TensorProto] = (),
    *,
    x: onnx.ValueInfoProto | None = None,
    y: onnx.ValueInfoProto | None = None,
    functions: Iterable[onnx.FunctionProto] = (),
    opset: int = 17,
    imports: Iterable[tuple[str, int]] = (),
) -> ModelProto:
    """x -> y through `nodes`, float[2, 3] unless said otherwise; nothing is checked."""
    made = graph(nodes, [x or value("x")], [y or value("y", None)], weights)
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(*pair) for pair in imports)]
    return helper.make_model(made, opset_imports=opsets, ir_version=10, functions=list(functions))


def function(
    name: str, nodes: Iterable[NodeProto], attributes: Sequence[str] = (), domain: str = "f"
) -> Any:
    """A local function a -> b."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    return helper.make_function(domain, name, ["a"], ["b"], list(nodes), opsets, list(attributes))


def external(name: str, dims: Iterable[int], dtype: int = FLOAT, **entries: str) -> TensorProto:
    """An initializer in an external file, by the entries given."""
    made = TensorProto(
        name=name, data_type=dtype, dims=list(dims), data_location=TensorProto.EXTERNAL
    )
    for key, text in entries.items():
        made.external_data.add(key=key, value=text)
    return made
