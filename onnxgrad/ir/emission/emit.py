"""Emission: `op.MatMul(a, b)` appends a binding to the block that `emitting(block)` names and
returns its result.

Python literals become constants of the dtype that the schema's type variable has in this call, or,
for operands like axes that the schema fixes to int64, of that dtype. An operand that was an
attribute at the model's opset (axes, split, pads, ...) is emitted as that attribute. Results are
typed on the spot, so a wrong shape is reported by the line that emitted it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from onnxgrad.errors import InternalError, UnknownDtype
from onnxgrad.ir import attributes
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.block import BindingBlock
from onnxgrad.ir.emission import signature
from onnxgrad.ir.emission.append import append
from onnxgrad.ir.emission.constant import constant
from onnxgrad.ir.emission.emitter import Emitter, emitter, in_force
from onnxgrad.ir.random_draws import RANDOM_OPS
from onnxgrad.ir.var import Var
from onnxgrad.options import known_keywords


@known_keywords
def emitting(
    block: BindingBlock, *, share: bool = False, sources: Sequence[Binding] = (), made_by: str = ""
) -> AbstractContextManager[Emitter]:
    """Emit into `block`. `share`: an equal binding is emitted once. `sources` and `made_by` are
    the provenance.
    """
    return in_force(Emitter(block, emit, {} if share else None, sources, made_by))


def emit(
    op_type: str,
    operands: Sequence[Any],
    attrs: Mapping[str, Any] | None = None,
    *,
    domain: str = "",
) -> Any:
    """Append `op_type(operands, **attrs)`; a Var, or a tuple of Vars when `outputs=n` is among the
    attributes.

    `outputs` may also be a sequence of bools: False leaves that output out. Attributes that are
    None are left out. Raises InternalError, with the binding printed, when the operator is unknown
    or its types do not fit.
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
        raise UnknownDtype("a Cast to the dtype of a value whose own is not known")
    inputs = _operands(op_type, domain, schema, operands, attrs)
    given = [(name, value) for name, value in attrs.items() if value is not None]

    key = None
    if at.known is not None and op_type not in RANDOM_OPS:
        key = (
            op_type,
            domain,
            tuple(inputs),
            tuple(sorted((n, _key(v)) for n, v in given)) if given else (),
            present,
        )
        known: Binding | None = at.known.get(key)
        if known is not None and known.is_live:
            return known.out if wanted is None else tuple(known.outputs)
    binding = append(at, op_type, domain, schema, inputs, given, present)
    if key is not None and at.known is not None:
        at.known[key] = binding
    return binding.out if wanted is None else tuple(binding.outputs)


def _split_evenly(
    schema: onnx.defs.OpSchema | None, operands: Sequence[Any], attrs: dict[str, Any], count: int
) -> None:
    """Split into equal parts: from version 18 on their number is an attribute, before that of
    the outputs alone.
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
    """Literals to constants; operands that this opset wants as attributes to attributes."""
    if schema is None:
        return _without_schema(op_type, domain, operands)
    since = schema.since_version
    if _are_values(operands) and signature.moves_none(op_type, domain, since, len(operands)):
        return list(operands)
    expected = signature.formals(op_type, domain, since)
    inputs: list[Var | None] = []
    for i, value in enumerate(operands):
        name = signature.moved_to_attribute(op_type, domain, since, i)
        if name is not None:
            number = value.const if isinstance(value, Var) else value
            if number is None and value is not None:
                raise InternalError(
                    f"{op_type} takes '{name}' as an attribute at this opset, so "
                    "it must be constant"
                )
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


def _without_schema(op_type: str, domain: str, operands: Sequence[Any]) -> list[Var | None]:
    if domain == "":
        raise InternalError(
            f"operator {op_type} does not exist at opset {emitter().block.opsets.get(domain, 0)}"
        )
    return [v if isinstance(v, Var) or v is None else constant(v) for v in operands]


def _are_values(operands: Sequence[Any]) -> bool:
    return all(isinstance(v, Var) or v is None for v in operands)


def _constant_like(value: Any, like: Var) -> Var:
    """A literal in the dtype of a value whose own is known at run time only. UnknownDtype where
    no operator does it.
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
