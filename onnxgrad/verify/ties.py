"""Exact results at ties: integers and booleans that the last bits of a float decide.

Two legal orders of a sum may end on either side of a threshold. The index or boolean computed from
the sum is then excused, element by element. To find these elements, the original runs in float64
while the deciding floats move up, down and at random, by the difference allowed for a float.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper

from onnxgrad.errors import OnnxgradError
from onnxgrad.ir import domains
from onnxgrad.ir.protobufs import elements, every_graph, scheduled
from onnxgrad.limits import LimitReached
from onnxgrad.verify.output_dependencies import value_types
from onnxgrad.verify.proof_model import TWO_GB, ProofModel
from onnxgrad.verify.random_operators import Builder, tables
from onnxgrad.verify.reference.client import Float64
from onnxgrad.verify.tolerance import Range, Ranges, is_float, widened
from onnxgrad.verify.values import Feeds

# the operands that decide; of two compared operands, the first that can move
_DECIDES: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(
        ("ArgMax", "ArgMin", "TopK", "Hardmax", "Round", "Floor", "Ceil", "Sign"), (0,)
    ),
    **dict.fromkeys(("Cast", "CastLike", "NonZero", "Unique", "Binarizer"), (0,)),
    **dict.fromkeys(("Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Equal"), (0, 1)),
}
# operators that compute before they decide, so that even exact operands can lead to a tie
_COMPUTES: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("QuantizeLinear", "DynamicQuantizeLinear", "Mod"), (0,)),
    **dict.fromkeys(("TreeEnsembleClassifier", "TreeEnsemble", "LinearClassifier"), (0,)),
    **dict.fromkeys(("SVMClassifier",), (0,)),
    "NonMaxSuppression": (1, 0),
}
WHOLE = frozenset({"Round", "Floor", "Ceil", "Sign", "Hardmax"})
# operators that only move or select values
_CARRIERS = frozenset((
    *domains.MOVES, *domains.CASTS, "Abs", "Clip", "Compress", "Concat", "Max", "MaxPool", "Min",
    "Neg", "Pad", "ReduceMax", "ReduceMin", "Relu", "ScatterElements", "ScatterND", "Trilu",
    "Where",
))  # fmt: skip
_SUMS = frozenset(
    {"Add", "Sub", "Mul", "ReduceSum", "Sum", "CumSum", "MatMul"}
)  # exact of integers
_OLDEST = 10  # older opsets cannot filter out infinities
_SMALL = 1 << 16  # elements of the largest constant that is inspected
_RUNS = 16
_SPREAD, _SHIFT, _TURN = (f"onnxgrad.ties.{name}" for name in ("spread", "shift", "turn"))


@dataclass
class Ties:
    """Runs the original with perturbed decisions. The perturbed model is built when the first exact
    result differs.
    """

    original: ProofModel
    seconds: float

    @cached_property
    def _evaluator(self) -> Float64 | None:
        return _doubtful(self.original)

    def widen(self, ranges: Ranges, expected: Feeds, feeds: Feeds, amount: float) -> None:
        """Widens the ranges of exact outputs by their values if floats move by `amount` of the
        largest float beside them. Does nothing if the reference fails.
        """
        if self._evaluator is None:
            return
        legal = dict(ranges)
        self._run(self._evaluator, ranges, expected, feeds, amount)
        for name in _quantized(self.original.proto):
            base = expected.get(name)
            if name in ranges and isinstance(base, np.ndarray) and base.dtype.itemsize == 1:
                own = legal.get(name, Range(base, base))  # a kernel may saturate
                low = np.maximum(ranges[name].low, own.low.astype(np.int16) - 1)
                high = np.minimum(ranges[name].high, own.high.astype(np.int16) + 1)
                ranges[name] = Range(low, high)

    def _run(
        self,
        evaluator: Float64,
        ranges: Ranges,
        expected: Feeds,
        feeds: Feeds,
        amount: float,
    ) -> None:
        for turn in range(_RUNS):
            shift = {0: amount, 1: -amount}.get(turn, 0.0)
            moved = {
                _SPREAD: np.float64(0.0 if shift else amount),
                _SHIFT: np.float64(shift),
                _TURN: np.int64(turn * 509),
            }
            start = time.monotonic()
            try:
                found = evaluator.run(
                    {**feeds, **{k: np.asarray(v) for k, v in moved.items()}}, seconds=self.seconds
                )
            except LimitReached:
                raise
            except OnnxgradError:
                return
            self.seconds -= time.monotonic() - start
            widened(ranges, expected, found)
            if self.seconds <= 0:
                return


def decisions(model: ModelProto) -> list[NodeProto]:
    """Returns the nodes of the main graph whose results the last bit of a float may change."""
    opset = domains.versions(model.opset_import).get("", 1)
    found = _Decisions(copy.deepcopy(model), opset, value_types(model)).made
    return [node for node in model.graph.node if not found.isdisjoint(node.output)]


def _quantized(model: ModelProto) -> set[str]:
    """Returns the outputs that are quantized, and at most moved afterwards."""
    maker = {name: node for node in model.graph.node for name in node.output}
    found = set()
    for value in model.graph.output:
        node, seen = maker.get(value.name), 0
        while node is not None and node.op_type in _CARRIERS and node.input and seen < len(maker):
            node, seen = maker.get(node.input[0]), seen + 1
        if node is not None and node.op_type.startswith(("Quantize", "DynamicQuantize", "QLinear")):
            found.add(value.name)
    return found


def _doubtful(original: ProofModel) -> Float64 | None:
    """Returns the original with movable decisions; None if no decision can be moved."""
    opset = domains.versions(original.proto.opset_import).get("", 1)
    if opset < _OLDEST or original.proto.ByteSize() > TWO_GB:
        return None
    proto = copy.deepcopy(original.weights())
    found = _Decisions(proto, opset, value_types(proto))
    if not found.count:
        return None
    for name, code in ((_SPREAD, 1), (_SHIFT, 1), (_TURN, 7)):
        proto.graph.input.append(helper.make_tensor_value_info(name, code, []))
    nodes = [*tables(), *proto.graph.node]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    return Float64(proto) if proto.ByteSize() <= TWO_GB else None


class _Decisions:
    """Inserts a perturbation before every decision in a model's graphs."""

    def __init__(self, proto: ModelProto, opset: int, types: Mapping[str, int]) -> None:
        self.opset = opset
        self.types = types
        self.count = 0
        self.made: set[str] = set()  # results of decisions
        # values without any rounding error; and whole numbers, exact or rounded
        self.exact = {v.name for v in proto.graph.input}
        self.whole: set[str] = {""}
        for graph in every_graph(proto.graph):
            self._constants(graph)
        self._graph(proto.graph)

    def _constants(self, graph: GraphProto) -> None:
        for tensor in graph.initializer:
            self._constant(tensor.name, tensor)
        for node in graph.node:
            for a in node.attribute if node.op_type == "Constant" else ():
                if a.name == "value":
                    self._constant(node.output[0], a.t)
                else:
                    self.exact.add(node.output[0])

    def _constant(self, name: str, tensor: TensorProto) -> None:
        self.exact.add(name)
        if np.prod(tensor.dims) <= _SMALL and tensor.data_type != TensorProto.STRING:
            values = elements(tensor).astype(np.float64)
            if (values == np.round(values)).all():
                self.whole.add(name)

    def _graph(self, graph: GraphProto) -> None:
        nodes: list[NodeProto] = []
        for node in scheduled(list(graph.node)):
            for inner in (a.g for a in node.attribute if a.HasField("g")):
                self._graph(inner)
            moved = copy.deepcopy(node)
            nodes += [*self._before(moved), moved]
            self._note(node)
        del graph.node[:]
        graph.node.extend(nodes)

    def _is_float(self, name: str) -> bool:
        code = self.types.get(name, 0)
        return bool(code) and is_float(np.zeros(0, helper.tensor_dtype_to_np_dtype(code)))

    def _note(self, node: NodeProto) -> None:
        """Records which results of a node are exact or whole."""
        exact, whole = (
            all(name in known for name in node.input if self._is_float(name))
            for known in (self.exact, self.whole)
        )
        moves = node.op_type in _CARRIERS
        for name in node.output:
            if not self._is_float(name):
                continue
            if (moves or node.op_type in WHOLE) and exact:
                self.exact.add(name)
            if node.op_type in WHOLE or ((moves or node.op_type in _SUMS) and whole):
                self.whole.add(name)

    def _before(self, node: NodeProto) -> list[NodeProto]:
        """Returns nodes that move the float by which a node decides; none if the float is exact."""
        computes = node.op_type in _COMPUTES
        places = (_COMPUTES if computes else _DECIDES).get(node.op_type, ())
        if node.op_type in ("Cast", "CastLike") and self._is_float(node.output[0]):
            return []
        known = self.whole if computes else self.whole | self.exact
        for place in places:
            x = node.input[place] if place < len(node.input) else ""
            if self._is_float(x) and (x not in known or computes):
                beside = [n for i in places for n in node.input[i : i + 1] if self._is_float(n)]
                node.input[place], nodes = self._moved(x, beside)
                self.made.update(filter(None, node.output))
                return nodes
        return []

    def _moved(self, x: str, beside: list[str]) -> tuple[str, list[NodeProto]]:
        """Adds nodes for x + (a sign * spread + shift) * the largest finite magnitude beside x."""
        self.count += 1
        b = Builder(x, f"ties.{self.count}", self.opset)
        zero = b.floats(0.0)
        scale = zero
        for name in beside:
            bad = b("Or", b("IsNaN", name), b("IsInf", name))
            most = b("ReduceMax", b("Where", bad, zero, b("Abs", name)), keepdims=0)
            scale = b("Max", scale, most)
        signs = b("Sign", b("Sub", b.like("uniform", x, _TURN), b.floats(0.5)))
        by = b("Add", b("Mul", signs, _SPREAD), _SHIFT)
        return b("Add", x, b("Mul", by, scale)), b.nodes
