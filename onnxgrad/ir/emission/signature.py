"""Operands and attributes as an operator's schema declares them, looked up once per operator and
version.

Rules emit the newest form of an operator; this file translates it to the form of older opsets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper

from onnxgrad.ir.attributes import RefAttr
from onnxgrad.ir.types import FLOAT_DTYPES, TypeMismatch, dtype_name
from onnxgrad.ir.var import Var
from onnxgrad.wording import counted


class Formal(NamedTuple):
    """A formal operand: its type variable (or fixed type), the tensor dtypes that it may have, and
    whether repeated operands share one type (`alike`).
    """

    name: str
    variable: str
    dtypes: frozenset[int]
    alike: bool


# operands that were attributes of another name
_RENAMED = {("Pad", "constant_value"): "value", ("TopK", "K"): "k"}
# operands that are vectors; a single number means a vector of one
VECTORS = frozenset(
    {"axes", "split", "pads", "starts", "ends", "steps", "shape", "repeats", "sizes", "K"}
)
# kinds of attributes that hold numbers -> the field of the protobuf
_NUMBERS = {
    AttributeProto.INT: "i",
    AttributeProto.FLOAT: "f",
    AttributeProto.INTS: "ints",
    AttributeProto.FLOATS: "floats",
}
DTYPES: dict[str, int] = {
    f"tensor({name.lower()})": number for name, number in TensorProto.DataType.items() if number
}


@lru_cache(maxsize=1024)
def formals(op_type: str, domain: str, since: int) -> tuple[Formal, ...]:
    """Returns the formal operands of the schema introduced at version `since`."""
    return tuple(
        Formal(
            p.name,
            p.type_str,
            frozenset(DTYPES[t] for t in p.types if t in DTYPES),
            p.is_homogeneous,
        )
        for p in onnx.defs.get_schema(op_type, since, domain).inputs
    )


@lru_cache(maxsize=4096)
def moved_to_attribute(op_type: str, domain: str, since: int, index: int) -> str | None:
    """Returns the attribute that stands for operand `index` of the newest schema in the schema of
    version `since`. None if there is no such attribute.
    """
    latest = formals(op_type, domain, onnx.defs.get_schema(op_type, domain=domain).since_version)
    if index >= len(latest):
        return None
    name = latest[index].name
    if any(f.name == name for f in formals(op_type, domain, since)):
        return None
    name = _RENAMED.get((op_type, name), name)
    return name if name in attribute_types(op_type, domain, since) else None


@lru_cache(maxsize=4096)
def moves_none(op_type: str, domain: str, since: int, count: int) -> bool:
    """Whether none of the first `count` operands is an attribute at version `since`."""
    return all(moved_to_attribute(op_type, domain, since, i) is None for i in range(count))


@lru_cache(maxsize=1024)
def attribute_types(
    op_type: str, domain: str, since: int
) -> Mapping[str, AttributeProto.AttributeType]:
    """The AttributeProto type of each attribute."""
    attributes = onnx.defs.get_schema(op_type, since, domain).attributes
    return {
        name: AttributeProto.AttributeType.Value(str(a.type).rpartition(".")[2])
        for name, a in attributes.items()
    }


def attribute(schema: onnx.defs.OpSchema | None, name: str, value: Any) -> AttributeProto:
    """Returns `name=value` in the type that the schema declares. Raises TypeMismatch for an unknown
    name or a value of another type.
    """
    if schema is None:
        return helper.make_attribute(name, value)
    declared = attribute_types(schema.name, schema.domain, schema.since_version)
    kind = declared.get(name)
    if kind is None:
        known = ", ".join(sorted(declared)) or "none"
        raise TypeMismatch(
            f"no attribute '{name}' at version {schema.since_version} of the "
            f"operator (it has: {known})"
        )
    if isinstance(value, RefAttr):
        return AttributeProto(name=name, type=kind, ref_attr_name=value.name)
    if kind in _NUMBERS:
        return _number_attribute(name, kind, value)
    return helper.make_attribute(name, value, attr_type=kind)


def _number_attribute(name: str, kind: AttributeProto.AttributeType, value: Any) -> AttributeProto:
    if type(value) is int and kind == AttributeProto.INT:
        return AttributeProto(name=name, type=kind, i=value)
    array = np.asarray(value)
    single = kind in (AttributeProto.INT, AttributeProto.FLOAT)
    if array.size and array.dtype.kind not in "biuf":
        raise TypeMismatch(f"attribute '{name}' takes numbers, not {value!r}")
    if single and array.size != 1:
        raise TypeMismatch(f"attribute '{name}' takes one number, not {value!r}")
    numbers = array.reshape(-1).tolist()
    if kind in (AttributeProto.INT, AttributeProto.INTS):
        if any(n != int(n) for n in numbers):
            raise TypeMismatch(f"attribute '{name}' takes integers, not {value!r}")
        numbers = [int(n) for n in numbers]
    field: dict[str, Any] = {_NUMBERS[kind]: numbers[0] if single else numbers}
    return AttributeProto(name=name, type=kind, **field)


def check_operands(schema: onnx.defs.OpSchema, inputs: Sequence[Var | None]) -> None:
    """Raises TypeMismatch unless the schema allows the number and dtypes of the operands."""
    least, most, expected = _call_of(schema)
    if not least <= len(inputs) <= most:
        raise TypeMismatch(
            f"{counted(len(inputs), 'operand')}, at version {schema.since_version} it takes "
            f"{_arity(schema)}"
        )
    bound: dict[str, Var] = {}
    for i, v in enumerate(inputs):
        dtype = 0 if v is None else v.dtype
        if v is None or not dtype:
            continue
        formal = expected[min(i, len(expected) - 1)]
        if formal.dtypes and dtype not in formal.dtypes:
            raise TypeMismatch(f"operand '{formal.name}' may not be {dtype_name(dtype)}")
        if formal.alike and bound.setdefault(formal.variable, v).dtype != dtype:
            raise TypeMismatch(
                f"operand '{formal.name}' must have the dtype of '{bound[formal.variable].name}'"
            )


@lru_cache(maxsize=1024)
def _call_of(schema: onnx.defs.OpSchema) -> tuple[int, int, tuple[Formal, ...]]:
    """The least and greatest number of operands, and the formal operands. Read once per schema."""
    expected = formals(schema.name, schema.domain, schema.since_version)
    return schema.min_input, schema.max_input, expected


def _arity(schema: onnx.defs.OpSchema) -> str:
    low, high = schema.min_input, schema.max_input
    return str(low) if low == high else f"{low} to {high}" if high < 1 << 20 else f"{low} or more"


def literal_dtype(
    value: Any, index: int, expected: Sequence[Formal], operands: Sequence[Any]
) -> int | None:
    """Returns the dtype that a Python literal takes as operand `index`. None for numpy values,
    which keep their own.

    It is the dtype of the schema's type variable in this call. If the literal alone would decide
    the variable (Pow's exponent, Dropout's ratio), a float takes the dtype of the first floating
    operand.
    """
    if isinstance(value, (np.ndarray, np.generic)):
        return None
    formal = (
        expected[min(index, len(expected) - 1)] if expected else Formal("", "", frozenset(), True)
    )
    if formal.variable in DTYPES:
        return DTYPES[formal.variable]
    others = [v for v in operands if isinstance(v, Var) and v.dtype]
    if formal.alike and expected:
        for i, v in enumerate(operands):
            if (
                isinstance(v, Var)
                and v.dtype
                and expected[min(i, len(expected) - 1)].variable == formal.variable
            ):
                return v.dtype
    kind = np.asarray(value).dtype.kind
    if kind in "USO":
        return TensorProto.STRING
    allowed = formal.dtypes
    own: int = {"b": TensorProto.BOOL, "f": TensorProto.FLOAT}.get(kind, TensorProto.INT64)
    if kind == "f" or (allowed and own not in allowed):
        floating: int = next(
            (v.dtype for v in others if v.dtype in FLOAT_DTYPES), TensorProto.FLOAT
        )
        return floating if not allowed or floating in allowed else TensorProto.FLOAT
    return own


def untyped_like(
    value: Any, index: int, expected: Sequence[Formal], operands: Sequence[Any]
) -> Var | None:
    """Returns the operand whose dtype a literal must take if that dtype is unknown, as in the body
    of a function; None if the dtype is known, fixed by the schema, or chosen by the literal.
    """
    if isinstance(value, (np.ndarray, np.generic)) or not expected:
        return None
    formal = expected[min(index, len(expected) - 1)]
    if not formal.alike or formal.variable in DTYPES:
        return None
    alike = [
        v
        for i, v in enumerate(operands)
        if isinstance(v, Var) and expected[min(i, len(expected) - 1)].variable == formal.variable
    ]
    return alike[0] if alike and not any(v.dtype for v in alike) else None
