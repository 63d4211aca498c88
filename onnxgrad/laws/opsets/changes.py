"""How two versions of an operator's schema differ for one that is written."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from onnx import TensorProto
from onnx.defs import OpSchema

from onnxgrad.ir import attributes
from onnxgrad.ir.attributes import is_of_onnxruntime
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.types import dtype_name

Formal = OpSchema.FormalParameter
_SINGLE, _OPTIONAL = OpSchema.FormalParameterOption.Single, OpSchema.FormalParameterOption.Optional
_DTYPES: dict[int, str] = {
    number: f"tensor({name.lower()})" for name, number in TensorProto.DataType.items() if number
}


@lru_cache(maxsize=1024)
def since(op: str, version: int) -> int:
    """The version of the default domain since which `op` is what it is at `version`; 0: unknown."""
    schema = attributes.schema(op, version, "")
    return 0 if schema is None else int(schema.since_version)


@lru_cache(maxsize=1024)
def form_changes(op: str, old: int, new: int) -> str:
    """What of the form that was right at version `old` is not at `new`: a name or an option of an
    operand, an attribute; empty where everything that could be written may stand.
    """
    before, after = attributes.schema(op, old, ""), attributes.schema(op, new, "")
    if before is None and after is not None and is_of_onnxruntime(op, old):
        return ""
    if before is None or after is None:
        return f"{op} is unknown at opset {old if before is None else new}"
    if after.deprecated:
        return f"{op} is deprecated"
    return next(_form_changes(before, after), "")


def _form_changes(before: OpSchema, after: OpSchema) -> Iterator[str]:
    yield from _formal_changes("operand", list(before.inputs), list(after.inputs))
    yield from _formal_changes("result", list(before.outputs), list(after.outputs))
    for name, a in before.attributes.items():
        kept = after.attributes.get(name)
        if kept is None:
            yield f"attribute '{name}' went"
        elif kept.default_value != a.default_value and not a.required:
            yield f"the default of '{name}' changed"
    for name, a in after.attributes.items():
        if a.required and name not in before.attributes:
            yield f"attribute '{name}' came"


def _formal_changes(kind: str, old: list[Formal], new: list[Formal]) -> Iterator[str]:
    for i, p in enumerate(old):
        if i >= len(new) or new[i].name != p.name:
            yield f"{kind} '{p.name}' went"
        elif new[i].option not in (p.option, _OPTIONAL if p.option == _SINGLE else p.option):
            yield f"{kind} '{p.name}' is needed"
    if any(p.option == _SINGLE for p in new[len(old) :]):
        yield f"a {kind} came"


def dtype_lost(b: Binding, version: int) -> str:
    """The first operand or result of a dtype that the operator has no more at `version`."""
    schema = attributes.schema(b.op, version, "")
    if schema is None:
        return ""
    for values, formals in ((b.inputs, schema.inputs), (b.outputs, schema.outputs)):
        for i, v in enumerate(values):
            if v is None or not v.dtype or not formals:
                continue
            if _DTYPES.get(v.dtype, "") not in formals[min(i, len(formals) - 1)].types:
                return f"it takes no {dtype_name(v.dtype)} as '{v.name}'"
    return ""
