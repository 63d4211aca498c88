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

# what onnxruntime's optimiser writes into the default domain although onnx has no such operator, or
# not yet
_OF_ONNXRUNTIME = frozenset({"LayerNormalization", "SimplifiedLayerNormalization"})


_GRAPHS = (AttributeProto.GRAPH, AttributeProto.GRAPHS)


@dataclass(frozen=True, slots=True)
class RefAttr:
    """Inside a function body: the value is the enclosing call's attribute `name`."""

    name: str


def read_all(node: NodeProto) -> dict[str, Any]:
    """Every attribute of a node that is no graph (graphs are nested blocks); lists become
    tuples.
    """
    return {a.name: read(a) for a in node.attribute[:] if a.type not in _GRAPHS}


def written(node: NodeProto, name: str, default: Any) -> Any:
    """One attribute as the file has it, lists as lists and text as bytes; `default` if it is
    absent. Raises ValueError for a reference to a function's attribute.
    """
    found = next((a for a in node.attribute[:] if a.name == name), None)
    return default if found is None else onnx.helper.get_attribute_value(found)


def values_of(node: NodeProto) -> dict[str, Any]:
    """All attributes as the file has them, as `written` returns one, except references to a
    function's attributes: their values are the call's.
    """
    return {
        a.name: onnx.helper.get_attribute_value(a) for a in node.attribute[:] if not a.ref_attr_name
    }


def read(attribute: AttributeProto) -> Any:
    """One attribute's value: int, float, str (or bytes that are no text), tuple, TensorProto,
    RefAttr, ...
    """
    if attribute.ref_attr_name:
        return RefAttr(attribute.ref_attr_name)
    value = onnx.helper.get_attribute_value(attribute)
    if attribute.type == AttributeProto.STRING:
        return text(value)
    if attribute.type == AttributeProto.STRINGS:
        return tuple(text(v) for v in value)
    return tuple(value) if attribute.type in _LISTS else value


_LISTS = (
    AttributeProto.INTS,
    AttributeProto.FLOATS,
    AttributeProto.TENSORS,
    AttributeProto.TYPE_PROTOS,
)


def text(value: bytes) -> str | bytes:
    """The bytes as text; as they are when they are no UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


@lru_cache(maxsize=4096)
def schema(op: str, version: int, domain: str) -> onnx.defs.OpSchema | None:
    """The operator's schema at this opset, None when onnx knows no such operator."""
    if version <= 0 or not onnx.defs.has(op, max_inclusive_version=version, domain=domain):
        return None
    return onnx.defs.get_schema(op, max_inclusive_version=version, domain=domain)


def is_of_onnxruntime(op: str, version: int) -> bool:
    """Whether an operator of the default domain is onnxruntime's own at this opset: it runs there,
    onnx has no schema.

    LayerNormalization before opset 17 means what it means since; SimplifiedLayerNormalization never
    came.
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
        if name in ("value_int", "value_ints"):
            return np.array(value, np.int64)
        if name in ("value_float", "value_floats"):
            return np.array(value, np.float32)
        if name in ("value_string", "value_strings"):
            return np.array(value, object)
    return None
