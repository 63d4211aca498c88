"""The printer: a block as text, for reading and golden files. Input text for tests is ONNX's own
(`onnx.parser`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from google.protobuf.message import Message
from onnx import TensorProto, TypeProto, numpy_helper

from onnxgrad.ir.attributes import RefAttr
from onnxgrad.ir.types import TensorType, dtype_name, type_from_proto
from onnxgrad.wording import printable

if TYPE_CHECKING:
    from onnxgrad.ir.binding import Binding
    from onnxgrad.ir.block import BindingBlock
    from onnxgrad.ir.program import Program
    from onnxgrad.ir.var import Var

_SHOWN = 8  # constants up to this many elements are shown in full
# and lists in attributes up to this many: the trees of one node of ai.onnx.ml are thousands
_LISTED = 32
_LINE = 240  # letters of a binding in a message
_LETTERS = 200  # of an attribute that is text


def program_text(program: Program) -> str:
    """The main block, then the body of each function under its full name."""
    functions = [
        block_text(b, "::".join(part for part in key if part))
        for key, b in program.functions.items()
    ]
    return "\n\n".join([block_text(program.main), *functions])


def block_text(block: BindingBlock, name: str | None = None) -> str:
    """`name(params) { bindings; return outputs }`, one binding per line."""
    params = [_declared(v) for v in block.inputs]
    params += [_declared(v) for v in block.initializers.values() if not v.is_input]
    lines = [f"{name or block.name or 'main'}({', '.join(params)}) {{"]
    lines += _body(block, "  ")
    return "\n".join([*map(printable, lines), "}"])


def binding_text(binding: Binding, attributes: bool = True) -> str:
    """One binding on one line: results with types, operator, operands, attributes."""
    results = ", ".join("_" if v is None else _typed(v) for v in binding.outputs)
    operands = ["_" if v is None else v.name for v in binding.inputs]
    attrs = attribute_texts(binding) if attributes else []
    nested = [f"{k}={{...}}" for k in binding.blocks]
    domain = f"{binding.domain}::" if binding.domain else ""
    listed = ", ".join(operands + attrs + nested)
    return printable(f"{results} = {domain}{binding.op}({listed})")


def attribute_texts(binding: Binding) -> list[str]:
    """`name=value` for each attribute written in the file, by name; graphs are left out."""
    return [f"{k}={_value(v)}" for k, v in sorted(binding.attrs.items())]


def binding_line(binding: Binding) -> str:
    """One binding for a message: without its attributes where they would fill the screen."""
    text = binding_text(binding)
    return text if len(text) <= _LINE else binding_text(binding, attributes=False)


def _body(block: BindingBlock, indent: str) -> list[str]:
    lines: list[str] = []
    for b in block.bindings:
        lines.append(indent + binding_text(b))
        for name, nested in b.blocks.items():
            params = ", ".join(
                [_declared(v) for v in (*nested.inputs, *nested.initializers.values())]
            )
            lines.append(f"{indent}  {name}({params}) {{")
            lines += [*_body(nested, indent + "    "), f"{indent}  }}"]
    lines.append(f"{indent}return {', '.join(v.name for v in block.outputs)}")
    return lines


def _typed(var: Var) -> str:
    return var.name if var.type is None else f"{var.name}: {var.type}"


def _declared(var: Var) -> str:
    if var.initializer is None:
        return _typed(var)
    shown = ""
    if isinstance(var.type, TensorType) and var.dtype != TensorProto.STRING:
        size = int(np.prod(var.initializer.dims))
        if size <= _SHOWN and var.initializer.data_location != TensorProto.EXTERNAL:
            shown = f" = {_array(numpy_helper.to_array(var.initializer))}"
    return f"{_typed(var)} {'default' if var.overridable else 'const'}{shown}"


def _array(array: np.ndarray[Any, Any]) -> str:
    if array.ndim == 0:
        return f"{array.item():.6g}" if array.dtype.kind == "f" else str(array.item())
    return "[" + ", ".join(_array(a) for a in array) + "]"


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, tuple):
        if len(value) > _LISTED:
            return f"[{', '.join(_value(v) for v in value[:_SHOWN])}, ... {len(value):,} values]"
        return "[" + ", ".join(_value(v) for v in value) + "]"
    if isinstance(value, RefAttr):
        return f"@{value.name}"
    if isinstance(value, TensorProto):
        kind = f"{dtype_name(value.data_type)}[{','.join(map(str, value.dims))}]"
        small = int(np.prod(value.dims)) <= _SHOWN and value.data_type != TensorProto.STRING
        return (
            f"{kind}{_array(numpy_helper.to_array(value))}"
            if small and value.data_location == 0
            else kind
        )
    if isinstance(value, TypeProto):
        return str(type_from_proto(value))
    if isinstance(value, Message):
        return f"<{type(value).__name__}>"
    if isinstance(value, (str, bytes)) and len(value) > _LETTERS:
        return f"{value[:_LETTERS]!r}... {len(value):,}"
    return repr(value)
