"""Which operands and results of an operator may be float16, as its schema says."""

from __future__ import annotations

from dataclasses import dataclass

from onnx import TensorProto
from onnx.defs import OpSchema

from onnxgrad.ir import attributes
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission import signature
from onnxgrad.ir.type_inference import at_emission
from onnxgrad.ir.types import SequenceType, TensorType, TypeMismatch
from onnxgrad.ir.var import Var

_FLOAT, _FLOAT16 = TensorProto.FLOAT, TensorProto.FLOAT16
# operators whose result has the type that an attribute names; a tensor's names it, too
_BY_ATTRIBUTE = {"Cast": "to", "EyeLike": "dtype", "ConstantOfShape": "value"}


@dataclass(frozen=True)
class Form:
    """The operands and results that are float16, by their places, and the attribute that says so
    where none of the operands does.
    """

    operands: tuple[int, ...]
    results: tuple[int, ...]
    attribute: str = ""


def has_floats(b: Binding) -> bool:
    """Whether it reads or computes something of float32, sequences of it included."""
    return any(v is not None and _is_float(v) for v in (*b.inputs, *b.outputs))


def form_of(b: Binding) -> Form | str:
    """How a binding with floats is written in float16, or why it cannot be."""
    schema = attributes.schema(b.op, b.version, b.domain)
    if schema is None:
        return "no schema says whether it takes float16"
    if any(v is not None and not isinstance(v.type, TensorType) for v in (*b.inputs, *b.outputs)):
        return "not all that it reads and computes is known to be a tensor"
    formals = signature.formals(b.op, b.domain, schema.since_version)
    asked: dict[str, list[int]] = {}
    for i, v in enumerate(b.inputs):
        if v is not None and v.dtype == _FLOAT:
            formal = formals[min(i, len(formals) - 1)]
            if _FLOAT16 in formal.dtypes and _FLOAT in formal.dtypes:
                asked.setdefault(formal.variable, []).append(i)
    named = _BY_ATTRIBUTE.get(b.op, "") if b.domain == "" else ""
    results = tuple(
        i
        for i, v in enumerate(b.outputs)
        if v is not None
        and v.dtype == _FLOAT
        and (bool(named) or _variable(schema, i) in asked)
        and _takes(schema, i)
    )
    operands = tuple(sorted(i for places in asked.values() for i in places))
    if not operands and not results:
        return "it has no form in float16"
    form = Form(operands, results, named if results else "")
    return (
        form if form.attribute or _types(b, schema, form) else "its results would be of other types"
    )


def _types(b: Binding, schema: OpSchema, form: Form) -> bool:
    """Whether, read in float16, it gives what the form says, and the rest as before."""
    half = set(form.operands)
    read = [
        Var(v.name, v.block, TensorType(_FLOAT16, v.shape)) if v and i in half else v
        for i, v in enumerate(b.inputs)
    ]
    try:
        made = at_emission.result_types(schema, b.to_node(), read, b.block)
    except TypeMismatch:
        return False
    return all(
        new is None
        or v is None
        or not isinstance(new, TensorType)
        or new.dtype == (_FLOAT16 if i in form.results else v.dtype)
        for i, (v, new) in enumerate(zip(b.outputs, made, strict=True))
    )


def _is_float(v: Var) -> bool:
    kind = v.type
    while isinstance(kind, SequenceType):
        kind = kind.elem
    return isinstance(kind, TensorType) and kind.dtype == _FLOAT


def _variable(schema: OpSchema, i: int) -> str:
    formal = schema.outputs[min(i, len(schema.outputs) - 1)]
    return str(formal.type_str)


def _takes(schema: OpSchema, i: int) -> bool:
    formal = schema.outputs[min(i, len(schema.outputs) - 1)]
    return "tensor(float16)" in formal.types
