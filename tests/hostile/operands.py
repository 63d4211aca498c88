"""Models of one node whose operands, opset or declarations are not what the operator takes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from tests.backend_suite import usable

_DTYPES = (
    np.float32,
    np.float32,
    np.float64,
    np.float16,
    np.int64,
    np.int32,
    np.int8,
    np.uint8,
    np.bool_,
)
_NUMBERS = (0.0, 1.0, -1.0, 2.0, 0.5, 3.0, 1e30, -1e30, float("nan"), float("inf"))


@dataclass(frozen=True)
class Seed:
    """One node with values for its operands (None: not given, or no tensor)."""

    name: str
    op: str
    node: NodeProto
    operands: tuple[Any, ...]
    opset: int


def single_nodes() -> list[Seed]:
    """The cases of the backend suite with one node of the default domain."""
    found = []
    for case in usable():
        nodes = case.model.graph.node
        if len(nodes) != 1 or nodes[0].domain not in ("", "ai.onnx"):
            continue
        opset = next(o.version for o in case.model.opset_import if o.domain in ("", "ai.onnx"))
        operands = tuple(case.inputs.get(n) for n in nodes[0].input)
        found.append(Seed(case.name, nodes[0].op_type, nodes[0], operands, opset))
    return found


def mutant(rng: random.Random, seed: Seed) -> bytes:
    """The seed's model after one to three changes, at its own opset or, as often, at a random one."""
    operands = list(seed.operands)
    node = NodeProto()
    node.CopyFrom(seed.node)
    constant = [rng.random() < 0.4 or (i > 0 and rng.random() < 0.5) for i in range(len(operands))]
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
        _change(rng, operands, node)
    opset = seed.opset if rng.random() < 0.5 else rng.randrange(1, 26)
    return _model(rng, node, operands, constant, opset).SerializeToString()


def _change(rng: random.Random, operands: list[Any], node: NodeProto) -> None:
    present = [
        i for i, v in enumerate(operands) if isinstance(v, np.ndarray) and v.dtype.kind in "fiub"
    ]
    kind = rng.randrange(7)
    if kind == 0 and len(operands) > 1:
        i, k = rng.sample(range(len(operands)), 2)
        operands[i], operands[k] = operands[k], operands[i]
    elif kind == 1 and node.attribute:
        del node.attribute[rng.randrange(len(node.attribute))]
    elif kind == 2 and node.attribute:
        _shake(rng, node)
    elif present:
        i = rng.choice(present)
        with np.errstate(all="ignore"):
            operands[i] = _other(rng, kind, operands[i])


def _other(rng: random.Random, kind: int, value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Of another dtype, another rank, another length, or with other numbers in it."""
    if kind == 3:
        return value.astype(rng.choice(_DTYPES))
    if kind == 4:
        ranks = [value.reshape(-1), value[None], value[..., None], value[(slice(1),) * value.ndim]]
        return rng.choice([*ranks, value.reshape(-1)[0]] if value.size else ranks)
    if kind == 5 and value.ndim:
        axis = rng.randrange(value.ndim)
        length = rng.choice((0, 1, value.shape[axis] + 1, 2 * value.shape[axis]))
        return np.resize(
            np.moveaxis(value, axis, 0), (length, *np.delete(value.shape, axis))
        ).swapaxes(0, axis)
    return np.full(value.shape, rng.choice(_NUMBERS)).astype(value.dtype)


def _shake(rng: random.Random, node: NodeProto) -> None:
    a = rng.choice(node.attribute)
    if a.type == onnx.AttributeProto.INT:
        a.i = rng.choice((0, 1, -1, 2, 5, a.i + 1, a.i - 1))
    elif a.type == onnx.AttributeProto.INTS:
        values = list(a.ints)
        longer = [
            values[:-1],
            [*values, 1],
            [v + 1 for v in values],
            [0 for _ in values],
            values[::-1],
        ]
        a.ints[:] = rng.choice(longer)
    elif a.type == onnx.AttributeProto.FLOAT:
        a.f = rng.choice(_NUMBERS)
    elif a.type == onnx.AttributeProto.STRING:
        a.s = rng.choice(
            (b"", b"nonsense", b"SAME_UPPER", b"linear", b"cubic", b"nearest", b"reflect")
        )


def _model(
    rng: random.Random,
    node: NodeProto,
    operands: Sequence[Any],
    constant: Sequence[bool],
    opset: int,
) -> ModelProto:
    inputs: list[ValueInfoProto] = []
    weights: list[TensorProto] = []
    names = []
    for i, value in enumerate(operands):
        name = f"x{i}" if isinstance(value, (np.ndarray, np.generic)) else ""
        names.append(name)
        if not name:
            continue
        array = np.asarray(value)
        if constant[i] and array.dtype != object:
            weights.append(numpy_helper.from_array(array, name))
        else:
            dtype = (
                TensorProto.STRING
                if array.dtype == object
                else helper.np_dtype_to_tensor_dtype(array.dtype)
            )
            inputs.append(helper.make_tensor_value_info(name, dtype, _declared(rng, array.shape)))
    node.input[:] = names
    # a single output, which needs no --target
    dtype = rng.choice(
        (TensorProto.FLOAT,) * 6 + (TensorProto.INT64, TensorProto.DOUBLE, TensorProto.UNDEFINED)
    )
    shape = rng.choice(
        (None, None, None, (), (1,), (2, 3), ("a", "b"), ("a", "b", "c", "d"), (1, 1, 4, 4))
    )
    output = helper.make_tensor_value_info(next(n for n in node.output if n), dtype, shape)
    graph = helper.make_graph([node], "g", inputs, [output], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def _declared(rng: random.Random, shape: Sequence[int]) -> list[int | str] | None:
    way = rng.randrange(5)
    if way == 0:
        return None
    return [f"d{i}" if way == 1 or (way == 2 and i == 0) else d for i, d in enumerate(shape)]
