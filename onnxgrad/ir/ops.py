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
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from onnxgrad.errors import InternalError, UnknownDtype
from onnxgrad.ir import attributes, signature
from onnxgrad.ir.block import Binding, BindingBlock, Var
from onnxgrad.ir.type_inference import at_emission
from onnxgrad.ir.types import INT_DTYPES, Array, TensorType, Type, dtype_name, numpy_dtype

# two of these with equal operands are still two different draws
RANDOM_OPS = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"}
)


# between the values of one metadata key that sources disagree on
_UNION = " | "


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
    present = (True,) if wanted is None else (True,) * wanted if isinstance(wanted, int) else tuple(wanted)
    if op_type == "Split" and domain == "":
        _split_evenly(schema, operands, attrs, len(present))
    inputs = _operands(op_type, domain, schema, operands, attrs)
    given = [(name, value) for name, value in attrs.items() if value is not None]

    key = None
    if at.known is not None and op_type not in RANDOM_OPS:
        key = (op_type, domain, tuple(inputs), tuple(sorted((n, _key(v)) for n, v in given)), present)
        known: Binding | None = at.known.get(key)
        if known is not None and known.is_live:
            return known.out if wanted is None else tuple(known.outputs)
    binding = append(at, op_type, domain, schema, inputs, given, present)
    if key is not None and at.known is not None:
        at.known[key] = binding
    return binding.out if wanted is None else tuple(binding.outputs)


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
    try:
        node = NodeProto(op_type=op_type, domain=domain)
        node.attribute.extend([signature.attribute(schema, n, v) for n, v in attrs])
        if schema is not None:
            signature.check_operands(schema, inputs)
        names = [program.fresh(op_type.lower()) if p else "" for p in present]
        node.name = program.fresh(f"{op_type}_{names[0] or 'unnamed'}")
        node.input.extend(["" if v is None else v.name for v in inputs])
        node.output.extend(names)
        types = at_emission.result_types(schema, node, inputs, at.block)
    except signature.TypeMismatch as e:
        operands = ", ".join("-" if v is None else f"{v.name}: {v.type or '?'}" for v in inputs)
        raise InternalError(f"emitted binding does not type: {op_type}({operands}): {e}") from e
    _add_provenance(node, at)
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
    """A constant of the block emitted into: an initializer, or a Constant binding inside a function body.

    Without `dtype` numpy values keep their own and Python's become bool, int64 or float32. Raises InternalError when
    `dtype` cannot hold the value (0.5 as an integer, 1e9 as float16).
    """
    at = emitter()
    array = _array(value, dtype)
    key = None
    if at.known is not None and array.dtype != object:
        key = ("constant", str(array.dtype), array.shape, array.tobytes())
        known: Var | None = at.known.get(key)
        if known is not None and _still_there(known):
            return known
    program = at.block.program
    if at.block.is_function or program.ir_version < 4:  # below IR 4 an initializer would have to be a graph input
        tensor = numpy_helper.from_array(array)
        schema = attributes.schema("Constant", at.block.opsets.get("", 0), "")
        # the schema before version 9 knows floats only; runtimes take every dtype
        floats = array.dtype.kind == "f" or (schema is not None and schema.since_version >= 9)
        var = append(at, "Constant", "", schema if floats else None, [], [("value", tensor)], [True]).out
        var.type = TensorType(tensor.data_type, tuple(tensor.dims))
    else:
        tensor = numpy_helper.from_array(array, program.fresh(name))
        var = at.block.add_initializer(tensor)
        at.constants.append(var)
    if key is not None and at.known is not None:
        at.known[key] = var
    return var


def _array(value: Any, dtype: int | None) -> Array:
    source = np.asarray(value)
    if source.dtype.kind == "U":
        return source.astype(object)
    if dtype is None:
        is_python_float = source.dtype == np.float64 and not isinstance(value, (np.ndarray, np.generic))
        return source.astype(np.float32) if is_python_float else source
    with np.errstate(all="ignore"):
        array = source.astype(numpy_dtype(dtype))
    if source.dtype.kind in "biuf" and not _holds(array, source, dtype):
        raise InternalError(f"{dtype_name(dtype)} cannot hold the constant {value!r}")
    return array


def _holds(array: Array, source: Array, dtype: int) -> bool:
    if dtype in INT_DTYPES or dtype == TensorProto.BOOL:
        return bool(np.array_equal(array, source))
    lost = ~np.isfinite(array.astype(np.float64)) & np.isfinite(source)
    return not bool(lost.any())


def _still_there(var: Var) -> bool:
    if var.definition is not None:
        return var.definition.is_live
    return var.block.initializers.get(var.name) is var


def _split_evenly(
    schema: onnx.defs.OpSchema | None, operands: Sequence[Any], attrs: dict[str, Any], count: int
) -> None:
    """Split into equal parts: from version 18 on their number is an attribute, before that of the outputs alone."""
    even = len(operands) < 2 or operands[1] is None
    if schema is None or not even:
        return
    if schema.since_version >= 18:
        attrs.setdefault("num_outputs", count)
    else:
        attrs.pop("num_outputs", None)


def _operands(
    op_type: str, domain: str, schema: onnx.defs.OpSchema | None, operands: Sequence[Any], attrs: dict[str, Any]
) -> list[Var | None]:
    """Literals to constants; operands that this opset wants as attributes to attributes."""
    if schema is None:
        if domain == "":
            raise InternalError(f"operator {op_type} does not exist at opset {emitter().block.opsets.get(domain, 0)}")
        return [v if isinstance(v, Var) or v is None else constant(v) for v in operands]
    since = schema.since_version
    expected = signature.formals(op_type, domain, since)
    inputs: list[Var | None] = []
    for i, value in enumerate(operands):
        name = signature.moved_to_attribute(op_type, domain, since, i)
        if name is not None:
            number = value.const if isinstance(value, Var) else value
            if number is None and value is not None:
                raise InternalError(f"{op_type} takes '{name}' as an attribute at this opset, so it must be constant")
            if number is not None and np.size(number):  # no axes at all: as if not given
                attrs[name] = number
        elif isinstance(value, Var) or value is None:
            inputs.append(value)
        else:
            vector = signature.is_vector(expected, i) and np.ndim(value) == 0
            like = signature.untyped_like(value, i, expected, operands)
            if like is not None and op_type != "CastLike":
                inputs.append(_constant_like(value, like))
                continue
            dtype = signature.literal_dtype(value, i, expected, operands)
            inputs.append(constant([value] if vector else value, dtype))
    return inputs


def _constant_like(value: Any, like: Var) -> Var:
    """A literal in the dtype of a value whose own is known at run time only. UnknownDtype where no operator does it."""
    block = emitter().block
    if block.opsets.get("", 0) >= 15:
        wide = TensorProto.DOUBLE if np.asarray(value).dtype.kind == "f" else None
        cast: Var = op.CastLike(constant(value, wide), like)
        return cast
    if not block.is_function:
        return constant(value)
    raise UnknownDtype(
        f"function '{block.root.name}': the dtype of '{like.name}' is that of each call, and a constant like it needs "
        f"CastLike of opset 15: raise the function's opset {block.opsets.get('', 0)}, or inline it first"
    )


def _key(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(_key(v) for v in value)
    if isinstance(value, np.ndarray):
        return (str(value.dtype), value.shape, value.tobytes())
    return value.SerializeToString() if hasattr(value, "SerializeToString") else (type(value).__name__, value)


def merged_metadata(sources: Iterable[Binding], made_by: str = "") -> dict[str, str]:
    """The union of the sources' metadata; values that differ are listed one after the other, each once."""
    merged: dict[str, dict[str, None]] = {}
    for source in sources:
        for entry in source.node.metadata_props:
            merged.setdefault(entry.key, {}).update(dict.fromkeys(entry.value.split(_UNION)))
    if made_by:
        merged.setdefault("onnxgrad.made_by", {})[made_by] = None
    return {key: _UNION.join(values) for key, values in merged.items()}


def _add_provenance(node: NodeProto, at: Emitter) -> None:
    if at.block.program.ir_version < 10:
        return  # nodes carry metadata from IR 10 on
    for key, value in merged_metadata(at.sources, at.made_by).items():
        node.metadata_props.add(key=key, value=value)
