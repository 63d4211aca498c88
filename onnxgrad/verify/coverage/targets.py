"""Finds the nodes of a model that decide something, in its protobuf, and attaches a counter to
each.

A node counts if it depends on the values of inputs. Decisions by constants are the same in every
run. Decisions by sizes alone belong to the sizes that were run.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto

from onnxgrad.ir.protobufs import every_node, graphs_of, scheduled
from onnxgrad.verify.coverage.counters import (
    SIDES,
    Attributes,
    Branches,
    Counter,
    Elements,
    Factor,
    Rows,
    Thresholds,
    Turns,
)

_CONSTANT, _SIZES, _DATA = 0, 1, 2
_DRAWS = {"RandomNormal", "RandomUniform"}  # these have no operand
_COMPARISONS = {"Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal"}
# operators between a comparison and the Where that uses its truth value
_TRUTHS = {"Not", "And", "Or", "Xor", "Cast", "Unsqueeze", "Expand", "Identity", "Reshape"}
# operators between a weight and a product that keep its elements
_MOVES = {
    "Transpose", "Cast", "CastLike", "DequantizeLinear", "Identity", "Reshape", "Unsqueeze",
    "Squeeze",
}  # fmt: skip
_FLOATS = {TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16,
           TensorProto.INT8, TensorProto.UINT8, TensorProto.INT4, TensorProto.UINT4}  # fmt: skip
# (operator, operand that is a weight) -> the operand that multiplies it, and along which axis
_FACTORS: dict[tuple[str, int], Factor] = {
    ("MatMul", 1): (0, -1),
    ("MatMul", 0): (1, -2),
    ("Conv", 1): (0, 1),
    ("ConvTranspose", 1): (0, 1),
    ("Mul", 0): (1, None),
    ("Mul", 1): (0, None),
}
# operator -> (table, index) of each lookup
LOOKUPS = {
    "Gather": ((0, 1),),
    "GatherElements": ((0, 1),),
    "GatherND": ((0, 1),),
    "GatherBlockQuantized": ((0, 1),),
    "EmbedLayerNormalization": ((2, 0), (4, 1)),
}


def axis_of(node: NodeProto) -> int:
    """Returns the axis along which a node looks up rows."""
    known: dict[str, int] = {a.name: a.i for a in node.attribute if a.type == AttributeProto.INT}
    return known.get("gather_axis" if "Block" in node.op_type else "axis", 0)


class Watch:
    """The counters of one node. `left` are those that are not yet complete."""

    def __init__(self, counters: list[Counter]) -> None:
        self.counters, self.left = counters, list(counters)
        self._fresh = [copy.deepcopy(vars(counter)) for counter in counters]

    def see(
        self, attributes: Attributes, operands: Sequence[Any], results: Sequence[Any], turns: int
    ) -> None:
        """Records one run of the node."""
        self.left = [c for c in self.left if not c.see(attributes, operands, results, turns)]

    def forget(self) -> None:
        """Starts counting again."""
        self.restore((self.counters, copy.deepcopy(self._fresh)))

    def state(self) -> tuple[list[Counter], list[dict[str, Any]]]:
        """Returns the state for `restore`."""
        return list(self.left), [copy.deepcopy(vars(counter)) for counter in self.left]

    def restore(self, state: tuple[list[Counter], list[dict[str, Any]]]) -> None:
        """Returns the counters to a `state`."""
        self.left = list(state[0])
        for counter, known in zip(*state):
            vars(counter).update(known)


class Targets:
    """The counters of one model, by the identity of the node. The model must live as long."""

    def __init__(self, model: ModelProto) -> None:
        self.of: dict[int, Watch] = {}
        self._marked: list[tuple[Watch, Any]] = []
        self._kept: list[NodeProto] = []  # protobuf recreates nodes that nothing references
        self._levels: dict[str, int] = {}
        self._makers: dict[str, NodeProto] = {}
        self._weights: dict[str, tuple[str, int]] = {}
        self._scope = ""
        given = {v.name for v in model.graph.input}
        open_defaults = given if model.ir_version >= 4 else set[str]()
        self._levels.update(dict.fromkeys(given, _DATA))
        self._graph(model.graph, open_defaults)
        for function in model.functions:
            self._scope = f"{function.name}: "
            self._levels, self._makers, self._weights = (
                dict.fromkeys(function.input, _DATA),
                {},
                {},
            )
            self._nodes(function.node)

    def counters(self) -> Iterator[Counter]:
        """Yields all counters, in the order of the file."""
        for watch in dict.fromkeys(self.of.values()):
            yield from watch.counters

    def forget(self) -> None:
        """Starts all counters again."""
        for watch in self.of.values():
            watch.forget()

    def mark(self) -> None:
        """Saves the counts for `back`."""
        self._marked = [
            (watch, watch.state()) for watch in dict.fromkeys(w for w in self.of.values() if w.left)
        ]

    def back(self) -> None:
        """Returns to the counts saved by `mark`."""
        for watch, state in self._marked:
            watch.restore(state)

    def follow(self, nodes: Iterable[NodeProto], copies: Sequence[NodeProto]) -> None:
        """Makes copies of a function's nodes count with the original nodes."""
        for node, twin in zip(every_node(nodes), every_node(copies)):
            if id(node) in self.of:
                self.of[id(twin)] = self.of[id(node)]
                self._kept.append(twin)

    def _graph(self, graph: GraphProto, overridable: Iterable[str] = ()) -> None:
        for tensor in graph.initializer:
            self._levels[tensor.name] = _DATA if tensor.name in overridable else _CONSTANT
            elements = math.prod(tensor.dims)
            if elements > 1 and tensor.data_type in _FLOATS:
                self._weights[tensor.name] = (tensor.name, elements)
        self._nodes(graph.node)

    def _nodes(self, nodes: Iterable[NodeProto]) -> None:
        for node in scheduled(list(nodes)):
            level = max((self._level(name) for name in node.input if name), default=_CONSTANT)
            for body in graphs_of(node):
                self._levels.update(dict.fromkeys((v.name for v in body.input), _DATA))
                self._graph(body)
                level = max([level, *map(self._level, [v.name for v in body.output])])
            if node.op_type in ("Shape", "Size"):
                level = min(level, _SIZES)
            elif node.op_type in _DRAWS:
                level = _DATA
            self._levels.update(dict.fromkeys(node.output, level))
            self._makers.update(dict.fromkeys(node.output, node))
            found = list(self._of_node(node))
            if found:
                self.of[id(node)] = Watch(found)
                self._kept.append(node)
            if node.op_type in _MOVES and node.input and node.input[0] in self._weights:
                self._weights[node.output[0]] = self._weights[node.input[0]]

    def _level(self, name: str) -> int:
        return self._levels.get(name, _CONSTANT)

    def _of_node(self, node: NodeProto) -> Iterator[Counter]:
        where = f"{self._scope}{node.op_type} → {node.output[0] if node.output else ''!r}"
        if node.op_type in SIDES and (names := self._bounds(node)):
            yield Thresholds(node.op_type, where, names)
        if node.op_type == "If" and self._level(node.input[0]) != _CONSTANT:
            yield Branches(where)
        if node.op_type in ("Loop", "Scan"):
            yield Turns(where, self._turns(node))
        yield from self._tables(node)
        yield from self._elements(node)

    def _bounds(self, node: NodeProto) -> list[str]:
        """Returns a name for each bound of a node that counts."""
        op, levels = node.op_type, [self._level(name) for name in node.input]
        if op == "Where":
            return [] if levels[0] != _DATA or self._compared(node.input[0]) else ["the condition"]
        if max(levels, default=_CONSTANT) != _DATA:
            return []
        if op in ("Max", "Min"):
            return ["its bound"] if sorted(levels) == [_CONSTANT, _DATA] else []
        if op == "Clip":
            given = [name for name in node.input[1:3] if name]
            attributes = [a.name for a in node.attribute if a.name in ("min", "max")]
            return ["its bound"] * len(given or attributes)
        return ["its bound"] * (2 if op in ("Shrink", "HardSigmoid", "HardSwish") else 1)

    def _compared(self, name: str) -> bool:
        """True if a truth value comes from a comparison, which counts itself."""
        for _ in range(8):
            node = self._makers.get(name)
            if node is None or not node.input:
                return False
            if node.op_type in _COMPARISONS:
                return True
            if node.op_type not in _TRUTHS:
                return False
            name = node.input[0]
        return False

    def _turns(self, node: NodeProto) -> tuple[str, ...]:
        if node.op_type == "Scan":
            return ("1", "many")
        body = next(iter(graphs_of(node)), None)
        if body is None:  # in a function, whose calls pass the body as an attribute
            return ("0", "1", "many")
        going = body.output[0].name if body.output else ""
        while (maker := self._makers.get(going)) is not None and maker.op_type == "Identity":
            going = maker.input[0]
        free = len(body.input) > 1 and going == body.input[1].name
        fixed = all(not n or self._level(n) == _CONSTANT for n in node.input[:2])
        goes_on = free or self._level(going) == _CONSTANT
        return ("any",) if fixed and goes_on else ("0", "1", "many")

    def _tables(self, node: NodeProto) -> Iterator[Counter]:
        for table, index in LOOKUPS.get(node.op_type, ()):
            if len(node.input) <= max(table, index) or not node.input[table]:
                continue
            name = self._weights.get(node.input[table], (node.input[table], 0))[0]
            fixed = self._level(node.input[table]) == _CONSTANT or name in self._weights
            if fixed and self._level(node.input[index]) == _DATA:
                yield Rows(
                    self._scope + name, table, index, axis_of(node), node.op_type == "GatherND"
                )

    def _elements(self, node: NodeProto) -> Iterator[Counter]:
        if node.op_type in _MOVES:
            return
        tables = {table for table, _ in LOOKUPS.get(node.op_type, ())}
        for operand, name in enumerate(node.input):
            if name in self._weights and operand not in tables:
                factor = _FACTORS.get((node.op_type, operand))
                if node.op_type == "Gemm" and operand == 1:
                    across = any(a.name == "transA" and a.i for a in node.attribute)
                    factor = (0, 0 if across else 1)
                weight, size = self._weights[name]
                yield Elements(self._scope + weight, size, operand, factor)
