"""What each output of a model is computed from: the float types on its paths, and whatever else is
marked at values and nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import onnx
from onnx import AttributeProto, FunctionProto, NodeProto, TensorProto

from onnxgrad.errors import OnnxgradError
from onnxgrad.ir.protobufs import every_graph, every_node
from onnxgrad.verify.feeds.dims import tensor_types
from onnxgrad.verify.reference.in_child import infer_types
from onnxgrad.verify.reference.order import reads, scheduled
from onnxgrad.verify.running.model_source import TWO_GB

_TYPES = frozenset({"to", "dtype", "output_dtype"})  # attributes that are element types
_FLOATS = {
    code: onnx.helper.tensor_dtype_to_np_dtype(code).name
    for code in TensorProto.DataType.values()
    if code and "float" in TensorProto.DataType.Name(code).lower()
} | {TensorProto.DOUBLE: "float64"}

Key = tuple[str, str, str]  # of a function


@dataclass(frozen=True)
class Marks:
    """Bits at the things of a model: at top-level values by name, at nodes by their first output
    (nested ones as well) and at functions, whose calls have them.
    """

    values: Mapping[str, int] = field(default_factory=dict)
    node: Callable[[NodeProto], int] = lambda node: 0
    functions: Mapping[Key, int] = field(default_factory=dict)


def gathered(model: onnx.ModelProto, marks: Marks) -> dict[str, int]:
    """The bits on all paths to each output, in one walk."""
    functions = {key_of(f): f for f in model.functions}
    calls: dict[Key, int] = {}

    def of_call(key: Key) -> int:
        if key in functions and key not in calls:
            calls[key] = marks.functions.get(key, 0)  # no function calls itself
            calls[key] |= of_nodes(functions[key].node)
        return calls.get(key, 0)

    def of_nodes(nodes: Iterable[NodeProto]) -> int:
        found = 0
        for node in every_node(nodes):
            found |= marks.node(node) | of_call((node.domain, node.op_type, node.overload))
        return found

    found = dict(marks.values)
    for node in scheduled(list(model.graph.node)):
        bits = of_nodes([node])
        for name in reads(node):
            bits |= found.get(name, 0)
        for name in node.output:
            found[name] = bits
    return {v.name: found.get(v.name, 0) for v in model.graph.output}


def key_of(function: FunctionProto) -> Key:
    """What calls name a function by."""
    return function.domain, function.name, function.overload


def float_types(model: onnx.ModelProto) -> dict[str, set[str]]:
    """The float dtypes, by numpy's names, in which each output is computed: those of the inputs and
    of casts on its paths. A weight that is stored in another type is exact.
    """
    values: dict[str, int] = {}
    for value in model.graph.input:
        for tensor in tensor_types(value.type):
            values[value.name] = values.get(value.name, 0) | _bit(tensor.elem_type)
    found = gathered(model, Marks(values, _named_types))
    return {
        name: {dtype for code, dtype in _FLOATS.items() if bits & (1 << code)}
        for name, bits in found.items()
    }


def _bit(code: int) -> int:
    return 1 << code if code in _FLOATS else 0


def _named_types(node: NodeProto) -> int:
    found = 0
    for attribute in node.attribute:
        if attribute.type == AttributeProto.INT and attribute.name in _TYPES:
            found |= _bit(attribute.i)
    return found


def value_types(model: onnx.ModelProto) -> dict[str, int]:
    """The element types of values, nested ones too, as far as the file or onnx says."""
    try:
        typed = infer_types(model) if model.ByteSize() <= TWO_GB else model
    except OnnxgradError:
        typed = model
    found: dict[str, int] = {}
    for graph in every_graph(typed.graph):
        for v in (*graph.value_info, *graph.input, *graph.output):
            found[v.name] = v.type.tensor_type.elem_type
        found |= {t.name: t.data_type for t in graph.initializer}
    return found
