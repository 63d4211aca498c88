"""The consumers of every value of a model, and the sizes and small constants that bounds need.

Subgraphs share the names of their parent. A local function is analysed once for all of its calls.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np
import onnx

from onnxgrad.errors import Unsupported
from onnxgrad.ir import domains
from onnxgrad.ir.protobufs import elements, graphs_of, scheduled
from onnxgrad.verify.feeds.declared_ranges import ranges_of
from onnxgrad.verify.feeds.dims import evaluate, required_inputs, shape_of
from onnxgrad.verify.reference.client import infer_types

Key: TypeAlias = "tuple[str, str]"  # (function or "" for the graph and its subgraphs, value name)

_SMALL = 4096  # constants up to this many elements are read; larger ones keep only their shape
_REARRANGES = {*domains.VIEWS, *domains.REPEATS, "Cast", "Transpose"}


class DataFlow:
    """The consumers of every value of one model, and the sizes and small constants that bounds
    need.
    """

    def __init__(self, model: onnx.ModelProto, sizes: Mapping[str, int] = {}) -> None:
        self.sizes = sizes
        self.constants: dict[Key, np.ndarray[Any, Any]] = {}
        self.shapes: dict[Key, list[int | str]] = {}
        self.consumers: dict[Key, list[tuple[onnx.NodeProto, int, str]]] = defaultdict(list)
        # a function's formal input <- the values that its calls pass
        self.actuals: dict[Key, list[Key]] = defaultdict(list)
        self.formals: dict[Key, list[Key]] = defaultdict(list)
        self.producers: dict[Key, onnx.NodeProto] = {}
        self.inputs = required_inputs(model.graph)
        self.ranges = ranges_of(model)
        self.decides: dict[str, bool] = {}  # known results of `decides_sizes`
        self.functions = {(f.domain, f.name, f.overload): f for f in model.functions}
        for value in _inferred(model):
            kind = value.type.tensor_type
            if value.type.HasField("tensor_type") and kind.HasField("shape"):
                self.shapes["", value.name] = shape_of(value.name, kind) or []
        self._graph(model.graph, "")
        for identity, function in self.functions.items():
            self._nodes(function.node, _scope(identity))

    def at(self, sizes: Mapping[str, int]) -> DataFlow:
        """Returns the data flow of the same model at other sizes of its symbols."""
        other = copy.copy(self)
        other.sizes = sizes
        return other

    def _graph(self, graph: onnx.GraphProto, scope: str) -> None:
        for init in graph.initializer:
            self.shapes[scope, init.name] = list(init.dims)
            self._remember((scope, init.name), init)
        self._nodes(graph.node, scope)

    def _remember(self, key: Key, tensor: onnx.TensorProto) -> None:
        if math.prod(tensor.dims) <= _SMALL and tensor.data_location != onnx.TensorProto.EXTERNAL:
            self.constants[key] = elements(tensor)

    def _nodes(self, nodes: Iterable[onnx.NodeProto], scope: str) -> None:
        for node in nodes:
            for index, name in enumerate(node.input):
                if name:
                    self.consumers[scope, name].append((node, index, scope))
            self.producers.update(((scope, name), node) for name in node.output if name)
            if node.op_type == "Constant" and node.output:
                self._constant(node, (scope, node.output[0]))
            identity = (node.domain, node.op_type, node.overload)
            if identity in self.functions:
                for actual, formal in zip(node.input, self.functions[identity].input, strict=False):
                    self.actuals[_scope(identity), formal].append((scope, actual))
                    self.formals[scope, actual].append((_scope(identity), formal))
            for graph in graphs_of(node):
                self._graph(graph, scope)
                self._wire_body(node, graph, scope)

    def _wire_body(self, node: onnx.NodeProto, graph: onnx.GraphProto, scope: str) -> None:
        """Records that operands of Loop, Scan and SequenceMap reach the inputs of the body."""
        if node.op_type not in ("Loop", "Scan", "SequenceMap"):
            return
        for actual, formal in zip(node.input, graph.input, strict=False):
            if actual:
                self.formals[scope, actual].append((scope, formal.name))
                self.actuals[scope, formal.name].append((scope, actual))

    def _constant(self, node: onnx.NodeProto, key: Key) -> None:
        for attribute in node.attribute:
            if attribute.ref_attr_name:  # of the function: it has another value at each call
                continue
            if attribute.name == "value":
                self.shapes[key] = list(attribute.t.dims)
                self._remember(key, attribute.t)
            elif attribute.name in ("value_int", "value_float", "value_ints", "value_floats"):
                value = np.asarray(onnx.helper.get_attribute_value(attribute))
                self.shapes[key] = [*value.shape]
                if value.size <= _SMALL:
                    self.constants[key] = value

    def constant(self, key: Key) -> np.ndarray[Any, Any] | None:
        """Returns the small constant that a value is, or rearranges."""
        for _ in range(8):  # exporters put several Cast, Expand and Unsqueeze after a constant
            if key in self.constants:
                return self.constants[key]
            if key in self.actuals:
                key = self.actuals[key][0]
                continue
            node = self.producers.get(key)
            if node is None or node.op_type not in _REARRANGES or not node.input:
                return None
            key = (key[0], node.input[0])
        return None

    def origin(self, key: Key) -> str:
        """Returns the name of a value where it is computed, outside of the functions that receive
        it.
        """
        for _ in range(8):
            key = self.actuals[key][0] if key in self.actuals else key
        return key[1]

    def scalar(self, key: Key) -> float | None:
        """Returns the value of a constant whose elements are all equal."""
        found = self.constant(key)
        if found is None or found.size == 0 or found.dtype.kind not in "iufb":
            return None
        first = found.reshape(-1)[0]  # `flat` supports 32 axes
        return float(first) if (found == first).all() else None

    def size(self, key: Key, axis: int) -> int | None:
        """Returns the size of a value along an axis, the smallest over all calls of a function, or
        None if unknown.
        """
        candidates = (
            [self.shapes[key]]
            if key in self.shapes
            else [self.shapes[a] for a in self.actuals.get(key, ()) if a in self.shapes]
        )
        dims = [shape[axis] for shape in candidates if -len(shape) <= axis < len(shape)]
        known = (dim for dim in dims if isinstance(dim, int) or dim in self.sizes)
        return min((evaluate(dim, self.sizes) for dim in known), default=None)

    def sizes_of(self, key: Key) -> list[int] | None:
        """Returns the sizes of a value; None if one is unknown."""
        shape = self.shapes.get(key)
        found = None if shape is None else [self.size(key, axis) for axis in range(len(shape))]
        return None if found is None or None in found else [n for n in found if n is not None]


def _scope(identity: tuple[str, str, str]) -> str:
    return ":".join(identity)


def _inferred(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """Returns every value with its type from shape inference, on a copy without large weights, of
    which only the types matter.
    """
    light = onnx.ModelProto(ir_version=max(model.ir_version, 4), producer_name=model.producer_name)
    light.opset_import.extend(model.opset_import)
    light.functions.extend(model.functions)
    graph = light.graph
    graph.name = model.graph.name
    graph.input.extend(required_inputs(model.graph))
    for init in model.graph.initializer:
        if math.prod(init.dims) <= 64 and init.data_location != onnx.TensorProto.EXTERNAL:
            graph.initializer.append(init)
        else:
            graph.input.append(
                onnx.helper.make_tensor_value_info(init.name, init.data_type, list(init.dims))
            )
    for node in scheduled(
        list(model.graph.node)
    ):  # inference reads the nodes in the order of the file
        if node.op_type == "Constant" and node.ByteSize() > 4096:
            value = next((a.t for a in node.attribute if a.name == "value"), None)
            if value is not None:
                graph.input.append(
                    onnx.helper.make_tensor_value_info(
                        node.output[0], value.data_type, list(value.dims)
                    )
                )
                continue
        graph.node.append(node)
        domains.respell(graph.node[-1])
    graph.output.extend(model.graph.output)
    graph.value_info.extend(model.graph.value_info)
    # A model that inference rejects may still run: only its declared types are known then.
    with contextlib.suppress(Unsupported):
        graph = infer_types(light).graph
    return [*graph.input, *graph.value_info, *graph.output]
