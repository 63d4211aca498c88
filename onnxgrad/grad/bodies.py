"""Calls opened in place: local functions, and operators without a rule whose schema gives them a function body."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import AttributeProto, FunctionProto, TensorProto

from onnxgrad.errors import InputError
from onnxgrad.grad.accumulate import with_type_of
from onnxgrad.grad.registry import rule_of
from onnxgrad.ir import attributes
from onnxgrad.ir.block import Binding, BindingBlock, Var
from onnxgrad.ir.clone import clone_bindings
from onnxgrad.ir.load import function_block
from onnxgrad.ir.ops import constant, emitting
from onnxgrad.ir.symbolic import sizes
from onnxgrad.ir.types import Array, TensorType, element_count, type_to_proto
from onnxgrad.passes.evaluate import evaluate

# opening calls stops here: a chain of functions that call each other twice doubles the graph at each level
MAX_BINDINGS = 200_000


def has_body(binding: Binding) -> bool:
    """Whether the binding can be opened: a local function, or a schema body at this opset; and it has no rule."""
    if rule_of(binding) is not None or binding.blocks:
        return False
    return _local(binding) is not None or _has_schema_body(binding)


def open_call(binding: Binding) -> list[Binding]:
    """Replace the call by its body's bindings, within its block; returns them.

    Raises InputError for a recursive function, for one written for another opset whose operators changed since, and
    when the graph grows past MAX_BINDINGS.
    """
    local = _local(binding)
    if local is not None:
        body, results = local, list(binding.outputs)
    else:
        body, results = _schema_body(binding)
    block = binding.block
    if len(block.bindings) + len(body.bindings) > MAX_BINDINGS:
        raise InputError(f"opening the calls of '{binding.op}' passes {MAX_BINDINGS} nodes: inline less of the model")
    if local is not None:
        _refuse_recursion(binding)
        _adopt_opsets(binding, body)
    bound = {a.name: a for a in binding.node.attribute}
    if isinstance(body.proto, FunctionProto):
        for default in body.proto.attribute_proto:
            bound.setdefault(default.name, default)
    _add_schema_defaults(binding, bound)
    mapping = dict.fromkeys(body.inputs) | dict(zip(body.inputs, binding.inputs))
    with emitting(block, share=True):
        opened = clone_bindings(body.bindings, block, mapping, bound=bound, prefix=f"{binding.op.lower()}_", fold=fold)
    for out, inner in zip(results, body.outputs):
        if out is None:
            continue
        new = mapping[inner]
        if new is None:
            raise InputError(f"'{binding}' returns an operand that the call leaves out")
        block.replace(out, new)
        if new.definition is not None:
            with_type_of(new, out)
    block.remove(binding)
    return opened


# larger constants of a body are left for the runtime to compute
_FOLDED_BYTES = 1 << 12


def fold(b: Binding) -> Var | None:
    """The small constant that a binding amounts to once sizes are known: shape arithmetic, numbers; None otherwise."""
    if b.blocks or b.domain != "" or b.out.returned or not isinstance(b.out.type, TensorType):
        return None
    array: Array | None = None
    if b.op == "Constant":
        array = b.out.const
    elif b.op == "Size" and b.inputs[0] is not None:
        count = element_count(b.inputs[0].shape)
        array = None if count is None else np.array(count, np.int64)
    elif b.out.dtype == TensorProto.INT64 and b.out.rank in (0, 1):
        known = sizes(b.out)
        if known is not None and all(isinstance(d, int) for d in known):
            array = np.array(known, np.int64).reshape([len(known)] if b.out.rank else [])
    if array is None and all(v is None or v.is_constant for v in b.inputs) and _is_small(b):
        array = evaluate(b)
    return None if array is None or array.dtype == object or array.nbytes > _FOLDED_BYTES else constant(array)


def _is_small(b: Binding) -> bool:
    """Evaluating may not build what is too large to keep; a result of unknown length is a Range or the like."""
    count = element_count(b.out.shape)
    operands = [element_count(v.shape) for v in b.inputs if v is not None]
    return (count or 0) <= _FOLDED_BYTES and all(n is not None and n <= _FOLDED_BYTES for n in operands)


def _local(binding: Binding) -> BindingBlock | None:
    functions = binding.block.program.functions
    if not functions:
        return None
    found = functions.get((binding.domain, binding.op, binding.node.overload))
    return found or functions.get((binding.node.domain, binding.op, binding.node.overload))


def _has_schema_body(binding: Binding) -> bool:
    schema: Any = attributes.schema(binding.op, binding.version, binding.domain)  # its stub lags behind
    return bool(schema is not None and (schema.has_function or schema.has_context_dependent_function))


def _schema_body(binding: Binding) -> tuple[BindingBlock, list[Var | None]]:
    """The schema's body at the newest version not above the model's opset, and the call's results in its order.

    A body built for a call may not define the outputs that the call leaves out.
    """
    schema: Any = attributes.schema(binding.op, binding.version, binding.domain)
    if schema is None:
        raise InputError(f"'{binding}' has no schema")
    version = binding.version
    if schema.has_function:
        chosen = _not_above(schema.function_opset_versions, version)
        data = schema.get_function_with_opset_version(chosen)
    else:
        chosen = _not_above(schema.context_dependent_function_opset_versions, version)
        types = [type_to_proto(None if v is None else v.type).SerializeToString() for v in binding.inputs]
        node = type(binding.node)()
        node.CopyFrom(binding.node)
        node.input[:] = ["" if v is None else v.name for v in binding.inputs]
        node.output[:] = ["" if v is None else v.name for v in binding.outputs]
        data = schema.get_context_dependent_function_with_opset_version(chosen, node.SerializeToString(), types)
    proto = FunctionProto.FromString(data)
    if not proto.node:
        raise InputError(f"the schema's body of '{binding}' needs its operands' types, which are not known")
    defined = {name for n in proto.node for name in n.output} | set(proto.input)
    kept = [i for i, name in enumerate(proto.output) if name in defined]
    names = [proto.output[i] for i in kept]
    del proto.output[:]
    proto.output.extend(names)
    return function_block(binding.block.program, proto), [binding.result(i) for i in kept]


def _not_above(versions: Any, limit: int) -> int:
    return max((v for v in versions if v <= limit), default=min(versions))


def _add_schema_defaults(binding: Binding, bound: dict[str, AttributeProto]) -> None:
    schema = attributes.schema(binding.op, binding.version, binding.domain)
    if schema is not None and _local(binding) is None:
        for name, a in schema.attributes.items():
            if a.default_value.name and name not in bound:
                bound[name] = a.default_value


def _refuse_recursion(binding: Binding) -> None:
    """Raises InputError when the function reaches itself through calls."""
    functions: Mapping[Any, BindingBlock] = binding.block.program.functions
    start = _local(binding)
    work, seen = [start], set()
    while work:
        block = work.pop()
        for b in block.walk() if block is not None else ():
            called = functions.get((b.domain, b.op, b.node.overload))
            if called is start:
                raise InputError(
                    f"function {binding.domain}::{binding.op} calls itself: no graph holds it, so it has no gradient"
                )
            if called is not None and called not in seen:
                seen.add(called)
                work.append(called)


def _adopt_opsets(binding: Binding, body: BindingBlock) -> None:
    """The body's nodes will be read at the model's opset: they must mean the same there."""
    opsets = binding.block.program.opsets
    for domain, version in body.opsets.items():
        opsets.setdefault(domain, version)
    for b in body.walk():
        here, there = opsets.get(b.domain, 0), b.version
        if here == there or (b.domain, b.op, b.node.overload) in binding.block.program.functions:
            continue
        old, new = attributes.schema(b.op, there, b.domain), attributes.schema(b.op, here, b.domain)
        if old is not None and (new is None or new.since_version != old.since_version):
            raise InputError(
                f"function {binding.domain}::{binding.op} is written for opset {there}, the model for {here}, and "
                f"{b.op} changed in between: convert the model to one opset first"
            )
