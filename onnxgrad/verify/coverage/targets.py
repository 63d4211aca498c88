"""Finds the nodes of a model that decide something, in its protobuf, and attaches a counter to
each.

A node counts if it depends on the values of inputs. Decisions by constants are the same in every
run. Decisions by sizes alone belong to the sizes that were run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto

from onnxgrad.ir import domains
from onnxgrad.ir.attributes import values_of
from onnxgrad.ir.protobufs import elements, every_node, graphs_of, model_nodes, scheduled
from onnxgrad.verify.coverage.counters import (
    CHOSEN,
    Array,
    Attributes,
    Branches,
    Chosen,
    Counter,
    Elements,
    Factor,
    Rows,
    Turns,
)
from onnxgrad.verify.coverage.integers import CAST_BACK
from onnxgrad.verify.coverage.sides import COMPARED, EACH, SIDES
from onnxgrad.verify.coverage.thresholds import KEYS, Keys, Slices, Thresholds
from onnxgrad.verify.coverage.trees import TREES, Trees

_CONSTANT, _SIZES, _DATA = 0, 1, 2
_DRAWS = {"RandomNormal", "RandomUniform"}  # these have no operand
_COMPARISONS = {*domains.COMPARISONS}
# operators between a comparison and the Where that uses its truth value
_TRUTHS = {*domains.LOGICAL, "Not", "Cast", "Unsqueeze", "Expand", "Identity", "Reshape"}
# operators between a weight and a product that keep its elements
_MOVES = {*domains.VIEWS, *domains.CASTS, "DequantizeLinear", "Transpose"}
_FLOATS = {TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16,
           TensorProto.INT8, TensorProto.UINT8, TensorProto.INT4, TensorProto.UINT4}  # fmt: skip
# (operator, operand that is a weight) -> the operand that multiplies it
_FACTORS: dict[tuple[str, int], Factor] = {
    ("MatMul", 1): Factor(0, -1, -2),
    ("MatMul", 0): Factor(1, -2, -1),
    ("Conv", 1): Factor(0, 1, 1),
    ("ConvTranspose", 1): Factor(0, 1, 0),
}
# operators that compare sizes with constants
_SIZED = {*_COMPARISONS, "Max", "Min", "Clip", "Mod"}
# operators that pass the sizes of a Shape on as they are
_VIEWS = {*domains.VIEWS, "Cast", "Concat", "Expand", "Gather", "Range", "Slice"}
_NARROW = {
    TensorProto.BOOL, TensorProto.FLOAT16, TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E4M3FNUZ,
    TensorProto.FLOAT8E5M2, TensorProto.FLOAT8E5M2FNUZ, TensorProto.INT4, TensorProto.INT8,
    TensorProto.INT16, TensorProto.INT32, TensorProto.INT64, TensorProto.UINT4, TensorProto.UINT8,
    TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64,
}  # fmt: skip
# operands that are positions and sizes, which no cast narrows
_POSITIONS = {
    ("Gather", 1), ("GatherElements", 1), ("GatherND", 1), ("Reshape", 1), ("Expand", 1),
    ("Slice", 1), ("Slice", 2), ("Slice", 3), ("Slice", 4), ("Tile", 1), ("ConstantOfShape", 0),
    ("Pad", 1), ("TopK", 1), ("ScatterND", 1), ("ScatterElements", 1), ("Range", 0), ("Range", 1),
    ("Range", 2), ("Unsqueeze", 1), ("Split", 1),
}  # fmt: skip
# operator -> (table, index) of each lookup
LOOKUPS = {
    "Gather": ((0, 1),),
    "GatherElements": ((0, 1),),
    "GatherND": ((0, 1),),
    "GatherBlockQuantized": ((0, 1),),
    "EmbedLayerNormalization": ((2, 0), (4, 1)),
    "RotaryEmbedding": ((1, 3), (2, 3)),  # of onnx; that of onnxruntime has its tables last
}


def axis_of(node: NodeProto) -> int:
    """Returns the axis along which a node looks up rows."""
    if node.op_type == "RotaryEmbedding":
        return 0
    known: dict[str, int] = {a.name: a.i for a in node.attribute if a.type == AttributeProto.INT}
    return known.get("gather_axis" if "Block" in node.op_type else "axis", 0)


class Watch:
    """The counters of one node. `left` are those that are not yet complete."""

    def __init__(self, counters: list[Counter]) -> None:
        self.counters, self.left = counters, list(counters)
        self._fresh = [dict(vars(counter)) for counter in counters]

    def see(
        self, attributes: Attributes, operands: Sequence[Any], results: Sequence[Any], turns: int
    ) -> None:
        """Records one run of the node."""
        self.left = [c for c in self.left if not c.see(attributes, operands, results, turns)]

    def forget(self) -> None:
        """Starts counting again."""
        self.restore((self.counters, self._fresh))

    def state(self) -> tuple[list[Counter], list[dict[str, Any]]]:
        """Returns the state for `restore`."""
        return list(self.left), [dict(vars(counter)) for counter in self.left]

    def restore(self, state: tuple[list[Counter], list[dict[str, Any]]]) -> None:
        """Returns the counters to a `state`."""
        self.left = list(state[0])
        for counter, known in zip(*state):
            vars(counter).update(known)


class Targets:
    """The counters of one model, by the identity of the node. The model must live as long."""

    def __init__(self, model: ModelProto) -> None:
        self.of: dict[int, Watch] = {}
        self._marked: list[list[tuple[Watch, Any]]] = []  # one list for each `mark`
        self._kept: list[NodeProto] = []  # protobuf recreates nodes that nothing references
        self._levels: dict[str, int] = {}
        self._makers: dict[str, NodeProto] = {}
        self._weights: dict[str, tuple[str, int]] = {}
        self._tensors: dict[str, TensorProto] = {}
        self._scope = self._function = ""
        reads = [(n.op_type, i, x) for n in model_nodes(model) for i, x in enumerate(n.input)]
        others = {name for op, i, name in reads if (op, i) not in _POSITIONS}
        outputs = {v.name for v in model.graph.output}
        self._positions = {name for _, _, name in reads} - others - outputs
        self._cast = {name for op, _, name in reads if op == "Cast"}
        given = {v.name for v in model.graph.input}
        open_defaults = given if model.ir_version >= 4 else set[str]()
        self._levels.update(dict.fromkeys(given, _DATA))
        self._graph(model.graph, open_defaults)
        for function in model.functions:
            self._scope = f"{function.name}: "
            self._function = ":".join((function.domain, function.name, function.overload))
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
        """Saves the counts until the next `back` or `keep`."""
        self._marked.append(
            [
                (watch, watch.state())
                for watch in dict.fromkeys(w for w in self.of.values() if w.left)
            ]
        )

    def back(self) -> None:
        """Returns to the counts saved by the last `mark`."""
        for watch, state in self._marked.pop() if self._marked else ():
            watch.restore(state)

    def keep(self) -> None:
        """Forgets the counts saved by the last `mark`."""
        del self._marked[-1:]

    def follow(self, nodes: Iterable[NodeProto], copies: Sequence[NodeProto]) -> None:
        """Makes copies of a function's nodes count with the original nodes."""
        for node, twin in zip(every_node(nodes), every_node(copies)):
            if id(node) in self.of:
                self.of[id(twin)] = self.of[id(node)]
                self._kept.append(twin)

    def _graph(self, graph: GraphProto, overridable: Iterable[str] = ()) -> None:
        for tensor in graph.initializer:
            self._levels[tensor.name] = _DATA if tensor.name in overridable else _CONSTANT
            self._tensors[tensor.name] = tensor
            size = math.prod(tensor.dims)
            if size > 1 and tensor.data_type in _FLOATS:
                self._weights[tensor.name] = (tensor.name, size)
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
        op, inputs, scope = node.op_type, list(node.input), self._function
        count, sized = self._bounds(node) if op in SIDES else (0, False)
        if count:
            form = CAST_BACK if op == "Cast" and node.output[0] in self._cast else op
            if op in _COMPARISONS and _CONSTANT in map(self._level, inputs):
                form = EACH.get(op, op)
            least = None if not sized else 1 if self._is_size(inputs) else -np.inf
            yield Thresholds(form, where, inputs, count, least, scope)
        first = self._level(inputs[0]) if inputs else _CONSTANT
        if op in KEYS and first == _DATA:
            yield from self._keys(node, where)
        if op in TREES and first == _DATA:
            yield Trees(where, inputs[0], scope)
        if op in ("Slice", "Trilu") and first != _CONSTANT:
            fixed = [i for i in (1, 2) if len(inputs) <= i or self._level(inputs[i]) == _CONSTANT]
            yield Slices(where, inputs[0], fixed, scope)
        if op == "If" and first != _CONSTANT:
            yield Branches(where)
        if op in ("Loop", "Scan"):
            yield Turns(where, self._turns(node))
        yield from self._tables(node)
        yield from self._elements(node)

    def _bounds(self, node: NodeProto) -> tuple[int, bool]:
        """Returns the number of a node's bounds, and whether they are bounds of sizes."""
        op, levels = node.op_type, [self._level(name) for name in node.input]
        if op == "Where" and self._compared(node.input[0]):
            return 0, False
        if op == "Cast":
            to = next((a.i for a in node.attribute if a.name == "to"), 0)
            if to not in _NARROW or node.output[0] in self._positions:
                return 0, False
        compared = [levels[i] for i in COMPARED.get(op, range(len(levels))) if i < len(levels)]
        level = max(compared, default=_CONSTANT)
        if op in ("Max", "Min") and (len(levels) != 2 or min(levels) != _CONSTANT):
            return 0, False
        if level == _SIZES:
            return int(op in _SIZED and min(levels) == _CONSTANT), True
        if level != _DATA:
            return 0, False
        if op == "Clip":
            given = [name for name in node.input[1:3] if name]
            attributes = [a.name for a in node.attribute if a.name in ("min", "max")]
            return len(given or attributes), False
        return (2 if op in ("Shrink", "HardSigmoid", "HardSwish", "GridSample") else 1), False

    def _is_size(self, names: Sequence[str]) -> bool:
        """Returns whether values are sizes of other values, not computed from sizes."""
        todo, seen = [n for n in names if self._level(n) == _SIZES], set[str]()
        while todo:
            name = todo.pop()
            maker = self._makers.get(name)
            if maker is None or maker.op_type not in _VIEWS | {"Shape", "Size"}:
                return False
            if maker.op_type in _VIEWS and name not in seen:
                todo += [n for n in maker.input if self._level(n) == _SIZES]
            seen.add(name)
        return True

    def _keys(self, node: NodeProto, where: str) -> Iterator[Counter]:
        known = values_of(node)
        for name in KEYS[node.op_type]:
            keys = known.get(name)
            if keys is None and name == "replaced_value_float" and "imputed_value_floats" in known:
                keys = 0.0
            if isinstance(keys, TensorProto):
                keys = elements(keys)
            if keys is None or not np.size(keys):
                continue
            array = np.asarray(keys).reshape(-1)
            if array.dtype.kind in "SOU":
                texts = [k.decode("utf-8", "replace") if isinstance(k, bytes) else k for k in array]
                array = np.array(texts, object)
            columns = max((len(v) for k, v in known.items() if k.startswith("imputed")), default=1)
            yield Keys(where, array, node.input[0], columns, self._function)

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
        inputs, op, scope = list(node.input), node.op_type, self._function
        for table, index in LOOKUPS.get(op, ()):
            if len(inputs) <= max(table, index) or not inputs[table]:
                continue
            fixed, name = self._table(inputs[table])
            if fixed and self._level(inputs[index]) != _CONSTANT:
                yield Rows(name, inputs, table, index, axis_of(node), scope, first=op == "GatherND")
        if op == "Slice" and len(inputs) > 2:
            fixed, name = self._table(inputs[0])
            if fixed and max(map(self._level, inputs[1:3])) != _CONSTANT:
                axes = self._numbers(inputs[3]) if len(inputs) > 3 and inputs[3] else np.arange(1)
                along = [] if axes is None else axes.reshape(-1).tolist()
                for axis in along:
                    place = name if axis == along[0] else f"{name} (axis {axis})"
                    yield Rows(place, inputs, 0, 2, axis, scope, between=True)

    def _table(self, value: str) -> tuple[bool, str]:
        """Returns whether a value is constant, and the name of its table."""
        name = self._weights.get(value, (value, 0))[0]
        known = self._level(value) == _CONSTANT or name in self._weights
        return known, self._scope + name

    def _numbers(self, name: str) -> Array | None:
        """Returns a constant of the file, None if the value is none."""
        if name in self._tensors:
            return elements(self._tensors[name])
        maker = self._makers.get(name)
        if maker is None or maker.op_type != "Constant":
            return None
        value = next(iter(values_of(maker).values()), None)
        return elements(value) if isinstance(value, TensorProto) else np.asarray(value)

    def _elements(self, node: NodeProto) -> Iterator[Counter]:
        op, inputs = node.op_type, list(node.input)
        if op in _MOVES:
            return
        tables = {table for table, _ in LOOKUPS.get(op, ())} | ({0} if op == "Slice" else set())
        for operand, name in enumerate(inputs):
            if name not in self._weights or operand in tables:
                continue
            factor: Factor | Chosen | None = _FACTORS.get((op, operand))
            if op == "Gemm" and operand == 1:
                known = values_of(node)
                factor = Factor(0, int(not known.get("transA")), int(bool(known.get("transB"))))
            if len(inputs) == 2 or op == "Where":
                factor = factor or CHOSEN.get((op, operand))
            index = self._one_hot(inputs[factor.operand]) if isinstance(factor, Factor) else ""
            weight, size = self._weights[name]
            yield Elements(
                self._scope + weight, size, inputs, operand, factor, self._function, index
            )

    def _one_hot(self, name: str) -> str:
        """Returns the indices from which a value was made by OneHot."""
        maker = self._makers.get(name)
        while maker is not None and maker.op_type in ("Cast", "Identity", "Reshape"):
            maker = self._makers.get(maker.input[0])
        return maker.input[0] if maker is not None and maker.op_type == "OneHot" else ""
