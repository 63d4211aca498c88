"""What stands for a random node in a proof: the same distribution, its numbers read from a table.

One table of each distribution lies in the model; a node reads on from a place that its name
decides, so that two nodes draw differently and one node draws alike in two models.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

OLDEST = 9  # below this opset nothing counts elements
_RANGE, _ALLOW_ZERO = 11, 14
_SIZE = 8191  # a prime, so that no axis repeats with it
_TABLE = "onnxgrad.draws."
_FLOAT = TensorProto.FLOAT
_FLOATS = {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16}


def tables() -> list[NodeProto]:
    """The tables, as constants to stand before all nodes of a graph."""
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
    """Nodes under names of one prefix."""

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
        """`count` (a scalar) elements of a table, in a shape; `turn` moves the start."""
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
        """Numbers of a table in the shape of a value."""
        return self.draw(table, self("Shape", x), self("Size", x), turn)

    def floats(self, value: float) -> str:
        return self.constant(value, np.float32)


Drawing = Callable[[Builder, NodeProto, Mapping[str, Any], int], bool]


def drawn(
    node: NodeProto, key: str, version: int, types: Mapping[str, int]
) -> list[NodeProto] | None:
    """What computes a random node's results from tables, its place in them by `key`; None where
    that is not possible. `types`: the element types of values, as far as known.
    """
    build = Builder(key, next(name for name in node.output if name), version)
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    dtype = attributes.get("dtype", types.get(node.input[0], 0) if node.input else _FLOAT)
    return build.nodes if _DRAWINGS[node.op_type](build, node, attributes, dtype) else None


def _scaled(table: str, first: tuple[str, float], second: tuple[str, float]) -> Drawing:
    """a + b * draw of attributes `mean` and `scale`, or of `low` and `high`."""

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
    """The largest of logits with Gumbel noise (Gumbel, 1954)."""
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
    """x * mask / (1 - ratio), and x where the operand `training_mode` is false."""
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
