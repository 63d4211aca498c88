"""Attributes and small constants as text."""

from __future__ import annotations

from typing import Any

import numpy as np
from google.protobuf.message import Message
from onnx import TensorProto, TypeProto, numpy_helper

from onnxgrad.ir.attributes import RefAttr
from onnxgrad.ir.types import dtype_name, type_from_proto

SHOWN = 8  # constants of up to this many elements are shown in full
_LISTED = 32  # so are lists of up to this many; a node of ai.onnx.ml may list thousands of trees
_LETTERS = 200  # the longest text of an attribute


def array_text(array: np.ndarray[Any, Any]) -> str:
    """Returns an array as nested lists, floats with six digits."""
    if array.ndim == 0:
        return f"{array.item():.6g}" if array.dtype.kind == "f" else str(array.item())
    return "[" + ", ".join(array_text(a) for a in array) + "]"


def value_text(value: Any) -> str:
    """Returns the value of an attribute as text, or the beginning of a long one."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, tuple):
        if len(value) > _LISTED:
            return f"[{', '.join(value_text(v) for v in value[:SHOWN])}, ... {len(value):,} values]"
        return "[" + ", ".join(value_text(v) for v in value) + "]"
    if isinstance(value, RefAttr):
        return f"@{value.name}"
    if isinstance(value, TensorProto):
        kind = f"{dtype_name(value.data_type)}[{','.join(map(str, value.dims))}]"
        small = int(np.prod(value.dims)) <= SHOWN and value.data_type != TensorProto.STRING
        return (
            f"{kind}{array_text(numpy_helper.to_array(value))}"
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
