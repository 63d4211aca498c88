"""Did someone compute with a model's weights? What was computed was rounded, and a proof must
allow for that.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto

from onnxgrad.ir.tensor_data import elements
from onnxgrad.verify.subject import Subject

_FLOATS = {TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16}
_ELEMENTS = 1 << 26  # beyond this the search costs more than it is worth


def new_weights(a: Subject, b: Subject, *, claimed: bool = False) -> set[int]:
    """The float types (TensorProto.DataType) of b's constants that hold a value, other than 0 and
    1, of none of a's.

    Moved, merged, split or transposed weights are old values, and beside all of a's weights nothing
    counts as new. With very many elements, or where new values are `claimed` and only their types
    are asked for, every tensor counts whose contents are not those of one of a's. Raises InputError
    when data is damaged or missing.
    """
    if sum(math.prod(t.dims) for s in (a, b) for t in _tensors(s.proto)) > _ELEMENTS:
        return {t.data_type for t in _tensors(b.proto)}
    before, after = a.weights(), b.weights()
    known = {_content(t) for t in _tensors(before)}
    changed = [t for t in _tensors(after) if _content(t) not in known]
    if claimed or not changed:
        return {t.data_type for t in changed}
    if known <= {_content(t) for t in _tensors(after)}:
        return set()  # all of a's are still there: nothing was computed in the place of one
    old = np.unique(np.concatenate([np.array([0.0, 1.0]), *map(_values, _tensors(before))]))
    return {t.data_type for t in changed if not _all_among(_values(t), old)}


def _all_among(values: np.ndarray[Any, Any], known: np.ndarray[Any, Any]) -> bool:
    """Whether each value is one of the `known`, which are in order."""
    places = np.minimum(np.searchsorted(known, values), len(known) - 1)
    return bool((known[places] == values).all())


def _content(tensor: TensorProto) -> tuple[int, bytes]:
    return tensor.data_type, hashlib.blake2b(
        tensor.raw_data or elements(tensor).tobytes(), digest_size=16
    ).digest()


def _values(tensor: TensorProto) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    array = elements(tensor).astype(np.float64)
    return np.unique(array[np.isfinite(array)])


def _tensors(model: ModelProto) -> Iterator[TensorProto]:
    """The floating-point constants that a run of the model may read."""
    yield from _of_graph(model.graph)
    for function in model.functions:
        yield from _of_nodes(function.node)


def _of_graph(graph: GraphProto) -> Iterator[TensorProto]:
    found = [*graph.initializer, *(sparse.values for sparse in graph.sparse_initializer)]
    yield from (tensor for tensor in found if tensor.data_type in _FLOATS)
    yield from _of_nodes(graph.node)


def _of_nodes(nodes: Iterable[NodeProto]) -> Iterator[TensorProto]:
    for node in nodes:
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs) if _holds_graphs(attribute) else ():
                yield from _of_graph(graph)
            if attribute.type == AttributeProto.TENSOR and attribute.t.data_type in _FLOATS:
                yield attribute.t
            elif (
                attribute.type == AttributeProto.SPARSE_TENSOR
                and attribute.sparse_tensor.values.data_type in _FLOATS
            ):
                yield attribute.sparse_tensor.values
            elif node.op_type == "Constant" and attribute.type in (
                AttributeProto.FLOAT,
                AttributeProto.FLOATS,
            ):
                values = (
                    attribute.floats if attribute.type == AttributeProto.FLOATS else [attribute.f]
                )
                yield TensorProto(
                    data_type=TensorProto.FLOAT, dims=[len(values)], float_data=values
                )


def _holds_graphs(attribute: AttributeProto) -> bool:
    return attribute.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS)
