"""Random operators under proof: both models read the same draws from a table."""

from __future__ import annotations

import copy
import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from onnxgrad.frozen import frozen
from onnxgrad.ir import domains
from onnxgrad.ir.domains import RANDOM
from onnxgrad.ir.protobufs import elements, every_graph, every_node
from onnxgrad.verify.bounds import Bounds
from onnxgrad.verify.output_dependencies import Key, Marks, gathered, key_of, value_types
from onnxgrad.verify.proof_model import TWO_GB, ProofModel
from onnxgrad.wording import first_of

OLDEST = 9  # older opsets have no operator that counts elements
_RANGE, _ALLOW_ZERO = 11, 14
_SIZE = 8191  # a prime, so that the period matches no axis
_TABLE = "onnxgrad.draws."
_FLOAT = TensorProto.FLOAT
_FLOATS = {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16}


def tables() -> list[NodeProto]:
    """Returns the tables as Constant nodes, to be placed before all nodes of a graph."""
    rng = np.random.default_rng(20)
    uniform = (rng.permutation(_SIZE) + 0.5) / _SIZE
    values = {
        "normal": rng.standard_normal(_SIZE),
        "uniform": uniform,
        "gumbel": -np.log(-np.log(uniform)),
    }
    return [_constant(_TABLE + name, value.astype(np.float32)) for name, value in values.items()]


def _constant(name: str, value: np.ndarray[Any, Any]) -> NodeProto:
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(value))


class Builder:
    """Builds nodes whose names share a prefix."""

    def __init__(self, key: str, name: str, version: int) -> None:
        self.start = zlib.crc32(key.encode()) % _SIZE
        self.name = name
        self.version = version
        self.nodes: list[NodeProto] = []

    def __call__(self, op: str, *inputs: str, **attributes: Any) -> str:
        out = f"{_TABLE}{self.name}.{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [out], **attributes))
        return out

    def constant(self, value: Any, dtype: Any = np.int64) -> str:
        name = f"{_TABLE}{self.name}.{len(self.nodes)}"
        self.nodes.append(_constant(name, np.asarray(value, dtype)))
        return name

    def result(self, value: str, out: str) -> None:
        if out:
            self.nodes.append(helper.make_node("Identity", [value], [out]))

    def cast(self, value: str, dtype: int) -> str:
        return self("Cast", value, to=dtype)

    def draw(self, table: str, shape: str, count: str, turn: str = "") -> str:
        """Adds nodes that read `count` (a scalar) elements of a table, in a shape. `turn` moves the
        start.
        """
        if self.version >= _RANGE:
            steps = self("Range", self.constant(0), count, self.constant(1))
        else:
            one = helper.make_tensor("one", TensorProto.INT64, [1], [1])
            flat = self.constant([-1])
            ones = self("ConstantOfShape", self("Reshape", count, flat), value=one)
            steps = self("Reshape", self("NonZero", ones), flat)
        place, size = self("Add", steps, self.constant(self.start)), self.constant(_SIZE)
        place = self("Add", place, turn) if turn else place
        turns = self("Mul", self("Div", place, size), size)
        numbers = self("Gather", _TABLE + table, self("Sub", place, turns), axis=0)
        more = {"allowzero": 1} if self.version >= _ALLOW_ZERO else {}
        return self("Reshape", numbers, shape, **more)

    def like(self, table: str, x: str, turn: str = "") -> str:
        """Adds nodes that read numbers of a table in the shape of a value."""
        return self.draw(table, self("Shape", x), self("Size", x), turn)

    def floats(self, value: float) -> str:
        return self.constant(value, np.float32)


Drawing = Callable[[Builder, NodeProto, Mapping[str, Any], int], bool]


def drawn(
    node: NodeProto, key: str, version: int, types: Mapping[str, int]
) -> list[NodeProto] | None:
    """Returns nodes that compute a random node's results from tables, or None if that is not
    possible. `key` determines the position in the tables. `types`: the known element types of
    values.
    """
    build = Builder(key, next(name for name in node.output if name), version)
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    dtype = attributes.get("dtype", types.get(node.input[0], 0) if node.input else _FLOAT)
    return build.nodes if _DRAWINGS[node.op_type](build, node, attributes, dtype) else None


def _scaled(table: str, first: tuple[str, float], second: tuple[str, float]) -> Drawing:
    """Returns a drawing of a + b * draw, with a and b from the attributes `mean` and `scale`, or
    `low` and `high`.
    """

    def build(b: Builder, node: NodeProto, attributes: Mapping[str, Any], dtype: int) -> bool:
        if dtype not in _FLOATS:
            return False
        if node.input:
            numbers = b.like(table, node.input[0])
        else:
            shape = list(attributes["shape"])
            numbers = b.draw(table, b.constant(shape), b.constant(int(np.prod(shape))))
        at, to = (attributes.get(name, value) for name, value in (first, second))
        wide = b("Mul", numbers, b.floats(to - at if table == "uniform" else to))
        b.result(b.cast(b("Add", wide, b.floats(at)), dtype), node.output[0])
        return True

    return build


def _bernoulli(b: Builder, node: NodeProto, attributes: Mapping[str, Any], dtype: int) -> bool:
    if not dtype:
        return False
    chance = b.cast(node.input[0], _FLOAT)
    b.result(b.cast(b("Less", b.like("uniform", chance), chance), dtype), node.output[0])
    return True


def _multinomial(b: Builder, node: NodeProto, attributes: Mapping[str, Any], dtype: int) -> bool:
    """Takes the largest of the logits with Gumbel noise (Gumbel, 1954)."""
    logits, samples = b.cast(node.input[0], _FLOAT), int(attributes.get("sample_size", 1))
    sizes = b("Shape", logits)
    rows, classes = (b("Gather", sizes, b.constant([i]), axis=0) for i in (0, 1))
    shape = b("Concat", rows, b.constant([samples]), classes, axis=0)
    count = b("Mul", b("Size", logits), b.constant(samples))
    single = b("Reshape", logits, b("Concat", rows, b.constant([1]), classes, axis=0))
    best = b("ArgMax", b("Add", b.draw("gumbel", shape, count), single), axis=2, keepdims=0)
    b.result(b.cast(best, attributes.get("dtype", TensorProto.INT32)), node.output[0])
    return True


def _dropout(b: Builder, node: NodeProto, attributes: Mapping[str, Any], dtype: int) -> bool:
    """Computes x * mask / (1 - ratio), or x if the operand `training_mode` is false."""
    x, ratio, training = (*node.input, "", "")[:3]
    if dtype not in _FLOATS or not training:
        return False
    share = b.cast(ratio, _FLOAT) if ratio else b.floats(0.5)
    trains = b("Cast", training, to=TensorProto.BOOL)
    kept = b("Not", b("Less", b.like("uniform", x), share))
    mask = b("Or", kept, b("Not", trains))
    scale = b("Div", b.floats(1.0), b("Sub", b.floats(1.0), share))
    scale = b("Where", trains, scale, b.floats(1.0))
    factor = b.cast(b("Mul", b.cast(mask, _FLOAT), scale), dtype)
    b.result(b("Mul", x, factor), node.output[0])
    b.result(mask, node.output[1] if len(node.output) > 1 else "")
    return True


_NORMAL = _scaled("normal", ("mean", 0.0), ("scale", 1.0))
_UNIFORM = _scaled("uniform", ("low", 0.0), ("high", 1.0))
_DRAWINGS: dict[str, Drawing] = {
    "RandomNormal": _NORMAL,
    "RandomNormalLike": _NORMAL,
    "RandomUniform": _UNIFORM,
    "RandomUniformLike": _UNIFORM,
    "Bernoulli": _bernoulli,
    "Multinomial": _multinomial,
    "Dropout": _dropout,
}


# onnxruntime's own random operators, which cannot be replaced by tables
_OF_ONNXRUNTIME = frozenset({"BiasDropout", "BitmaskDropout", "BitmaskBiasDropout", "Sampling"})
_MICROSOFT = "com.microsoft"
_SHOWN = 3


@frozen
class Draws:
    """Both models with equal draws. `same`: the nodes that were replaced. `left`: by output of the
    original, the random nodes on which it still depends, and `why` their draws differ.
    """

    original: ProofModel
    candidate: ProofModel
    same: tuple[str, ...] = ()
    left: Mapping[str, str] = field(default_factory=dict)
    why: str = "that do not match by name"

    @property
    def notes(self) -> list[str]:
        """The notes for the report."""
        if not self.same:
            return []
        return [f"both models get the same draws of {first_of(self.same, _SHOWN)}"]

    def reasons(self, bounds: Bounds) -> list[str]:
        """Returns why outputs are not proved. Outputs with `bounds` are judged by them instead."""
        return [
            f"{output} depends on random draws {self.why}: {nodes}"
            for output, nodes in self.left.items()
            if bounds.bound(output) is None
        ]


@frozen
class Random:
    """A random node, in a graph or in the function `key`."""

    node: NodeProto
    version: int
    key: Key | None = None

    @property
    def name(self) -> str:
        """The name of the node's first result."""
        return next((name for name in self.node.output if name), "")

    def __str__(self) -> str:
        name = f"{self.node.op_type} {self.node.name or self.name!r}"
        off = "export in eval mode, or `onnxgrad edit --mode inference`"
        return f"{name} ({off})" if "Dropout" in self.node.op_type else name

    def like(self, other: Random) -> bool:
        """True if one table can replace both nodes: they draw from the same distribution with the
        same seed.
        """
        ours, theirs = ((r.node.op_type.removesuffix("Like"), _seed(r.node)) for r in (self, other))
        return ours == theirs

    @property
    def replaceable(self) -> bool:
        """True if the node is in a graph, at an opset that can read a table."""
        return self.key is None and self.version >= OLDEST and not self.node.domain


def same_draws(
    original: ProofModel, candidate: ProofModel, outputs: Mapping[str, str] | None = None
) -> Draws:
    """Returns both models with equal draws, for the random nodes that match by name. `outputs`: the
    candidate's names for outputs of the original.
    """
    ours, theirs = randoms(original.proto), randoms(candidate.proto)
    if not ours and not theirs:
        return Draws(original, candidate)
    new: tuple[dict[str, list[NodeProto]], ...] = ({}, {})
    pairs = list(_pairs(ours, theirs))
    types = [value_types(s.proto) if pairs else {} for s in (original, candidate)]
    for pair in pairs:
        made = [drawn(r.node, pair[0].name, r.version, t) for r, t in zip(pair, types)]
        for side, r, nodes in zip(new, pair, made):
            if nodes is not None and None not in made:
                side[r.name] = nodes
    left = [
        left_random(model.proto, [r for r in found if r.name not in side])
        for model, found, side in ((original, ours, new[0]), (candidate, theirs, new[1]))
    ]
    both = {
        v.name: left[0].get(v.name) or left[1].get((outputs or {}).get(v.name, v.name))
        for v in original.proto.graph.output
    }
    return Draws(
        _replaced(original, new[0]),
        _replaced(candidate, new[1]),
        tuple(str(r).partition(" (")[0] for r in ours if r.name in new[0]),
        {name: nodes for name, nodes in both.items() if nodes},
    )


def randoms(model: ModelProto) -> list[Random]:
    """Returns every random node, including nested graphs and functions."""
    found = []
    opsets = domains.versions(model.opset_import)
    for body in (model.graph, *model.functions):
        key, versions = None, opsets
        if isinstance(body, FunctionProto):
            key, versions = key_of(body), {**opsets, **domains.versions(body.opset_import)}
        candidates = [n for n in every_node(body.node) if _may_draw(n)]
        found += [Random(n, versions.get("", 1), key) for n in candidates]
    if not found:
        return []
    fixed = _fixed(model)
    return [r for r in found if r.node.op_type != "Dropout" or _trains(r, fixed)]


def _may_draw(node: NodeProto) -> bool:
    if node.domain == _MICROSOFT:
        return node.op_type in _OF_ONNXRUNTIME
    of_onnx = node.op_type in RANDOM or node.op_type == "Dropout"
    return of_onnx and domains.is_default(node.domain)


def _trains(dropout: Random, fixed: Mapping[str, bool]) -> bool:
    """True if a Dropout trains. Before opset 7 the attribute `is_test` decides, from 7 to 11 it
    never trains, and from 12 on an operand decides.
    """
    node = dropout.node
    if dropout.version < 7:
        return not any(a.name == "is_test" and a.i for a in node.attribute)
    ratio, mode = (*node.input[1:3], "", "")[:2]
    trains = dropout.version >= 12 and bool(mode) and fixed.get(mode, True)
    return trains and fixed.get(ratio, True)  # with a ratio of 0 it keeps every element


def _fixed(model: ModelProto) -> dict[str, bool]:
    """Returns the scalar constants of a model by name, as truth values."""
    tensors = {t.name: t for graph in every_graph(model.graph) for t in graph.initializer}
    for f in (model.graph, *model.functions):
        for node in every_node(f.node):
            for a in node.attribute if node.op_type == "Constant" else ():
                if a.name == "value":
                    tensors[node.output[0]] = a.t
    overridden = {v.name for v in model.graph.input} if model.ir_version >= 4 else set()
    return {
        name: bool(elements(t).all())
        for name, t in tensors.items()
        if name not in overridden and math.prod(t.dims) == 1 and not t.external_data
    }


def _seed(node: NodeProto) -> float | None:
    return next((a.f or float(a.i) for a in node.attribute if a.name == "seed"), None)


def _pairs(ours: Sequence[Random], theirs: Sequence[Random]) -> Iterator[tuple[Random, Random]]:
    """Yields pairs of random nodes with the same name of a result, or else the same node name."""
    results, names = ({}, {}) if not theirs else (_unique(theirs, False), _unique(theirs, True))
    own = _unique(ours, True)
    for a in _unique(ours, False).values():
        b = results.get(a.name)
        if b is None and own.get(a.node.name) is a:
            b = names.get(a.node.name)
        if b is not None and a.replaceable and b.replaceable and a.like(b):
            yield a, b


def _unique(found: Sequence[Random], by_node: bool) -> dict[str, Random]:
    """Returns the random nodes by name, without names that occur several times."""
    names = [r.node.name if by_node else r.name for r in found]
    return {n: r for n, r in zip(names, found) if n and names.count(n) == 1}


def _replaced(model: ProofModel, new: Mapping[str, list[NodeProto]]) -> ProofModel:
    """Returns the model with nodes replaced; `new` has the name of their first result as key."""
    if not new:
        return model
    proto = copy.deepcopy(model.weights())
    for graph in every_graph(proto.graph):
        _exchange(graph, new)
    nodes = [*tables(), *proto.graph.node]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    small = proto.ByteSize() <= TWO_GB
    return ProofModel(proto.SerializeToString() if small else proto, proto, lambda: proto)


def _exchange(graph: GraphProto, new: Mapping[str, list[NodeProto]]) -> None:
    if not any(name in new for node in graph.node for name in node.output):
        return
    nodes = []
    for node in graph.node:
        name = next((name for name in node.output if name), "")
        nodes += new.get(name, [node])
    del graph.node[:]
    graph.node.extend(nodes)


def left_random(model: ModelProto, left: Sequence[Random]) -> dict[str, str]:
    """Returns the outputs that depend on these nodes, with the names of the nodes."""
    if not left:
        return {}
    functions: dict[Key, int] = {}
    nodes: dict[str, int] = {}
    for i, r in enumerate(left):
        if r.key is not None:
            functions[r.key] = functions.get(r.key, 0) | 1 << i
        else:
            nodes[r.name] = nodes.get(r.name, 0) | 1 << i

    def bits(node: NodeProto) -> int:
        return nodes.get(next((n for n in node.output if n), ""), 0) if _may_draw(node) else 0

    found = gathered(model, Marks({}, bits, functions))
    return {
        name: first_of([str(r) for i, r in enumerate(left) if mask >> i & 1], _SHOWN)
        for name, mask in found.items()
        if mask
    }
