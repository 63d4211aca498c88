"""The signature and documentation of `op.X`, from the operator's schema."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto

from onnxgrad.ir import attributes
from onnxgrad.ir.emission.signature import attribute_types

# the Python type of each kind of attribute
_PYTHON: dict[str, Any] = {
    "INT": int,
    "FLOAT": float,
    "STRING": str,
    "INTS": list[int],
    "FLOATS": list[float],
    "STRINGS": list[str],
    "TENSOR": onnx.TensorProto,
    "SPARSE_TENSOR": onnx.SparseTensorProto,
    "TYPE_PROTO": onnx.TypeProto,
    "GRAPH": onnx.GraphProto,
}
_OPTION = onnx.defs.OpSchema.FormalParameterOption


def newest(op_type: str, domain: str, opset: int | None = None) -> onnx.defs.OpSchema | None:
    """Returns the operator's newest schema, or its schema at `opset`. None if onnx has no schema,
    or only a deprecated one.
    """
    known = onnx.defs.onnx_opset_version() if domain == "" else 1 << 20
    found = attributes.schema(op_type, opset or known, domain)
    return None if found is None or found.deprecated else found


def has_graphs(schema: onnx.defs.OpSchema) -> bool:
    """Whether an operator has graphs as attributes. `emit_with_blocks` emits such control flow;
    `op` cannot.
    """
    return any(kind == AttributeProto.GRAPH for kind in _kinds(schema).values())


def signature(schema: onnx.defs.OpSchema) -> inspect.Signature:
    """Returns the signature of `op.X`: operands by position, attributes and `outputs` by name, with
    defaults.
    """
    kinds = _kinds(schema)
    optional = [formal.option == _OPTION.Optional for formal in schema.inputs]
    found = []
    for i, formal in enumerate(schema.inputs):
        kind: Any = inspect.Parameter.POSITIONAL_ONLY
        default: Any = inspect.Parameter.empty
        if formal.option == _OPTION.Variadic:
            kind = inspect.Parameter.VAR_POSITIONAL
        elif all(optional[i:]):  # may be left out: no operand after it is required
            default = None
        found.append(inspect.Parameter(formal.name, kind, default=default))
    defaults = attributes.schema_defaults(schema.name, schema.since_version, schema.domain)
    for name, declared in sorted(
        schema.attributes.items(), key=lambda a: (not a[1].required, a[0])
    ):
        default = inspect.Parameter.empty if declared.required else _short(defaults.get(name))
        annotation = _PYTHON[AttributeProto.AttributeType.Name(kinds[name])]
        found.append(
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
            )
        )
    if schema.max_output > 1:
        found.append(inspect.Parameter("outputs", inspect.Parameter.KEYWORD_ONLY, default=None))
    return inspect.Signature(found)


def documentation(schema: onnx.defs.OpSchema) -> str:
    """Returns the schema's documentation of the operator, its operands, attributes and results."""
    parts = [textwrap.dedent(schema.doc or "").strip()]
    for title, formals in (("Operands", schema.inputs), ("Results", schema.outputs)):
        if formals:
            lines = [
                _entry(f"{f.name} ({f.type_str}{_repeats(f)})", f.description) for f in formals
            ]
            parts.append("\n".join([f"{title}:", *lines]))
    if schema.attributes:
        lines = [_entry(name, a.description) for name, a in sorted(schema.attributes.items())]
        parts.append("\n".join(["Attributes:", *lines]))
    parts.append(f"Since version {schema.since_version} of {schema.domain or 'ai.onnx'}.")
    return "\n\n".join(parts)


def _short(value: Any) -> Any:
    """A default without the digits that come from rounding to float32."""
    return float(str(np.float32(value))) if isinstance(value, float) else value


def _kinds(schema: onnx.defs.OpSchema) -> Mapping[str, AttributeProto.AttributeType]:
    return attribute_types(schema.name, schema.domain, schema.since_version)


def _repeats(formal: onnx.defs.OpSchema.FormalParameter) -> str:
    return {_OPTION.Optional: ", optional", _OPTION.Variadic: ", any number"}.get(formal.option, "")


def _entry(name: str, description: str) -> str:
    return textwrap.indent(f"{name}: {' '.join(description.split())}", "  ")
