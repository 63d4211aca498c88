"""Emission: `op.MatMul(a, b)` appends a binding to the block that `emitting(block)` names and returns its result.

Python literals become constants of the dtype that the schema's type variable has in this call, or, for operands
like axes that the schema fixes to int64, of that dtype. An operand that was an attribute at the model's opset
(axes, split, pads, ...) is emitted as that attribute. Results are typed on the spot, so a wrong shape is
reported by the line that emitted it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from onnxgrad.errors import InternalError
from onnxgrad.ir import attributes, infer
from onnxgrad.ir.block import Binding, BindingBlock, Var
from onnxgrad.ir.types import Type, numpy_dtype

# two of these with equal operands are still two different draws
RANDOM_OPS = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"}
)


@dataclass
class Emitter:
    """Where bindings go. `known` holds what was emitted already when sharing is on (hash-consing)."""

    block: BindingBlock
    known: dict[Any, Any] | None = None
    sources: Sequence[Binding] = ()
    made_by: str = ""
    emitted: list[Binding] = field(default_factory=list)
    constants: list[Var] = field(default_factory=list)

    def discard(self) -> None:
        """Take back what was emitted and nothing reads."""
        self.block.remove_unused(self.emitted)
        for v in self.constants:
            if not v.use_count and v.block.initializers.get(v.name) is v:
                v.block.remove_initializer(v)


_current: ContextVar[Emitter] = ContextVar("onnxgrad_emitter")


@contextmanager
def emitting(
    block: BindingBlock, *, share: bool = False, sources: Sequence[Binding] = (), made_by: str = ""
) -> Iterator[Emitter]:
    """Emit into `block`. `share`: an equal binding is emitted once. `sources` and `made_by` are the provenance."""
    emitter = Emitter(block, {} if share else None, sources, made_by)
    token = _current.set(emitter)
    try:
        yield emitter
    finally:
        _current.reset(token)


@contextmanager
def using(emitter: Emitter) -> Iterator[Emitter]:
    """Emit through an emitter made before, with what it knows."""
    token = _current.set(emitter)
    try:
        yield emitter
    finally:
        _current.reset(token)


def emitter() -> Emitter:
    """The emitter in force; InternalError outside of `emitting`."""
    try:
        return _current.get()
    except LookupError:
        raise InternalError("emission outside of `with emitting(block)`") from None


class _Domain:
    """`op.X(...)` emits operator X of one domain; `op.domain("com.microsoft").X(...)` of another."""

    def __init__(self, domain: str) -> None:
        self._name = domain

    def domain(self, name: str) -> _Domain:
        """Emission of another domain's operators."""
        return _Domain(name)

    def __getattr__(self, op_type: str) -> Any:
        def call(*operands: Any, **attrs: Any) -> Any:
            return emit(op_type, operands, attrs, domain=self._name)

        return call


op: Any = _Domain("")


def emit(op_type: str, operands: Sequence[Any], attrs: Mapping[str, Any] | None = None, *, domain: str = "") -> Any:
    """Append `op_type(operands, **attrs)`; a Var, or a tuple of Vars when `outputs=n` is among the attributes.

    `outputs` may also be a sequence of bools: False leaves that output out. Attributes that are None are left out.
    Raises InternalError, with the binding printed, when the operator is unknown or its types do not fit.
    """
    at = emitter()
    attrs = dict(attrs or {})
    wanted = attrs.pop("outputs", None)
    schema = attributes.schema(op_type, at.block.opsets.get(domain, 0), domain)
    inputs = _operands(op_type, domain, schema, operands, attrs)
    given = [(name, value) for name, value in attrs.items() if value is not None]
    present = (True,) if wanted is None else (True,) * wanted if isinstance(wanted, int) else tuple(wanted)

    key = None
    if at.known is not None and op_type not in RANDOM_OPS:
        key = (op_type, domain, tuple(inputs), tuple(sorted((n, _key(v)) for n, v in given)), present)
        if key in at.known:
            return at.known[key]
    binding = append(at, op_type, domain, schema, inputs, given, present)
    result = binding.out if wanted is None else tuple(binding.outputs)
    if key is not None and at.known is not None:
        at.known[key] = result
    return result


def append(
    at: Emitter,
    op_type: str,
    domain: str,
    schema: onnx.defs.OpSchema | None,
    inputs: Sequence[Var | None],
    attrs: Iterable[tuple[str, Any]],
    present: Sequence[bool],
) -> Binding:
    """Append one typed binding without literals, versions or sharing."""
    program = at.block.program
    while inputs and inputs[-1] is None:
        inputs = inputs[:-1]
    names = [program.fresh(op_type.lower()) if p else "" for p in present]
    node = NodeProto(
        op_type=op_type,
        domain=domain,
        name=program.fresh(f"{op_type}_{names[0]}"),
        input=["" if v is None else v.name for v in inputs],
        output=names,
        attribute=[helper.make_attribute(n, v) for n, v in attrs],
    )
    _add_provenance(node, at)
    try:
        types = infer.result_types(schema, node, inputs, at.block)
    except infer.TypeMismatch as e:
        operands = ", ".join("-" if v is None else f"{v.name}: {v.type or '?'}" for v in inputs)
        raise InternalError(f"emitted binding does not type: {op_type}({operands}): {e}") from e
    binding = at.block.append(node, inputs, types)
    at.emitted.append(binding)
    return binding


def emit_with_blocks(
    op_type: str,
    operands: Sequence[Var | None],
    blocks: Mapping[str, BindingBlock],
    types: Sequence[Type | None],
    **attrs: Any,
) -> tuple[Var, ...]:
    """Append a control-flow binding (If, Loop, Scan) with the given nested blocks and result types."""
    at = emitter()
    program = at.block.program
    names = [program.fresh(op_type.lower()) for _ in types]
    node = NodeProto(
        op_type=op_type,
        name=program.fresh(f"{op_type}_{names[0] if names else 'empty'}"),
        input=["" if v is None else v.name for v in operands],
        output=names,
        attribute=[helper.make_attribute(n, v) for n, v in attrs.items() if v is not None],
    )
    _add_provenance(node, at)
    binding = at.block.append(node, operands, types)
    for name, nested in blocks.items():
        nested.owner = binding
        nested.changed = True
        binding.blocks[name] = nested
    binding.changed = True
    at.emitted.append(binding)
    return tuple(v for v in binding.outputs if v is not None)


def nested_block(name: str) -> BindingBlock:
    """An empty block to be nested in a binding of the block now emitted into (see `emit_with_blocks`)."""
    outer = emitter().block
    block = BindingBlock(outer.program, onnx.GraphProto(name=outer.program.fresh(name)), outer.opsets)
    block.changed = True
    return block


def constant(value: Any, dtype: int | None = None, name: str = "const") -> Var:
    """A constant of the block emitted into: an initializer, or a Constant binding inside a function body."""
    at = emitter()
    array = np.asarray(value) if dtype is None else np.asarray(value).astype(numpy_dtype(dtype))
    key = None
    if at.known is not None and array.dtype != object:
        key = ("constant", str(array.dtype), array.shape, array.tobytes())
        if key in at.known:
            known: Var = at.known[key]
            return known
    program = at.block.program
    if at.block.root.is_function:
        tensor = numpy_helper.from_array(array)
        schema = attributes.schema("Constant", at.block.opsets.get("", 0), "")
        var = append(at, "Constant", "", schema, [], [("value", tensor)], [True]).out
    else:
        tensor = numpy_helper.from_array(array, program.fresh(name))
        var = at.block.add_initializer(tensor)
        at.constants.append(var)
    if key is not None and at.known is not None:
        at.known[key] = var
    return var


def _operands(
    op_type: str, domain: str, schema: onnx.defs.OpSchema | None, operands: Sequence[Any], attrs: dict[str, Any]
) -> list[Var | None]:
    """Literals to constants; operands that this opset wants as attributes to attributes."""
    if schema is None and domain == "":
        raise InternalError(f"operator {op_type} does not exist at opset {emitter().block.opsets.get(domain, 0)}")
    formal = [] if schema is None else _formal(op_type, domain, schema.since_version)
    inputs: list[Var | None] = []
    for i, value in enumerate(operands):
        if isinstance(value, Var) or value is None:
            as_attribute = None if schema is None else _moved_to_attribute(op_type, domain, schema.since_version, i)
            if as_attribute is None:
                inputs.append(value)
            elif value is not None:
                ints = value.const
                if ints is None:
                    raise InternalError(
                        f"{op_type} takes '{as_attribute}' as an attribute at this opset, so it must be constant"
                    )
                attrs[as_attribute] = ints.tolist()
            continue
        as_attribute = None if schema is None else _moved_to_attribute(op_type, domain, schema.since_version, i)
        if as_attribute is not None:
            attrs[as_attribute] = value.tolist() if isinstance(value, np.ndarray) else value
        else:
            inputs.append(constant(value, _literal_dtype(value, i, formal, operands)))
    return inputs


def _literal_dtype(value: Any, index: int, formal: Sequence[str], operands: Sequence[Any]) -> int | None:
    """The dtype of the schema's type variable at this operand; numpy values keep their own."""
    if isinstance(value, (np.ndarray, np.generic)):
        return None
    variable = formal[min(index, len(formal) - 1)] if formal else ""
    if variable.startswith("tensor("):
        return _FIXED.get(variable, TensorProto.INT64)
    for i, other in enumerate(operands):
        if isinstance(other, Var) and other.dtype and formal and formal[min(i, len(formal) - 1)] == variable:
            return other.dtype
    if isinstance(value, bool):
        return TensorProto.BOOL
    is_float = isinstance(value, float) or (
        isinstance(value, (list, tuple)) and any(isinstance(v, float) for v in value)
    )
    return TensorProto.FLOAT if is_float else TensorProto.INT64


_FIXED = {"tensor(int64)": TensorProto.INT64, "tensor(bool)": TensorProto.BOOL, "tensor(float)": TensorProto.FLOAT}


@lru_cache(maxsize=1024)
def _formal(op_type: str, domain: str, since: int) -> list[str]:
    """The type variable (or fixed type) of each formal input."""
    return [i.type_str for i in onnx.defs.get_schema(op_type, since, domain).inputs]


@lru_cache(maxsize=4096)
def _moved_to_attribute(op_type: str, domain: str, since: int, index: int) -> str | None:
    """The name of the newest schema's input `index`, when the schema at hand has it as an attribute."""
    latest = onnx.defs.get_schema(op_type, domain=domain).inputs
    if index >= len(latest):
        return None
    name = latest[index].name
    schema = onnx.defs.get_schema(op_type, since, domain)
    if any(i.name == name for i in schema.inputs):
        return None
    return name if name in schema.attributes else None


def _key(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(_key(v) for v in value)
    if isinstance(value, np.ndarray):
        return (str(value.dtype), value.shape, value.tobytes())
    return value.SerializeToString() if hasattr(value, "SerializeToString") else (type(value).__name__, value)


def _add_provenance(node: NodeProto, at: Emitter) -> None:
    """The union of the sources' metadata; values that differ are listed one after the other."""
    if at.block.program.ir_version < 10:
        return  # nodes carry metadata from IR 10 on
    merged: dict[str, dict[str, None]] = {}
    for source in at.sources:
        for entry in source.node.metadata_props:
            merged.setdefault(entry.key, {})[entry.value] = None
    for key, values in merged.items():
        node.metadata_props.add(key=key, value=" | ".join(values))
    if at.made_by:
        node.metadata_props.add(key="onnxgrad.made_by", value=at.made_by)
