"""ONNX values in the float64 reference, and nodes whose attributes come from a function call."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import onnx

from onnxgrad.ir.protobufs import elements, graphs_of

# a tensor, a sequence, an absent optional
Value: TypeAlias = "np.ndarray[Any, Any] | list[Any] | None"
Feeds: TypeAlias = Mapping[str, Value]

_NARROW = (np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
_A = onnx.AttributeProto


def widen(value: Any) -> Any:
    """Returns float32, float16 and bfloat16 arrays as float64, and other values unchanged. Converts
    the elements of sequences too.
    """
    if isinstance(value, np.ndarray):
        return value.astype(np.float64) if value.dtype in _NARROW else value
    if isinstance(value, list):
        return [widen(v) for v in value]
    return widen(np.asarray(value)) if isinstance(value, np.generic) else value


def attribute_value(attribute: onnx.AttributeProto) -> Any:
    """Returns an attribute other than a subgraph as a Python value: tensors as widened arrays,
    strings decoded.
    """
    if attribute.type == _A.TENSOR:
        return widen(elements(attribute.t))
    if attribute.type == _A.SPARSE_TENSOR:
        return dense(attribute.sparse_tensor)
    value = onnx.helper.get_attribute_value(attribute)
    if attribute.type == _A.STRING:
        return value.decode("utf-8", "replace")
    if attribute.type == _A.STRINGS:
        return [v.decode("utf-8", "replace") for v in value]
    return list(value) if attribute.type in (_A.INTS, _A.FLOATS) else value


def dense(sparse: onnx.SparseTensorProto) -> np.ndarray[Any, Any]:
    """Returns a sparse tensor as a dense, widened one. Its indices are linear (n,) or coordinates
    (n, rank).
    """
    values, indices = elements(sparse.values), elements(sparse.indices)
    full = np.zeros(tuple(sparse.dims), values.dtype)
    if indices.ndim == 1:
        full.reshape(-1)[indices] = values
    else:
        full[tuple(indices.T)] = values
    return np.asarray(widen(full))


def bind(node: onnx.NodeProto, bound: Mapping[str, onnx.AttributeProto]) -> onnx.NodeProto:
    """Returns a node of a function body with references to the function's attributes replaced by
    `bound`. References to unset attributes are removed.
    """
    copied = copy.deepcopy(node)
    del copied.attribute[:]
    for attribute in node.attribute:
        if attribute.ref_attr_name in bound:
            copied.attribute.append(bound[attribute.ref_attr_name])
            copied.attribute[-1].name = attribute.name
        elif not attribute.ref_attr_name:
            copied.attribute.append(attribute)
    for graph in graphs_of(copied):
        nodes = [bind(inner, bound) for inner in graph.node]
        del graph.node[:]
        graph.node.extend(nodes)
    return copied


def type_of(value: Any) -> onnx.TypeProto:
    """Returns the ONNX type of a value of the reference; an empty type for anything but a
    tensor.
    """
    if not isinstance(value, np.ndarray):
        return onnx.TypeProto()
    return onnx.helper.make_tensor_type_proto(
        onnx.helper.np_dtype_to_tensor_dtype(value.dtype), value.shape
    )
