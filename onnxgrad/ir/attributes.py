"""Attributes as Python values, and the defaults that the operator schemas declare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, NodeProto, TensorProto

from onnxgrad.ir.types import Array

# onnxruntime's optimiser writes these operators into the default domain, where onnx lacks them or
# added them later
_OF_ONNXRUNTIME = frozenset({"LayerNormalization", "SimplifiedLayerNormalization"})
# modes of GridSample before opset 20, and com.microsoft's, with their names since
GRID_MODES = {"bilinear": "linear", "bicubic": "cubic"}
GRAPH_KINDS = (AttributeProto.GRAPH, AttributeProto.GRAPHS)
_LISTS = (
    AttributeProto.INTS,
    AttributeProto.FLOATS,
    AttributeProto.TENSORS,
    AttributeProto.TYPE_PROTOS,
)
# attributes of a Constant -> the dtype of their value
_CONSTANTS: Mapping[str, type] = {
    "value_int": np.int64,
    "value_ints": np.int64,
    "value_float": np.float32,
    "value_floats": np.float32,
    "value_string": object,
    "value_strings": object,
}


@dataclass(frozen=True, slots=True)
class RefAttr:
    """Inside a function body: the value is the enclosing call's attribute `name`."""

    name: str


def written(node: NodeProto, name: str, default: Any) -> Any:
    """Returns one attribute as the file stores it: lists as lists, text as bytes. Returns `default`
    if the attribute is absent. Raises ValueError for a reference to a function's attribute.
    """
    found = next((a for a in node.attribute[:] if a.name == name), None)
    return default if found is None else onnx.helper.get_attribute_value(found)


def values_of(node: NodeProto) -> dict[str, Any]:
    """Returns all attributes, each as `written` returns it. Leaves out references to a function's
    attributes, whose values come from the call.
    """
    return {
        a.name: onnx.helper.get_attribute_value(a) for a in node.attribute[:] if not a.ref_attr_name
    }


def read(attribute: AttributeProto) -> Any:
    """Returns the value of an attribute: int, float, str (bytes if they are not UTF-8), tuple,
    TensorProto, RefAttr, ...
    """
    if attribute.ref_attr_name:
        return RefAttr(attribute.ref_attr_name)
    value = onnx.helper.get_attribute_value(attribute)
    if attribute.type == AttributeProto.STRING:
        return text(value)
    if attribute.type == AttributeProto.STRINGS:
        return tuple(text(v) for v in value)
    return tuple(value) if attribute.type in _LISTS else value


def text(value: bytes) -> str | bytes:
    """Returns the bytes as text, or unchanged if they are not UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


@lru_cache(maxsize=4096)
def schema(op: str, version: int, domain: str) -> onnx.defs.OpSchema | None:
    """Returns the operator's schema at this opset, None if onnx has none."""
    if version <= 0 or not onnx.defs.has(op, max_inclusive_version=version, domain=domain):
        return None
    return onnx.defs.get_schema(op, max_inclusive_version=version, domain=domain)


def is_of_onnxruntime(op: str, version: int) -> bool:
    """Whether an operator of the default domain is onnxruntime's own at this opset: onnxruntime
    runs it, onnx has no schema.

    LayerNormalization means the same before opset 17 as from 17 on. SimplifiedLayerNormalization
    was never added to onnx.
    """
    return op in _OF_ONNXRUNTIME and schema(op, version, "") is None


@lru_cache(maxsize=4096)
def schema_defaults(op: str, version: int, domain: str) -> Mapping[str, Any]:
    """The default values that the schema declares, by attribute name."""
    found = schema(op, version, domain)
    if found is None:
        return {}
    return {
        name: read(a.default_value) for name, a in found.attributes.items() if a.default_value.name
    }


def constant_value(attrs: Mapping[str, Any]) -> TensorProto | Array | None:
    """Returns the value of a Constant node, None for the sparse form and for references to a
    function's attributes.
    """
    for name, value in attrs.items():
        if isinstance(value, RefAttr):
            return None
        if name == "value":
            return value if isinstance(value, TensorProto) else None
        if name in _CONSTANTS:
            return np.array(value, _CONSTANTS[name])
    return None
