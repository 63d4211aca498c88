"""Bounds of an input's values: follows the value to its consumers and collects the values that they
accept.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx

from onnxgrad.errors import InputError
from onnxgrad.ir import domains
from onnxgrad.ir.attributes import values_of
from onnxgrad.verify.feeds.data_flow import DataFlow, Key
from onnxgrad.verify.feeds.distinct_indices import NAMES_PLACES, Distinct, distinct_of
from onnxgrad.verify.feeds.texts import SPLITS, known_texts

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
_KINKS = {*domains.KINKED, "PRelu"} - {"Clip", "HardSigmoid", "HardSwish", "Shrink"}
_LARGEST = 3e38  # larger bounds mean no bound: exporters write the largest float32
_COMPARISONS = {*domains.COMPARISONS}


@dataclass
class Uses:
    """The values that the consumers of an input accept."""

    low: float = -math.inf
    high: float = math.inf  # both inclusive
    boolean: bool = False  # a mask: cast to bool, negated, or 1 - x
    count: bool = False
    least_count: int = 1  # 2: an index chooses among so many rows, and indices are 0 and 1
    # values that a consumer singles out, such as the label that a loss ignores
    equal_to: list[float] = field(default_factory=list)
    # values at which a comparison with a constant changes
    thresholds: list[float] = field(default_factory=list)
    words: list[str] = field(default_factory=list)  # texts that a consumer distinguishes
    sentences: bool = False  # a text that is split into words
    # tables whose rows it selects, by scale * x + offset
    tables: list[tuple[str, float, float]] = field(default_factory=list)
    distinct: Distinct | None = None  # places that its elements name at most once
    # sizes of a batch of images whose regions its rows are: image, left, top, right, bottom
    images: tuple[int, int, int] | None = None
    # a mask whose rows count keys: so many must be 1
    least_ones: int = 1
    declared: bool = False  # the model's metadata declare its range

    def within(self, low: float, high: float, scale: float = 1.0, offset: float = 0.0) -> None:
        """Records that low <= scale * x + offset <= high."""
        if scale == 0:
            return
        ends = sorted(((low - offset) / scale, (high - offset) / scale))
        self.low, self.high = max(self.low, ends[0]), min(self.high, ends[1])

    def declare(self, low: float, high: float, name: str) -> None:
        """Narrows the interval to a declared range. Raises InputError if nothing is left."""
        if max(low, self.low) > min(high, self.high):
            raise InputError(
                f"range of {name!r}: it declares {low:g} to {high:g}, but its operators accept "
                f"{self.low:g} to {self.high:g}"
            )
        self.within(low, high)
        self.declared = True

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
    uses = Uses(least_ones=least_ones(flow, name))
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
    if name in flow.ranges:
        uses.declare(*flow.ranges[name], name)
    return uses


# operators between a mask and the numbers of its ones
_COUNTING = {"Add", "Cast", "Identity", "ReduceSum", "Reshape", "Squeeze", "Sub", "Unsqueeze"}
_WHOLE_ROW = 1 << 31


def least_ones(flow: DataFlow, name: str) -> int:
    """Returns how many elements of each row of the mask `name` must be 1: as many as there are
    queries if a GroupQueryAttention counts its keys. onnxruntime leaves the results of queries
    behind the last key unspecified.
    """
    todo: list[Key] = [("", name)]
    least = 1
    for key in todo:  # grows while it is walked
        todo += (formal for formal in flow.formals.get(key, ()) if formal not in todo)
        for node, index, scope in flow.consumers.get(key, ()):
            if (node.op_type, index) == ("GroupQueryAttention", 5):
                queries = flow.size((scope, node.input[0]), 1)
                least = max(least, _WHOLE_ROW if queries is None else queries)
            elif node.op_type in _COUNTING and index == 0:
                todo += (k for o in node.output if (k := (scope, o)) not in todo)
    return least


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
    if (op, index) in _COUNTS:
        uses.count = True
        uses.least_count = max(uses.least_count, 1 + _are_chosen(flow, node, scope))
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
    if place == ("MaxRoiPool", 1):
        count, height, width = (flow.size((scope, node.input[0]), axis) for axis in (0, 2, 3))
        uses.images = (count or 1, height or 1, width or 1)
    if place not in NAMES_PLACES or not node.output:
        return
    data, indices, result = (
        flow.sizes_of((scope, name)) for name in (node.input[0], node.input[index], node.output[0])
    )
    distinct = distinct_of(node.op_type, values_of(node), data, indices, result)
    if distinct is not None:
        uses.distinct = distinct
        uses.within(0, max(*distinct.sizes, *distinct.among, 1) - 1)


def _are_chosen(flow: DataFlow, node: onnx.NodeProto, scope: str) -> bool:
    """Returns whether indices of unknown range choose among the elements that a count makes: rows
    of a scatter into as many zeros as there are graphs, or columns of a OneHot.
    """
    if node.op_type == "OneHot":
        return flow.constant((scope, node.input[0])) is None
    places = {(op, 0) for op, _ in {*_CHOOSE_ALONG, ("GatherND", 1), ("ScatterND", 1)}}
    todo = [name for name in node.output if name]
    for name in todo:
        for reader, index, _ in flow.consumers.get((scope, name), ()):
            if (reader.op_type, index) in places:
                indices = flow.constant((scope, reader.input[1]))
                return indices is None and flow.size((scope, name), 0) is None
            if reader.op_type in _KEEP_ROWS and index == 0 and len(todo) < _MOST:
                todo += reader.output
    return False


# operators between the values that a count makes and what is added to them
_KEEP_ROWS = {"Add", "Cast", "Identity", "Mul"}


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
