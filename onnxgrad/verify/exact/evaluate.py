"""Evaluates one side of a window with exact arithmetic, on drawn values of its inputs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, ModelProto, NodeProto, TypeProto, defs, helper

from onnxgrad.ir import domains
from onnxgrad.ir.domains import canonical, full_name, versions
from onnxgrad.verify.exact.field import Field, OutOfRange, Undecided
from onnxgrad.verify.exact.kernels import (
    arithmetic,
    functions,
    indexing,
    moves,
    order,
    products,
)
from onnxgrad.verify.exact.kernels.registry import KERNELS, LARGEST, Operands
from onnxgrad.verify.exact.rational import Rationals
from onnxgrad.verify.exact.side import Attributes, Side, function_name
from onnxgrad.verify.exact.values import BITS, BOOL, Known, Num, Value, known
from onnxgrad.verify.feeds import dims
from onnxgrad.wording import one_line

KERNEL_FILES = (arithmetic, functions, indexing, moves, order, products)  # they register themselves
# operators of other domains that have the meaning of a kernel
_ALSO = {
    "SimplifiedLayerNormalization", "SkipLayerNormalization", "SkipSimplifiedLayerNormalization",
    "Gelu", "FastGelu",
}  # fmt: skip


class Stopped(Undecided):
    """A chosen integer is not valid at a node. `inputs`: the graph inputs that it comes from."""

    def __init__(self, why: str, inputs: Sequence[str], limit: int) -> None:
        super().__init__(why)
        self.inputs, self.limit = tuple(inputs), limit


@dataclass
class Inputs:
    """Draws the graph inputs of a window. `sizes`: of the open dimensions. `levels`: how narrow the
    integers of an input are: the whole type and its ends, -limit to limit, 0 to limit,
    0 and 1.
    """

    sizes: Mapping[str, int]
    positive: frozenset[str] = frozenset()
    ones: frozenset[str] = frozenset()
    equal: Mapping[str, str] = field(default_factory=dict)
    levels: dict[str, tuple[int, int]] = field(default_factory=dict)
    known_booleans: bool = False

    def narrow(self, stopped: Stopped) -> bool:
        """Draws the inputs of an invalid integer from fewer numbers. False: there are no fewer."""
        moved = False
        for name in stopped.inputs:
            level, limit = self.levels.get(name, (0, 1 << 62))
            if level < 3:
                self.levels[name] = (level + 1, min(limit, max(stopped.limit, 1)))
                moved = True
        return moved

    def draw(self, ring: Field | Rationals, name: str, type_: TypeProto, attempt: int) -> Value:
        """Returns a value for an input. Raises Undecided if its type is not known."""
        name = self.equal.get(name, name)
        tensor = type_.tensor_type
        if (
            not type_.HasField("tensor_type")
            or not tensor.elem_type
            or not tensor.HasField("shape")
        ):
            raise Undecided(f"the type of {name} is not known")
        shape = [dims.evaluate(d, self.sizes) for d in dims.shape_of(name, tensor) or []]
        if np.prod([float(s) for s in shape]) > LARGEST:
            raise Undecided("an input of this size")
        key = f"{name} {attempt}"
        dtype = tensor.elem_type
        if name in self.ones:
            return known(np.ones(shape, helper.tensor_dtype_to_np_dtype(dtype)), dtype) if (
                dtype not in BITS) else Num(ring.embed(np.ones(shape)), dtype)  # fmt: skip
        if dtype in BITS or (dtype == BOOL and isinstance(ring, Field) and not self.known_booleans):
            parts = ring.draw(shape, key)
            if isinstance(ring, Rationals) and name in self.positive:
                parts = (ring.elementwise(lambda v: abs(v) or 1, parts[0]),)
            return Num(parts, dtype, 1, dtype if dtype in BITS else 0)
        np_dtype = helper.tensor_dtype_to_np_dtype(dtype)
        if np_dtype.kind not in "iub":
            raise Undecided(f"an input of dtype {np_dtype}")
        rng = np.random.default_rng(ring.seed(key))
        return Known(self._integers(rng, name, np_dtype, shape), dtype, free=True)

    def _integers(self, rng: Any, name: str, dtype: Any, shape: Sequence[int]) -> Any:
        if dtype.kind == "b":
            return rng.integers(0, 2, shape).astype(bool)
        limits = np.iinfo(dtype)
        level, limit = self.levels.get(name, (0, 1 << 62))
        small = rng.integers(max(-3, limits.min), 4, shape)
        if level == 0:
            wide = rng.integers(limits.min, limits.max, shape, dtype=dtype, endpoint=True)
            ends = rng.choice(np.array([limits.min, limits.max], dtype), shape)
            share = rng.random(shape)
            found = np.where(share < 0.6, np.where(share < 0.3, ends, wide), small.astype(dtype))
            if found.size > 1:  # one end in every draw
                found.flat[rng.integers(found.size)] = ends.flat[0]
        elif level == 3:
            found = rng.integers(0, 2, shape)
        else:
            low = max(-limit, limits.min) if level == 1 else 0
            found = rng.integers(low, min(limit, limits.max), shape)
        if name in self.positive:
            found = np.where(found <= 0, 1, found)
        return np.asarray(found).astype(dtype)


def sides_inputs(model: ModelProto) -> list[onnx.ValueInfoProto]:
    """Returns the graph inputs that a caller feeds, or may feed."""
    constants = {i.name for i in model.graph.initializer} if model.ir_version < 4 else set()
    return [i for i in model.graph.input if i.name not in constants]


def evaluate(
    model: ModelProto,
    side: Side,
    values: Mapping[str, Value],
    overrides: Mapping[str, Value],
    deadline: float,
    watch: Callable[[Side, str, Value], Value] = lambda _, __, value: value,
) -> dict[str, Value]:
    """Returns the outputs of a graph. `values`: of its inputs. `overrides`: of initializers.
    `watch` receives each result, and returns what its readers read.

    Raises Undecided, Stopped, and ZeroDivisor for a draw with a division by zero.
    """
    opsets = versions(model.opset_import)
    side.opset = opsets.get("", 0)
    held: dict[str, Value] = {}
    for tensor in model.graph.initializer:
        if tensor.name not in values:
            held[tensor.name] = overrides.get(tensor.name) or side.tensor(tensor)
    if model.graph.sparse_initializer:
        raise Undecided("sparse initializers")
    held.update(values)
    uses = _last_uses(model)
    for number, node in enumerate(model.graph.node):
        if time.monotonic() > deadline:
            raise Undecided("exact evaluation takes longer than its time")
        for name, value in zip(
            node.output, _results(side, model, node, held, opsets), strict=False
        ):
            if name and value is not None:
                _measured(node, value)
                held[name] = watch(side, name, value)
        for name in uses.get(number, ()):
            held.pop(name, None)
    return {o.name: held[o.name] for o in model.graph.output if o.name in held}


def _measured(node: NodeProto, value: Value) -> None:
    if isinstance(value, Num) and value.parts[0].size > LARGEST:
        raise Undecided(f"{node.op_type}: a tensor of this size")


def _last_uses(model: ModelProto) -> dict[int, list[str]]:
    last = {name: i for i, node in enumerate(model.graph.node) for name in node.input}
    kept = {o.name for o in model.graph.output}
    found: dict[int, list[str]] = {}
    for name, i in last.items():
        if name not in kept:
            found.setdefault(i, []).append(name)
    return found


def _results(
    side: Side, model: ModelProto, node: NodeProto, held: Mapping[str, Value],
    opsets: Mapping[str, int],
) -> Sequence[Value | None]:  # fmt: skip
    name = full_name(node.domain, node.op_type)
    if any(a.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS) for a in node.attribute):
        raise Undecided(name)
    operands: Operands = [held[i] if i else None for i in node.input]
    attributes = _attributes(node, opsets.get(canonical(node.domain), 1))
    plain = canonical(node.domain) == "" or (
        node.domain == "com.microsoft" and node.op_type in _ALSO
    )
    kernel = KERNELS.get(node.op_type) if plain else None
    try:
        if kernel is None:
            return _opaque(side, node, operands, attributes, opsets)
        return kernel(side, node, operands, attributes)
    except OutOfRange as error:
        inputs = list(_ancestors(model, node))
        raise Stopped(
            f"{name}: integers that are no valid index or size", inputs, error.limit
        ) from (None)
    except Stopped:
        raise
    except Undecided as error:
        raise Undecided(f"{name}: {error}") from None
    except (ValueError, IndexError, TypeError, KeyError, AttributeError) as error:
        raise Undecided(f"{name}: {one_line(error, 120)}") from error


def _ancestors(model: ModelProto, node: NodeProto) -> Iterator[str]:
    """Yields the graph inputs that a node depends on."""
    made = {o: n for n in model.graph.node for o in n.output}
    inputs = {i.name for i in sides_inputs(model)}
    todo, seen = list(node.input), set()
    while todo:
        name = todo.pop()
        if not name or name in seen:
            continue
        seen.add(name)
        if name in inputs:
            yield name
        elif name in made:
            todo += made[name].input


def _attributes(node: NodeProto, version: int) -> Attributes:
    found = dict(_defaults(canonical(node.domain), node.op_type, version))
    for a in node.attribute:
        value = helper.get_attribute_value(a)
        if isinstance(value, bytes):
            value = value.decode("utf-8", "replace")
        found[a.name] = value
    return found


@cache
def _defaults(domain: str, op: str, version: int) -> Mapping[str, Any]:
    try:
        schema = defs.get_schema(op, version, domain)
    except defs.SchemaError:
        return {}
    found = {}
    for name, a in schema.attributes.items():
        if a.default_value.type:
            value = helper.get_attribute_value(a.default_value)
            found[name] = value.decode() if isinstance(value, bytes) else value
    return found


# operators whose results are random, or mark another kind of value
_RANDOM = domains.RANDOM


def _opaque(
    side: Side, node: NodeProto, operands: Operands, attributes: Attributes,
    opsets: Mapping[str, int],
) -> Sequence[Value | None]:  # fmt: skip
    """Returns the results of an operator without a kernel, as uninterpreted functions of all
    elements of its operands.
    """
    if node.op_type == "Constant":
        return [_constant(side, node, attributes)]
    types = _result_types(node, operands, opsets)
    name = function_name(node, attributes, _dtype(operands))
    name = f"{name} opset {_since(node, opsets)}"
    if node.op_type in _RANDOM:
        count = sum(f.startswith(name) for f in side.functions)
        name = f"{name} number {count}"
    results: list[Value | None] = []
    for i, (output, type_) in enumerate(zip(node.output, types, strict=True)):
        if not output:
            results.append(None)
            continue
        tensor = type_.tensor_type
        dims = [d.dim_value if d.HasField("dim_value") else -1 for d in tensor.shape.dim]
        if not tensor.elem_type or not tensor.HasField("shape") or min(dims, default=0) < 0:
            raise Undecided("not interpreted, and its result has no known shape")
        results.append(side.opaque(f"{name} result {i}", operands, dims, tensor.elem_type))
    return results


def _dtype(operands: Operands) -> int:
    return next((o.dtype for o in operands if o is not None), 0)


def _since(node: NodeProto, opsets: Mapping[str, int]) -> int:
    domain = canonical(node.domain)
    return int(defs.get_schema(node.op_type, opsets.get(domain, 1), domain).since_version)


def _result_types(
    node: NodeProto, operands: Operands, opsets: Mapping[str, int]
) -> list[TypeProto]:
    domain = canonical(node.domain)
    try:
        schema = defs.get_schema(node.op_type, opsets.get(domain, 1), domain)
    except defs.SchemaError:
        raise Undecided("not interpreted") from None
    types = {
        name: helper.make_tensor_type_proto(o.dtype, o.shape)
        for name, o in zip(node.input, operands, strict=True)
        if o is not None
    }
    data = {
        name: onnx.numpy_helper.from_array(o.array, name)
        for name, o in zip(node.input, operands, strict=True)
        if isinstance(o, Known) and o.array.dtype.kind in "iub" and o.array.size < 1000
    }
    for name, o in zip(node.input, operands, strict=True):
        if isinstance(o, Num) and o.raw is not None and o.raw.size < 1000 and o.dtype == 1:
            data[name] = onnx.numpy_helper.from_array(o.raw.astype(np.float32), name)
    try:
        found = onnx.shape_inference.infer_node_outputs(
            schema, node, types, data, opset_imports=[
                helper.make_opsetid(d, v) for d, v in opsets.items()
            ]
        )  # fmt: skip
    except Exception as error:  # onnx raises its own classes, and RuntimeError
        raise Undecided(f"not interpreted ({one_line(error, 80)})") from error
    if any(name and name not in found for name in node.output):
        raise Undecided("not interpreted, and its result has no known type")
    return [found.get(name, TypeProto()) for name in node.output]


def _constant(side: Side, node: NodeProto, a: Attributes) -> Value:
    if "value" in a:
        return side.tensor(a["value"], node.output[0])
    kinds = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64,
             "value_ints": np.int64}  # fmt: skip
    for name, dtype in kinds.items():
        if name in a:
            tensor = onnx.numpy_helper.from_array(np.array(a[name], dtype), node.output[0])
            return side.tensor(tensor)
    raise Undecided("a constant of this kind")
