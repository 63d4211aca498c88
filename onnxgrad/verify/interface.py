"""A model's interface: what its callers see, and what no rewrite may change."""

from __future__ import annotations

import math

import onnx

from onnxgrad.verify.compare import Difference
from onnxgrad.verify.feeds.dims import required_inputs, shape_of, tensor_types


def interface_differences(a: onnx.ModelProto, b: onnx.ModelProto) -> list[Difference]:
    """Inputs and outputs of b that are not those of a: names, order, types, what may be omitted,
    and input sizes that became narrower.

    Symbols may be renamed, and an output's shape may be refined: its values are compared anyway.
    """
    taken, takes = _inputs(a), _inputs(b)
    problems = [
        *_names("inputs", [v.name for v in taken], [v.name for v in takes]),
        *_names("outputs", [v.name for v in a.graph.output], [v.name for v in b.graph.output]),
    ]
    if not problems:
        required = {v.name for v in required_inputs(a.graph)}
        problems += [
            f"input {v.name!r} had a default value and needs one now"
            for v in required_inputs(b.graph)
            if v.name not in required
        ]
        problems += [p for x, y in zip(taken, takes, strict=True) for p in _input(x, y)]
        problems += [
            p
            for x, y in zip(a.graph.output, b.graph.output, strict=True)
            for p in _type(f"output {x.name!r}", x.type, y.type)
        ]
    return [
        Difference("(interface)", None, None, None, math.inf, 0.0, problem) for problem in problems
    ]


def _inputs(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """What callers can feed: below IR 4 weights are listed as inputs, and are none."""
    if model.ir_version >= 4:
        return list(model.graph.input)
    weights = {t.name for t in model.graph.initializer}
    return [v for v in model.graph.input if v.name not in weights]


def _names(what: str, a: list[str], b: list[str]) -> list[str]:
    if a == b:
        return []
    lost, new = [n for n in a if n not in b], [n for n in b if n not in a]
    if lost or new:
        return [
            f"the {what} changed: "
            + ", ".join([f"{n!r} is missing" for n in lost] + [f"{n!r} is new" for n in new])
        ]
    return [f"the {what} changed their order: {a} -> {b}"]


def _type(what: str, a: onnx.TypeProto, b: onnx.TypeProto) -> list[str]:
    if not a.WhichOneof("value") or not b.WhichOneof("value"):
        return []  # an output may be declared without a type
    if a.WhichOneof("value") != b.WhichOneof("value"):
        return [f"{what} was a {a.WhichOneof('value')}, is a {b.WhichOneof('value')}"]
    for x, y in zip(tensor_types(a), tensor_types(b), strict=False):
        if x.elem_type != y.elem_type:
            name = onnx.TensorProto.DataType.Name
            return [f"{what} was {name(x.elem_type).lower()}, is {name(y.elem_type).lower()}"]
    return []


def _input(a: onnx.ValueInfoProto, b: onnx.ValueInfoProto) -> list[str]:
    problems = _type(f"input {a.name!r}", a.type, b.type)
    for x, y in zip(tensor_types(a.type), tensor_types(b.type), strict=False):
        before, after = shape_of(a.name, x), shape_of(b.name, y)
        if after is None or before == after:
            continue
        narrower = (
            before is None
            or len(before) != len(after)
            or any(isinstance(q, int) and p != q for p, q in zip(before, after, strict=True))
        )
        if narrower:
            problems.append(f"input {a.name!r} took shape {before}, takes only {after}")
    return problems
