"""Emission: `op.MatMul(a, b)` appends a binding to the block that `emitting(block)` names and
returns its result.

Python literals become constants of the dtype that the schema's type variable has in this call. If
the schema fixes the dtype, as for axes, they have that dtype. An operand that was an attribute in
the model's opset (axes, split, pads, ...) is emitted as that attribute. Results are typed at once,
so a wrong shape is reported by the line that emitted it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import onnx
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper

from onnxgrad.errors import InternalError, UnknownDtype
from onnxgrad.ir import attributes
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.derivations import LITERAL, Step
from onnxgrad.ir.domains import RANDOM
from onnxgrad.ir.emission import signature
from onnxgrad.ir.emission.emitter import Emitter, add_provenance, append, emitter, in_force
from onnxgrad.ir.origins import note_equal
from onnxgrad.ir.protobufs import tensor_of
from onnxgrad.ir.traced_arrays import Traced
from onnxgrad.ir.types import INT_DTYPES, Array, TensorType, Type, dtype_name, numpy_dtype
from onnxgrad.ir.var import Var, names_of
from onnxgrad.options import known_keywords


def constant(value: Any, dtype: int | None = None, name: str = "const") -> Var:
    """Returns a constant of the block emitted into: an initializer, or a Constant binding inside a
    function body.

    Without `dtype` numpy values keep theirs and Python's become bool, int64 or float32. Raises
    InternalError if `dtype` cannot hold the value (0.5 as an integer, 1e9 as float16).
    """
    at = emitter()
    if isinstance(value, Traced) and dtype is None:
        return _shared(at, value.array, value.step, name)
    # formulas repeat the same numbers, and comparing their text is fastest
    if at.known is None:  # nothing is shared
        return _new(at, _array(value, dtype), name)
    number = (repr(value), dtype) if type(value) in (int, float) else None
    var = _known(at, number)
    if var is not None:
        return var
    array = _array(value, dtype)
    key = None
    if array.dtype != object:
        key = ("constant", str(array.dtype), array.shape, array.tobytes())
    var = _known(at, key) or _new(at, array, name)
    at.known.update({k: var for k in (number, key) if k is not None})
    return var


def _shared(at: Emitter, array: Array, step: Step, name: str) -> Var:
    """A constant that was computed from weights, or the equal one that was emitted before."""
    key = ("constant", str(array.dtype), array.shape, array.tobytes())
    found, var = _known(at, key), _new(at, array, name)
    var.source = step
    if found is not None:
        note_equal(found, var)
        var.block.remove_initializer(var)
        return found
    if at.known is not None:
        at.known[key] = var
    return var


def _known(at: Emitter, key: object) -> Var | None:
    """The constant emitted under this key before, if equal ones are shared."""
    found: Var | None = None if at.known is None or key is None else at.known.get(key)
    if found is None:
        return None
    there = (
        found.block.initializers.get(found.name) is found
        if found.definition is None
        else found.definition.is_live
    )
    return found if there else None


def _new(at: Emitter, array: Array, name: str) -> Var:
    program = at.block.program
    # below IR 4 an initializer must be a graph input
    if at.block.is_function or program.ir_version < 4:
        tensor = numpy_helper.from_array(array)
        schema = attributes.schema("Constant", at.block.opsets.get("", 0), "")
        # the schema before version 9 knows floats only; runtimes take every dtype
        floats = array.dtype.kind == "f" or (schema is not None and schema.since_version >= 9)
        var = append(
            at, "Constant", "", schema if floats else None, [], [("value", tensor)], [True]
        ).out
        var.type = TensorType(tensor.data_type, tuple(tensor.dims))
        var.source = None if program.derivations is None else LITERAL
        return var
    tensor = tensor_of(array, program.names.fresh(name))
    var = at.block.add_initializer(tensor)
    var.is_literal = True
    var.source = None if program.derivations is None else LITERAL
    at.constants.append(var)
    return var


def _array(value: Any, dtype: int | None) -> Array:
    source = np.asarray(value)
    if source.dtype.kind == "U":
        return source.astype(object)
    if dtype is None:
        is_python_float = source.dtype == np.float64 and not isinstance(
            value, (np.ndarray, np.generic)
        )
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


@known_keywords
def emitting(
    block: BindingBlock, *, share: bool = False, sources: Sequence[Binding] = (), made_by: str = ""
) -> AbstractContextManager[Emitter]:
    """Emits into `block`. If `share` is true, equal bindings are emitted once. `sources` and
    `made_by` are the provenance.
    """
    return in_force(Emitter(block, emit, {} if share else None, sources, made_by))


def emit(
    op_type: str,
    operands: Sequence[Any],
    attrs: Mapping[str, Any] | None = None,
    *,
    domain: str = "",
) -> Any:
    """Appends `op_type(operands, **attrs)`; returns a Var, or a tuple of Vars if `outputs=n` is an
    attribute.

    `outputs` may also be a sequence of bools: False leaves that output out. Attributes that are
    None are left out. Raises InternalError, with the binding printed, if the operator is unknown or
    its types do not fit.
    """
    at = emitter()
    attrs = dict(attrs or {})
    wanted = attrs.pop("outputs", None)
    schema = attributes.schema(op_type, at.block.opsets.get(domain, 0), domain)
    present = (
        (True,)
        if wanted is None
        else (True,) * wanted
        if isinstance(wanted, int)
        else tuple(wanted)
    )
    if op_type == "Split" and domain == "":
        _split_evenly(schema, operands, attrs, len(present))
    if op_type == "Cast" and domain == "" and not attrs.get("to", True):
        raise UnknownDtype("a Cast to the dtype of a value whose dtype is not known")
    inputs = _operands(op_type, domain, schema, operands, attrs)
    written = [(name, value) for name, value in attrs.items() if value is not None]

    key = None
    if at.known is not None and op_type not in RANDOM:
        key = (
            op_type,
            domain,
            tuple(inputs),
            tuple(sorted((n, _key(v)) for n, v in written)) if written else (),
            present,
        )
        known: Binding | None = at.known.get(key)
        if known is not None and known.is_live:
            return known.out if wanted is None else tuple(known.outputs)
    binding = append(at, op_type, domain, schema, inputs, written, present)
    if key is not None and at.known is not None:
        at.known[key] = binding
    return binding.out if wanted is None else tuple(binding.outputs)


def _split_evenly(
    schema: onnx.defs.OpSchema | None, operands: Sequence[Any], attrs: dict[str, Any], count: int
) -> None:
    """Prepares a Split into equal parts. From version 18 on it has the attribute `num_outputs`;
    before that the number of outputs decides.
    """
    even = len(operands) < 2 or operands[1] is None
    if schema is None or not even:
        return
    if schema.since_version >= 18:
        attrs.setdefault("num_outputs", count)
    else:
        attrs.pop("num_outputs", None)


def _operands(
    op_type: str,
    domain: str,
    schema: onnx.defs.OpSchema | None,
    operands: Sequence[Any],
    attrs: dict[str, Any],
) -> list[Var | None]:
    """Turns literals into constants, and operands into attributes if they are attributes at this
    opset.
    """
    if schema is None:
        if domain == "":
            opset = emitter().block.opsets.get(domain, 0)
            raise InternalError(f"operator {op_type} does not exist at opset {opset}")
        return [v if isinstance(v, Var) or v is None else constant(v) for v in operands]
    since = schema.since_version
    if all(isinstance(v, Var) or v is None for v in operands) and signature.moves_none(
        op_type, domain, since, len(operands)
    ):
        return list(operands)
    expected = signature.formals(op_type, domain, since)
    inputs: list[Var | None] = []
    for i, value in enumerate(operands):
        name = signature.moved_to_attribute(op_type, domain, since, i)
        if name is not None:
            number = value.const if isinstance(value, Var) else value
            number = np.asarray(number) if isinstance(number, Traced) else number
            if number is None and value is not None:
                raise InternalError(
                    f"{op_type} takes '{name}' as an attribute at this opset, so "
                    "it must be constant"
                )
            if number is not None and np.size(number):  # no axes are the same as no operand
                attrs[name] = number
        elif isinstance(value, Var) or value is None:
            inputs.append(value)
        else:
            inputs.append(_literal(value, i, expected, operands))
    return inputs


def _literal(
    value: Any, index: int, expected: Sequence[signature.Formal], operands: Sequence[Any]
) -> Var:
    value = np.asarray(value) if isinstance(value, Traced) else value
    like = signature.untyped_like(value, index, expected, operands)
    if like is not None:
        return _constant_like(value, like)
    is_vector = index < len(expected) and expected[index].name in signature.VECTORS
    dtype = signature.literal_dtype(value, index, expected, operands)
    return constant([value] if is_vector and np.ndim(value) == 0 else value, dtype)


def _constant_like(value: Any, like: Var) -> Var:
    """Returns a literal with the dtype of `like`, which is known at run time only. Raises
    UnknownDtype if no operator can convert it.
    """
    block = emitter().block
    if block.opsets.get("", 0) >= 15:
        wide = TensorProto.DOUBLE if np.asarray(value).dtype.kind == "f" else None
        cast: Var = emit("CastLike", (constant(value, wide), like))
        return cast
    if not block.is_function:
        return constant(value)
    raise UnknownDtype(
        f"function '{block.root.name}': the dtype of '{like.name}' is that of each call, and a "
        "constant like it needs CastLike of opset 15: raise the function's opset "
        f"{block.opsets.get('', 0)}, or inline it first"
    )


def _key(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(_key(v) for v in value)
    if isinstance(value, np.ndarray):
        return (str(value.dtype), value.shape, value.tobytes())
    return (
        value.SerializeToString()
        if hasattr(value, "SerializeToString")
        else (type(value).__name__, value)
    )


def emit_with_blocks(
    op_type: str,
    operands: Sequence[Var | None],
    blocks: Mapping[str, BindingBlock],
    types: Sequence[Type | None],
    **attrs: Any,
) -> tuple[Var, ...]:
    """Appends a control-flow binding (If, Loop, Scan) with the given nested blocks and result
    types.
    """
    at = emitter()
    program = at.block.program
    names = [program.names.fresh(op_type.lower()) for _ in types]
    node = NodeProto(
        op_type=op_type,
        name=program.names.fresh(f"{op_type}_{names[0] if names else 'empty'}"),
        input=names_of(operands),
        output=names,
        attribute=[helper.make_attribute(n, v) for n, v in attrs.items() if v is not None],
    )
    add_provenance(node, at)
    binding = at.block.append(node, operands, types)
    for name, nested in blocks.items():
        nested.owner = binding
        nested.changed = True
        binding.blocks[name] = nested
    binding.changed = True
    at.emitted.append(binding)
    return tuple(v for v in binding.outputs if v is not None)


def nested_block(name: str) -> BindingBlock:
    """Returns an empty block for a binding of the block emitted into (see `emit_with_blocks`)."""
    outer = emitter().block
    block = BindingBlock(
        outer.program, GraphProto(name=outer.program.names.fresh(name)), outer.opsets
    )
    block.changed = True
    return block


@contextmanager
def nested(name: str) -> Iterator[BindingBlock]:
    """Emits into a new nested block in this context, with the provenance of the outer block."""
    at, block = emitter(), nested_block(name)
    with emitting(block, share=True, sources=at.sources, made_by=at.made_by):
        yield block
