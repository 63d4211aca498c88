"""Interfaces of models: the parts that a rewrite must not change, and the matching of inputs and
outputs.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import field, replace
from typing import Any

import numpy as np
import onnx

from onnxgrad.errors import InputError
from onnxgrad.frozen import frozen
from onnxgrad.verify.bounds import Bound, Bounds
from onnxgrad.verify.compare import Difference, base_name
from onnxgrad.verify.feeds.dims import (
    evaluate,
    required_inputs,
    shape_of,
    symbols_in,
    tensor_types,
)
from onnxgrad.verify.output_dependencies import float_types
from onnxgrad.verify.tolerance import Allowance, is_float
from onnxgrad.verify.values import Feeds, Value
from onnxgrad.wording import did_you_mean, option


def interface_differences(
    a: onnx.ModelProto, b: onnx.ModelProto, dims: Mapping[str, int] | None = None
) -> list[Difference]:
    """Returns how the inputs and outputs of `b` differ from those of `a`: names, order, types,
    missing defaults, and input sizes that became narrower. `dims`: the sizes at which the models
    are compared; `b` may fix them.

    Symbols may be renamed, and the shape of an output may be refined, because its values are
    compared anyway.
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
        problems += [p for x, y in zip(taken, takes, strict=True) for p in _input(x, y, dims or {})]
        problems += [
            p
            for x, y in zip(a.graph.output, b.graph.output, strict=True)
            for p in _type(f"output {x.name!r}", x.type, y.type)
        ]
    return [
        Difference("(interface)", None, None, None, math.inf, 0.0, problem) for problem in problems
    ]


def _inputs(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """Returns the inputs that callers can feed. Below IR 4, weights are listed among them."""
    if model.ir_version >= 4:
        return list(model.graph.input)
    weights = {t.name for t in model.graph.initializer}
    return [v for v in model.graph.input if v.name not in weights]


def _names(what: str, a: list[str], b: list[str]) -> list[str]:
    changes = [f"{n!r} is missing" for n in a if n not in b]
    changes += [f"{n!r} is new" for n in b if n not in a]
    if changes:
        return [f"the {what} changed: {', '.join(changes)}"]
    return [] if a == b else [f"the {what} changed their order: {a} -> {b}"]


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


def _input(a: onnx.ValueInfoProto, b: onnx.ValueInfoProto, dims: Mapping[str, int]) -> list[str]:
    problems = _type(f"input {a.name!r}", a.type, b.type)
    for x, y in zip(tensor_types(a.type), tensor_types(b.type), strict=False):
        before, after = shape_of(a.name, x), shape_of(b.name, y)
        if after is None or before == after:
            continue
        narrower = (
            before is None
            or len(before) != len(after)
            or any(
                isinstance(q, int) and q not in (p, _at(p, dims))
                for p, q in zip(before, after, strict=True)
            )
        )
        if narrower:
            problems.append(f"input {a.name!r} took shape {before}, takes only {after}")
    return problems


def _at(dim: int | str, dims: Mapping[str, int]) -> int | str:
    """Returns the size of a dimension if `dims` determine it."""
    known = isinstance(dim, str) and symbols_in(dim) <= dims.keys()
    return evaluate(dim, dims) if known else dim


_FLOATS = frozenset(
    code
    for code in onnx.TensorProto.DataType.values()
    if code and is_float(np.zeros(0, onnx.helper.tensor_dtype_to_np_dtype(code)))
)


@frozen
class Correspondence:
    """The second model's names for the inputs and outputs of the first, and the float types of the
    inputs that it accepts in another width.
    """

    inputs: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)
    casts: Mapping[str, np.dtype[Any]] = field(default_factory=dict)  # by the first model's names
    wanted: Collection[str] | None = None  # the outputs to compare, likewise; None: all

    def feeds(self, feeds: Feeds) -> dict[str, Value]:
        """Returns the first model's feeds under the names and types of the second."""
        return {
            self.inputs.get(name, name): _cast(value, self.casts.get(name))
            for name, value in feeds.items()
        }

    def results(self, results: Mapping[str, Value]) -> dict[str, Value]:
        """Returns the second model's results under the first model's names."""
        known = {theirs: ours for ours, theirs in self.outputs.items()}
        named = {known.get(name, name): value for name, value in results.items()}
        if self.wanted is None:
            return named
        return {name: value for name, value in named.items() if name in self.wanted}


@frozen
class Demands:
    """The demands on the second model: its names, and its tolerances."""

    names: Correspondence = field(default_factory=Correspondence)
    bounds: Bounds = field(default_factory=Bounds)
    of: str = "the second model"
    # the float dtypes on the paths to each output of the first model
    dtypes: Mapping[str, Collection[str]] = field(default_factory=dict)
    random: Collection[str] = ()  # outputs that depend on unmatched random draws
    # by output of the first model, the dtypes of recomputed weights on its paths
    computed: Mapping[str, Collection[int]] = field(default_factory=dict)

    def on_paths(self, output: str) -> Collection[str]:
        """Returns the float dtypes on the paths to an output. A part `y[0:2]` has those of its
        output.
        """
        return self.dtypes.get(base_name(output, self.dtypes), ())

    def allows(self, own: Mapping[str, Allowance]) -> dict[str, Allowance | Bound]:
        """Returns the limit of each output: the user's bound, or else the proof's `own`. A
        difference of an output with unmatched random draws is never a failure.
        """
        wide = {n: replace(a, most=math.inf) if n in self.random else a for n, a in own.items()}
        return self.bounds.over(wide)


def correspondence(
    a: onnx.ModelProto, b: onnx.ModelProto, names: Mapping[str, str], bounds: Bounds
) -> tuple[Demands, onnx.ModelProto]:
    """Returns how to run and judge `b` beside `a`, and the interface of `b` under the names of `a`.

    `names` maps inputs and outputs of `a` to names in `b`; with it, their order is free. If
    `bounds` allow more than equality, the width of floats is free as well. Raises InputError for an
    unknown name.
    """
    inputs = _named("input", a.graph.input, b.graph.input, names)
    outputs = _named("output", a.graph.output, b.graph.output, names)
    for ours in names:
        if ours not in inputs and ours not in outputs:
            raise InputError(_unknown(ours, [*a.graph.input, *a.graph.output], "first"))
    seen = onnx.ModelProto(ir_version=b.ir_version)
    seen.graph.input.extend(_as_named(a.graph.input, b.graph.input, inputs, bool(names)))
    seen.graph.output.extend(_as_named(a.graph.output, b.graph.output, outputs, bool(names)))
    known = {theirs: ours for ours, theirs in inputs.items()}
    seen.graph.initializer.extend(
        onnx.TensorProto(name=known.get(t.name, t.name)) for t in b.graph.initializer
    )
    casts = _widths(a.graph.input, seen.graph.input) if bounds else {}
    for name in [v.name for v in seen.graph.output if bounds.bound(v.name) is not None]:
        _widths(
            [v for v in a.graph.output if v.name == name],
            [v for v in seen.graph.output if v.name == name],
        )
    return Demands(Correspondence(inputs, outputs, casts), bounds, dtypes=float_types(a)), seen


def _named(
    kind: str,
    a: Iterable[onnx.ValueInfoProto],
    b: Iterable[onnx.ValueInfoProto],
    names: Mapping[str, str],
) -> dict[str, str]:
    """Returns the entries of `names` that concern these values."""
    theirs = [v.name for v in b]
    ours = {v.name for v in a}
    found = {x: y for x, y in names.items() if x in ours}
    for y in found.values():
        if y not in theirs:
            raise InputError(_unknown(y, b, "second", kind))
    if len(set(found.values())) < len(found):
        raise InputError(f"{_option(names)}: two {kind}s of the first model are one of the second")
    return found


def _unknown(
    name: str, values: Iterable[onnx.ValueInfoProto], which: str, kind: str = "input or output"
) -> str:
    known = [v.name for v in values]
    hint = did_you_mean(name, known, f"there are {', '.join(known)}")
    return f"{_option({name: name})}: the {which} model has no {kind} {name!r}; {hint}"


def _option(names: Mapping[str, str]) -> str:
    return option("--map", "map=") if names else ""


def _as_named(
    a: Iterable[onnx.ValueInfoProto],
    b: Iterable[onnx.ValueInfoProto],
    names: Mapping[str, str],
    any_order: bool,
) -> list[onnx.ValueInfoProto]:
    """Returns values of the second model under the first model's names, in its order if
    `any_order`.
    """
    known = {theirs: ours for ours, theirs in names.items()}
    found = []
    for v in b:
        renamed = copy.deepcopy(v)
        renamed.name = known.get(v.name, v.name)
        found.append(renamed)
    place = {v.name: i for i, v in enumerate(a)}
    return sorted(found, key=lambda v: place.get(v.name, len(place))) if any_order else found


def _widths(
    a: Iterable[onnx.ValueInfoProto], b: Iterable[onnx.ValueInfoProto]
) -> dict[str, np.dtype[Any]]:
    """Gives the floats of `b` the widths of those of `a`. Returns their previous types, by name."""
    ours = {v.name: v for v in a}
    found = {}
    for v in b:
        if v.name not in ours:
            continue
        for x, y in zip(tensor_types(ours[v.name].type), tensor_types(v.type), strict=False):
            if x.elem_type != y.elem_type and {x.elem_type, y.elem_type} <= _FLOATS:
                found[v.name] = onnx.helper.tensor_dtype_to_np_dtype(y.elem_type)
                y.elem_type = x.elem_type
    return found


def _cast(value: Value, dtype: np.dtype[Any] | None) -> Value:
    if dtype is None or value is None:
        return value
    return [_cast(v, dtype) for v in value] if isinstance(value, list) else value.astype(dtype)
