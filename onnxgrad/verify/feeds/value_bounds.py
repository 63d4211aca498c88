"""Bounds of an input's values: follows the value to its consumers and collects the values that they
accept.

Subgraphs share the names of their parent. A local function is analysed once for all of its calls.
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
from onnxgrad.ir.attributes import values_of
from onnxgrad.ir.protobufs import elements, graphs_of, scheduled
from onnxgrad.verify.feeds.dims import evaluate, required_inputs, shape_of
from onnxgrad.verify.feeds.distinct_indices import NAMES_PLACES, Distinct, distinct_of
from onnxgrad.verify.feeds.texts import SPLITS, known_texts
from onnxgrad.verify.reference.client import infer_types

Key: TypeAlias = "tuple[str, str]"  # (function or "" for the graph and its subgraphs, value name)

_SMALL = 4096  # constants up to this many elements are read; larger ones keep only their shape
_REARRANGES = {"Cast", "Expand", "Reshape", "Unsqueeze", "Squeeze", "Identity", "Transpose", "Tile"}


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
            if (
                attribute.ref_attr_name
            ):  # an attribute of the function has another value at each call
                continue
            if attribute.name == "value":
                self.shapes[key] = list(attribute.t.dims)
                self._remember(key, attribute.t)
            elif attribute.name in ("value_int", "value_float"):
                self.constants[key] = np.asarray(onnx.helper.get_attribute_value(attribute))
                self.shapes[key] = []

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


_TREES = {"TreeEnsembleClassifier", "TreeEnsembleRegressor"}
_MOST = 8


def branches(node: onnx.NodeProto) -> list[float]:
    """Returns numbers at which an ensemble of trees branches: the least, the largest, and some
    between.
    """
    if node.op_type not in _TREES:
        return []
    values, modes = (values_of(node).get(name, []) for name in ("nodes_values", "nodes_modes"))
    found = sorted({v for v, mode in zip(values, modes) if mode != b"LEAF" and np.isfinite(v)})
    places = np.linspace(0, len(found) - 1, min(_MOST, len(found))).round().astype(int)
    return [float(found[i]) for i in places]


# operators that move the elements of these operands without changing them (None: of every operand)
_MOVERS: dict[str, tuple[int, ...] | None] = {
    "Cast": (0,), "CastLike": (0,), "Identity": (0,), "Reshape": (0,), "Unsqueeze": (0,),
    "Squeeze": (0,), "Slice": (0,), "Transpose": (0,), "Flatten": (0,), "Expand": (0,),
    "Tile": (0,), "Concat": None, "Split": (0,), "Gather": (0,), "GatherElements": (0,),
    "GatherND": (0,), "Where": (1, 2), "Pad": (0,), "Dropout": (0,), "Max": None, "Min": None,
    "Clip": (0,), "SequenceConstruct": None, "Trilu": (0,), "Compress": (0,), "ScatterND": (0, 2),
    "ScatterElements": (0, 2), "Optional": (0,), "OptionalGetElement": (0,), "Floor": (0,),
    "Round": (0,), "DepthToSpace": (0,), "SpaceToDepth": (0,), "ReverseSequence": (0,),
    "SequenceAt": (0,), "SplitToSequence": (0,), "Relu": (0,), "ConcatFromSequence": (0,),
    "ReduceMax": (0,), "ReduceMin": (0,), "ArgMax": (), "MemcpyToHost": (0,),
    "MemcpyFromHost": (0,), "StringNormalizer": (0,), "StringSplit": (0,), "Tokenizer": (0,),
    "ArrayFeatureExtractor": (0,),
}  # fmt: skip
# (operator, operand) -> the interval that keeps the result real and finite
_DOMAINS: dict[tuple[str, int], tuple[float, float]] = {
    ("Log", 0): (0.1, 4.0), ("Sqrt", 0): (0.1, 4.0), ("BatchNormalization", 4): (0.5, 1.5),
    ("Acosh", 0): (1.1, 4.0), ("Acos", 0): (-0.9, 0.9), ("Asin", 0): (-0.9, 0.9),
    ("Atanh", 0): (-0.9, 0.9), ("Div", 1): (0.5, 2.0), ("Reciprocal", 0): (0.5, 2.0),
    ("Dropout", 1): (0.0, 0.9), ("Resize", 2): (1.0, 2.0), ("Upsample", 1): (1.0, 2.0),
    ("NonMaxSuppression", 3): (0.1, 0.9), ("NonMaxSuppression", 4): (0.1, 0.9),
}  # fmt: skip
# likewise for integers: divisors other than 0, ends of a Slice behind its starts
_WHOLE_DOMAINS = {("Mod", 1): (1, 8), ("Slice", 1): (0, 1), ("Slice", 2): (2, 4)}
# operands that are a count, a size or a position: small positive numbers
_COUNTS = {
    ("Loop", 0), ("Range", 0), ("Range", 1), ("Range", 2), ("Expand", 1), ("ConstantOfShape", 0),
    ("Tile", 1), ("TopK", 1), ("Resize", 3), ("Pad", 1), ("OneHot", 1), ("CenterCropPad", 1),
    ("HannWindow", 0), ("HammingWindow", 0), ("BlackmanWindow", 0), ("SplitToSequence", 1),
    ("Slice", 4), ("SequenceAt", 1), ("Split", 1), ("DFT", 1), ("STFT", 1), ("STFT", 3),
    ("NonMaxSuppression", 2),
}  # fmt: skip
_CONDITIONS = {("Where", 0), ("If", 0), ("Compress", 1)}
# operands that choose elements of operand 0 along the attribute `axis`, or along this axis
_CHOOSE_ALONG = {("Gather", 1), ("GatherElements", 1), ("ScatterElements", 1), ("Scatter", 1)}
_CHOOSE: dict[tuple[str, int], int] = {
    ("NegativeLogLikelihoodLoss", 1): 1,
    ("SoftmaxCrossEntropyLoss", 1): 1,
    ("ArrayFeatureExtractor", 1): -1,
    ("RoiAlign", 2): 0,
}
_LENGTHS = {("LSTM", 4), ("GRU", 4), ("RNN", 4), ("ReverseSequence", 1)}
STRUCTURAL = frozenset(_COUNTS | _CHOOSE_ALONG | {*_CHOOSE} | _LENGTHS)
_KINKS = {"Relu", "LeakyRelu", "PRelu", "Elu", "Celu", "Selu", "Abs", "ThresholdedRelu"}
_LARGEST = 3e38  # larger bounds mean no bound: exporters write the largest float32
_COMPARISONS = {"Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal"}


@dataclass
class Uses:
    """The values that the consumers of an input accept."""

    low: float = -math.inf
    high: float = math.inf  # both inclusive
    boolean: bool = False  # a mask: cast to bool, negated, or 1 - x
    count: bool = False
    # values that a consumer singles out, such as the label that a loss ignores
    equal_to: list[float] = field(default_factory=list)
    # values at which a comparison with a constant changes
    thresholds: list[float] = field(default_factory=list)
    words: list[str] = field(default_factory=list)  # texts that a consumer distinguishes
    sentences: bool = False  # a text that is split into words
    # tables whose rows it selects, by scale * x + offset
    tables: list[tuple[str, float, float]] = field(default_factory=list)
    distinct: Distinct | None = None  # places that its elements name at most once

    def within(self, low: float, high: float, scale: float = 1.0, offset: float = 0.0) -> None:
        """Records that low <= scale * x + offset <= high."""
        if scale == 0:
            return
        ends = sorted(((low - offset) / scale, (high - offset) / scale))
        self.low, self.high = max(self.low, ends[0]), min(self.high, ends[1])

    def among(self, known: np.ndarray[Any, Any] | None, offset: float) -> None:
        """Records a comparison of x + offset with a constant. One number makes the input a switch;
        several make it an encoding, whose values lie among them.
        """
        if known is None or known.size == 0 or known.dtype.kind not in "iuf":
            return
        low, high = float(known.min()), float(known.max())
        if low == high:
            self.equal_to.append(low - offset)
        else:
            self.within(low, high, 1.0, offset)

    @property
    def bounded(self) -> bool:
        return self.low > -math.inf or self.high < math.inf


def uses_of(flow: DataFlow, name: str) -> Uses:
    """Returns the uses of the input `name`, followed to everything that limits its values."""
    uses = Uses()
    todo: list[tuple[Key, float, float]] = [(("", name), 1.0, 0.0)]
    seen: set[tuple[Key, float, float]] = set()
    while todo:
        state = todo.pop()
        if state in seen or len(seen) > 20_000:
            continue
        seen.add(state)
        key, scale, offset = state
        todo.extend((formal, scale, offset) for formal in flow.formals.get(key, ()))
        for node, index, scope in flow.consumers.get(key, ()):
            _limit(flow, uses, node, index, scope, scale, offset)
            _learn(uses, node, scale, offset)
            todo.extend(_onward(flow, node, index, scope, scale, offset))
    return uses


def _onward(
    flow: DataFlow, node: onnx.NodeProto, index: int, scope: str, scale: float, offset: float
) -> Iterator[tuple[Key, float, float]]:
    """Yields the values that receive the elements of an operand, each with the affine function of
    the input.
    """
    outputs = [(scope, o) for o in node.output if o]
    moved = _MOVERS.get(node.op_type, ())
    if moved is None or index in moved:
        for output in outputs:
            yield output, scale, offset
    elif node.op_type in ("Add", "Sub", "Mul") and len(node.input) == 2:
        other = flow.scalar((scope, node.input[1 - index]))
        if other is None:
            return
        if node.op_type == "Mul":
            yield outputs[0], scale * other, offset * other
        elif node.op_type == "Add":
            yield outputs[0], scale, offset + other
        else:
            yield (
                outputs[0],
                (scale if index == 0 else -scale),
                (offset - other if index == 0 else other - offset),
            )


def _learn(uses: Uses, node: onnx.NodeProto, scale: float, offset: float) -> None:
    """Records the texts and branches that an operator tells apart."""
    uses.words += known_texts(node)
    uses.sentences |= node.op_type in SPLITS
    if scale != 0 and (tips := [(v - offset) / scale for v in branches(node)]):
        uses.thresholds += tips
        gap = (max(tips) - min(tips)) / 4 or 1.0
        uses.within(min(tips) - gap, max(tips) + gap)


def _limit(
    flow: DataFlow,
    uses: Uses,
    node: onnx.NodeProto,
    index: int,
    scope: str,
    scale: float,
    offset: float,
) -> None:
    """Narrows `uses` by one use."""
    op = node.op_type
    count = _indexed(flow, node, index, scope)
    if count is not None:
        uses.within(0, max(count - 1, 0), scale, offset)
        uses.tables.append((flow.origin((scope, _table(node, index))), scale, offset))
        if scale == 1:
            uses.equal_to += [a.i - offset for a in node.attribute if a.name == "ignore_index"]
    if (scale, offset) == (1.0, 0.0):
        _limit_unmoved(flow, uses, node, index, scope)
    uses.count |= (op, index) in _COUNTS
    if op == "Equal" and scale == 1:
        uses.among(flow.constant((scope, node.input[1 - index])), offset)
    if scale != 0:
        tips = [(v - offset) / scale for v in _bounds(flow, node, index, scope)]
        # a kink at 0 needs no entry: zeros and both signs always occur
        uses.thresholds += [v for v in tips if v or op in _COMPARISONS]
    if op == "Cast":
        uses.boolean |= any(a.name == "to" and a.i == onnx.TensorProto.BOOL for a in node.attribute)
    elif (op, index, scale, offset) == ("Sub", 1, 1.0, 0.0):
        uses.boolean |= flow.scalar((scope, node.input[0])) == 1
    else:
        uses.boolean |= op in ("Not", "And", "Or") or (op, index) in _CONDITIONS


def _limit_unmoved(
    flow: DataFlow, uses: Uses, node: onnx.NodeProto, index: int, scope: str
) -> None:
    """Narrows `uses` by one use of the input's own elements: to the domain of the operator, and to
    places that differ.
    """
    place = node.op_type, index
    if place in _DOMAINS:
        uses.within(*_DOMAINS[place])
    if place in _WHOLE_DOMAINS:
        uses.within(*_WHOLE_DOMAINS[place])
    if place not in NAMES_PLACES or not node.output:
        return
    data, indices, result = (
        flow.sizes_of((scope, name)) for name in (node.input[0], node.input[index], node.output[0])
    )
    distinct = distinct_of(node.op_type, values_of(node), data, indices, result)
    if distinct is not None:
        uses.distinct = distinct
        uses.within(0, max(*distinct.sizes, *distinct.among, 1) - 1)


def _table(node: onnx.NodeProto, index: int) -> str:
    embeds = node.op_type == "EmbedLayerNormalization"
    return str(node.input[2 + 2 * index if embeds else 0])


def _bounds(flow: DataFlow, node: onnx.NodeProto, index: int, scope: str) -> list[float]:
    """Returns the numbers at which a node behaves differently on this operand."""
    op = node.op_type
    found: list[float | None] = []
    if op in _COMPARISONS or (op in ("Max", "Min") and len(node.input) == 2):
        found = [flow.scalar((scope, node.input[1 - index]))]
    elif op == "Clip" and index == 0:
        found = [flow.scalar((scope, name)) for name in node.input[1:] if name]
        found += [a.f for a in node.attribute if a.name in ("min", "max")]
    elif op in _KINKS and index == 0:
        known = {a.name: a.f for a in node.attribute}
        found = [known.get("alpha", 1.0) if op == "ThresholdedRelu" else 0.0]
    return [v for v in found if v is not None and abs(v) < _LARGEST]


def _indexed(flow: DataFlow, node: onnx.NodeProto, index: int, scope: str) -> int | None:
    """Returns the number of elements that this operand indexes, or None if it is not an index."""
    op = node.op_type
    attributes = {a.name: a.i for a in node.attribute}
    data = (scope, node.input[0])
    if (op, index) in _CHOOSE_ALONG:
        return flow.size(data, attributes.get("axis", 0))
    if (op, index) in _CHOOSE:
        return flow.size(data, _CHOOSE[op, index])
    if (op, index) in {("GatherND", 1), ("ScatterND", 1)}:
        first = attributes.get("batch_dims", 0)
        depth = flow.size((scope, node.input[1]), -1) or 1
        found = [flow.size(data, axis) for axis in range(first, first + depth)]
        return min((n for n in found if n is not None), default=None)
    if (op, index) == ("OneHot", 0):
        depth_value = flow.scalar((scope, node.input[1]))
        return None if depth_value is None else int(depth_value)
    if (op, index) in _LENGTHS:
        length = flow.size(data, int(attributes.get("time_axis") == 1))
        return None if length is None else length + 1
    if op == "EmbedLayerNormalization" and index in (0, 1) and len(node.input) > 2 + 2 * index:
        return flow.size((scope, node.input[2 + 2 * index]), 0)
    return None
