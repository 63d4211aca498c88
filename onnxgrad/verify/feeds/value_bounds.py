"""What a model does with its inputs: which values an input may take without leaving what its consumers index.

An input is followed forward through everything that only moves its elements (Reshape, Slice, Cast, ...) and through
additions and products with a constant, so that at each use the value is `scale * x + offset`. Subgraphs share their
parent's names; a local function is followed once for all of its calls.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import onnx

from onnxgrad.errors import Unsupported
from onnxgrad.ir import domains
from onnxgrad.ir.tensor_data import elements
from onnxgrad.verify.feeds.dims import evaluate, required_inputs, shape_of
from onnxgrad.verify.reference.in_child import infer_types
from onnxgrad.verify.reference.order import scheduled

Key: TypeAlias = "tuple[str, str]"  # (function or "" for the graph and its subgraphs, value name)

_SMALL = 4096  # constants up to this many elements are read; larger ones keep only their shape

# operators that move the elements of these operands without changing them (None: of every operand)
_MOVERS: dict[str, tuple[int, ...] | None] = {
    "Cast": (0,), "CastLike": (0,), "Identity": (0,), "Reshape": (0,), "Unsqueeze": (0,), "Squeeze": (0,),
    "Slice": (0,), "Transpose": (0,), "Flatten": (0,), "Expand": (0,), "Tile": (0,), "Concat": None, "Split": (0,),
    "Gather": (0,), "GatherElements": (0,), "GatherND": (0,), "Where": (1, 2), "Pad": (0,), "Dropout": (0,),
    "Max": None, "Min": None, "Clip": (0,), "SequenceConstruct": None, "Trilu": (0,), "Compress": (0,),
    "ScatterND": (0, 2), "ScatterElements": (0, 2), "Optional": (0,), "OptionalGetElement": (0,), "Floor": (0,),
    "Round": (0,), "DepthToSpace": (0,), "SpaceToDepth": (0,), "ReverseSequence": (0,), "SequenceAt": (0,),
    "SplitToSequence": (0,), "Relu": (0,), "ConcatFromSequence": (0,), "ReduceMax": (0,), "ReduceMin": (0,),
    "ArgMax": (), "MemcpyToHost": (0,), "MemcpyFromHost": (0,),
}  # fmt: skip
_REARRANGES = {"Cast", "Expand", "Reshape", "Unsqueeze", "Squeeze", "Identity", "Transpose", "Tile"}
# (operator, operand) -> the interval that keeps the result real and finite
_DOMAINS: dict[tuple[str, int], tuple[float, float]] = {
    ("Log", 0): (0.1, 4.0), ("Sqrt", 0): (0.1, 4.0), ("BatchNormalization", 4): (0.5, 1.5), ("Acosh", 0): (1.1, 4.0),
    ("Acos", 0): (-0.9, 0.9), ("Asin", 0): (-0.9, 0.9), ("Atanh", 0): (-0.9, 0.9), ("Div", 1): (0.5, 2.0),
    ("Reciprocal", 0): (0.5, 2.0), ("Dropout", 1): (0.0, 0.9), ("Resize", 2): (1.0, 2.0), ("Upsample", 1): (1.0, 2.0),
    ("NonMaxSuppression", 3): (0.1, 0.9), ("NonMaxSuppression", 4): (0.1, 0.9),
}  # fmt: skip
# operands that are a count, a size or a position: small positive numbers
_COUNTS = {
    ("Loop", 0), ("Range", 0), ("Range", 1), ("Range", 2), ("Expand", 1), ("ConstantOfShape", 0), ("Tile", 1),
    ("TopK", 1), ("Resize", 3), ("Pad", 1), ("OneHot", 1), ("CenterCropPad", 1), ("HannWindow", 0),
    ("HammingWindow", 0), ("BlackmanWindow", 0), ("SplitToSequence", 1), ("Slice", 4), ("SequenceAt", 1),
    ("Split", 1), ("DFT", 1), ("STFT", 1), ("STFT", 3), ("NonMaxSuppression", 2),
}  # fmt: skip
_COMPARISONS = {"Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal"}


@dataclass
class Uses:
    """What the consumers of an input ask of its values."""

    low: float = -math.inf
    high: float = math.inf  # both inclusive
    boolean: bool = False  # a mask: cast to bool, negated, or 1 - x
    count: bool = False
    equal_to: list[float] = field(default_factory=list)
    thresholds: list[float] = field(default_factory=list)  # values at which a comparison with a constant tips

    def within(self, low: float, high: float, scale: float = 1.0, offset: float = 0.0) -> None:
        """low <= scale * x + offset <= high."""
        if scale == 0:
            return
        ends = sorted(((low - offset) / scale, (high - offset) / scale))
        self.low, self.high = max(self.low, ends[0]), min(self.high, ends[1])

    @property
    def bounded(self) -> bool:
        return self.low > -math.inf or self.high < math.inf


class Tracer:
    """The consumers of every value of one model, with the sizes and small constants that bounds need."""

    def __init__(self, model: onnx.ModelProto, sizes: Mapping[str, int] = {}) -> None:
        self.sizes = sizes
        self.constants: dict[Key, np.ndarray[Any, Any]] = {}
        self.shapes: dict[Key, list[int | str]] = {}
        self.consumers: dict[Key, list[tuple[onnx.NodeProto, int, str]]] = defaultdict(list)
        self.actuals: dict[Key, list[Key]] = defaultdict(list)  # a function's formal input <- what its calls pass
        self.formals: dict[Key, list[Key]] = defaultdict(list)
        self.producers: dict[Key, onnx.NodeProto] = {}
        self.functions = {(f.domain, f.name, f.overload): f for f in model.functions}
        self._collect_shapes(model)
        self._graph(model.graph, "")
        for identity, function in self.functions.items():
            self._nodes(function.node, _scope(identity))

    def at(self, sizes: Mapping[str, int]) -> Tracer:
        """The same model at other sizes of its symbols."""
        other = copy.copy(self)
        other.sizes = sizes
        return other

    def _collect_shapes(self, model: onnx.ModelProto) -> None:
        for value in _inferred(model):
            shape = shape_of(value.name, value.type.tensor_type) if value.type.HasField("tensor_type") else None
            if shape is not None:
                self.shapes["", value.name] = shape

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
            for attribute in node.attribute:
                for graph in (attribute.g, *attribute.graphs) if attribute.type in (5, 10) else ():
                    self._graph(graph, scope)
                    self._wire_body(node, graph, scope)

    def _wire_body(self, node: onnx.NodeProto, graph: onnx.GraphProto, scope: str) -> None:
        """Explicit operands of Loop, Scan and SequenceMap arrive under the names of the body's inputs."""
        if node.op_type not in ("Loop", "Scan", "SequenceMap"):
            return
        for actual, formal in zip(node.input, graph.input, strict=False):
            if actual:
                self.formals[scope, actual].append((scope, formal.name))
                self.actuals[scope, formal.name].append((scope, actual))

    def _constant(self, node: onnx.NodeProto, key: Key) -> None:
        for attribute in node.attribute:
            if attribute.ref_attr_name:  # a function's attribute: another value at each call
                continue
            if attribute.name == "value":
                self.shapes[key] = list(attribute.t.dims)
                self._remember(key, attribute.t)
            elif attribute.name in ("value_int", "value_float"):
                self.constants[key] = np.asarray(onnx.helper.get_attribute_value(attribute))
                self.shapes[key] = []

    def constant(self, key: Key) -> np.ndarray[Any, Any] | None:
        """The small constant that a value is, or that it rearranges."""
        for _ in range(8):  # exporters stack a few Cast, Expand and Unsqueeze on a constant
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

    def scalar(self, key: Key) -> float | None:
        """The value of a constant whose elements are all equal."""
        found = self.constant(key)
        if found is None or found.size == 0 or found.dtype.kind not in "iufb":
            return None
        first = found.reshape(-1)[0]  # `flat` knows 32 axes
        return float(first) if (found == first).all() else None

    def size(self, key: Key, axis: int) -> int | None:
        """The size of a value along an axis (the smallest that a function's calls pass), where it is known."""
        candidates = (
            [self.shapes[key]]
            if key in self.shapes
            else [self.shapes[a] for a in self.actuals.get(key, ()) if a in self.shapes]
        )
        found = []
        for shape in candidates:
            if not -len(shape) <= axis < len(shape):
                continue
            dim = shape[axis]
            known = isinstance(dim, int) or dim in self.sizes
            if known:
                found.append(evaluate(dim, self.sizes))
        return min(found, default=None)

    def uses(self, name: str) -> Uses:
        """Follow the input `name` to everything that limits its values."""
        uses = Uses()
        todo: list[tuple[Key, float, float]] = [(("", name), 1.0, 0.0)]
        seen: set[tuple[Key, float, float]] = set()
        while todo:
            state = todo.pop()
            if state in seen or len(seen) > 20_000:
                continue
            seen.add(state)
            key, scale, offset = state
            todo.extend((formal, scale, offset) for formal in self.formals.get(key, ()))
            for node, index, scope in self.consumers.get(key, ()):
                self._limit(uses, node, index, scope, scale, offset)
                todo.extend(self._onward(node, index, scope, scale, offset))
        return uses

    def _onward(
        self, node: onnx.NodeProto, index: int, scope: str, scale: float, offset: float
    ) -> Iterator[tuple[Key, float, float]]:
        """Where the elements go, and as what affine function of the input."""
        outputs = [(scope, o) for o in node.output if o]
        moved = _MOVERS.get(node.op_type, ())
        if moved is None or index in moved:
            for output in outputs:
                yield output, scale, offset
        elif node.op_type in ("Add", "Sub", "Mul") and len(node.input) == 2:
            other = self.scalar((scope, node.input[1 - index]))
            if other is None:
                return
            if node.op_type == "Mul":
                yield outputs[0], scale * other, offset * other
            elif node.op_type == "Add":
                yield outputs[0], scale, offset + other
            else:
                yield outputs[0], (scale if index == 0 else -scale), (offset - other if index == 0 else other - offset)

    def _limit(self, uses: Uses, node: onnx.NodeProto, index: int, scope: str, scale: float, offset: float) -> None:
        """What this one use asks."""
        op = node.op_type
        count = self._indexed(node, index, scope)
        if count is not None:
            uses.within(0, max(count - 1, 0), scale, offset)
        if (op, index) in _COUNTS:
            uses.count = True
        if (op, index) in _DOMAINS and offset == 0 and scale == 1:
            uses.within(*_DOMAINS[op, index])
        if op == "Equal" and scale == 1:
            self._compared(uses, self.constant((scope, node.input[1 - index])), offset)
        if op in _COMPARISONS and scale != 0:
            known = self.scalar((scope, node.input[1 - index]))
            if known is not None and math.isfinite(known):
                uses.thresholds.append((known - offset) / scale)
        to_bool = op == "Cast" and any(a.name == "to" and a.i == onnx.TensorProto.BOOL for a in node.attribute)
        if to_bool or op in ("Not", "And", "Or") or (op, index) in {("Where", 0), ("If", 0), ("Compress", 1)}:
            uses.boolean = True
        if op == "Sub" and index == 1 and (scale, offset) == (1.0, 0.0) and self.scalar((scope, node.input[0])) == 1:
            uses.boolean = True

    def _compared(self, uses: Uses, known: np.ndarray[Any, Any] | None, offset: float) -> None:
        """Equal to one constant: a switch. To one of many: an encoding, so the values lie among them."""
        if known is None or known.size == 0 or known.dtype.kind not in "iuf":
            return
        low, high = float(known.min()), float(known.max())
        if low == high:
            uses.equal_to.append(low - offset)
        else:
            uses.within(low, high, 1.0, offset)

    def _indexed(self, node: onnx.NodeProto, index: int, scope: str) -> int | None:
        """How many elements this operand chooses among, when it is an index."""
        op = node.op_type
        attributes = {a.name: a for a in node.attribute}
        axis = attributes["axis"].i if "axis" in attributes else 0
        data = (scope, node.input[0])
        if (op, index) in {("Gather", 1), ("GatherElements", 1), ("ScatterElements", 1), ("Scatter", 1)}:
            return self.size(data, axis)
        if (op, index) in {("GatherND", 1), ("ScatterND", 1)}:
            first = attributes["batch_dims"].i if "batch_dims" in attributes else 0
            depth = self.size((scope, node.input[1]), -1) or 1
            found = [self.size(data, axis) for axis in range(first, first + depth)]
            return min((n for n in found if n is not None), default=None)
        if (op, index) == ("OneHot", 0):
            depth_value = self.scalar((scope, node.input[1]))
            return None if depth_value is None else int(depth_value)
        if (op, index) in {("NegativeLogLikelihoodLoss", 1), ("SoftmaxCrossEntropyLoss", 1)}:
            return self.size(data, 1)
        if (op, index) in {("LSTM", 4), ("GRU", 4), ("RNN", 4), ("ReverseSequence", 1)}:
            length = self.size(data, 1 if "time_axis" in attributes and attributes["time_axis"].i == 1 else 0)
            return None if length is None else length + 1
        if op == "EmbedLayerNormalization" and index in (0, 1) and len(node.input) > 2 + 2 * index:
            return self.size((scope, node.input[2 + 2 * index]), 0)
        if (op, index) == ("ArrayFeatureExtractor", 1):
            return self.size(data, -1)
        if (op, index) == ("RoiAlign", 2):
            return self.size(data, 0)
        return None


def _scope(identity: tuple[str, str, str]) -> str:
    return ":".join(identity)


def _inferred(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """Every value whose type shape inference finds, on a copy without large weights (their types are all it needs)."""
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
            graph.input.append(onnx.helper.make_tensor_value_info(init.name, init.data_type, list(init.dims)))
    for node in scheduled(list(model.graph.node)):  # inference reads them in the order of the file
        if node.op_type == "Constant" and node.ByteSize() > 4096:
            value = next((a.t for a in node.attribute if a.name == "value"), None)
            if value is not None:
                graph.input.append(
                    onnx.helper.make_tensor_value_info(node.output[0], value.data_type, list(value.dims))
                )
                continue
        graph.node.append(node)
        domains.respell(graph.node[-1])
    graph.output.extend(model.graph.output)
    graph.value_info.extend(model.graph.value_info)
    # A model that inference rejects may still run: then what it declares is all that is known.
    with contextlib.suppress(Unsupported):
        graph = infer_types(light).graph
    return [*graph.input, *graph.value_info, *graph.output]
