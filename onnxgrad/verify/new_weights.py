"""Did someone compute with a model's weights? What was computed was rounded, and a proof must
allow for that.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto

from onnxgrad.ir.protobufs import elements
from onnxgrad.verify.paths import Key, Marks, gathered
from onnxgrad.verify.subject import Subject

_FLOATS = {TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16}
_ELEMENTS = 1 << 26  # beyond this the search costs more than it is worth


# where a constant is: a top-level initializer by name, in a node by the node's first output, or in
# a function
_Place: TypeAlias = "str | tuple[str] | Key"
_Placed: TypeAlias = "tuple[_Place, TensorProto]"


def new_weights(a: Subject, b: Subject, *, claimed: bool = False) -> dict[str, set[int]]:
    """Per output of b the float types (TensorProto.DataType) of constants on its paths that hold a
    value, other than 0 and 1, of none of a's.

    Moved, merged, split or transposed weights are old values, and beside all of a's weights nothing
    counts as new. With very many elements, or where new values are `claimed` and only their types
    are asked for, every tensor counts whose contents are not those of one of a's. Raises InputError
    when data is damaged or missing.
    """
    if sum(math.prod(t.dims) for s in (a, b) for _, t in _tensors(s.proto)) > _ELEMENTS:
        return _by_output(b, list(_tensors(b.proto)))
    before, after = a.weights(), list(_tensors(b.weights()))
    known = {_content(t) for _, t in _tensors(before)}
    contents = [_content(t) for _, t in after]
    changed = [found for found, content in zip(after, contents) if content not in known]
    if claimed or not changed:
        return _by_output(b, changed)
    if known <= set(contents):
        return {}  # all of a's are still there: nothing was computed in the place of one
    old = np.unique(
        np.concatenate([np.array([0.0, 1.0]), *(_values(t) for _, t in _tensors(before))])
    )
    return _by_output(b, [found for found in changed if not _all_among(_values(found[1]), old)])


def _by_output(model: Subject, changed: list[_Placed]) -> dict[str, set[int]]:
    """The types of these constants by the outputs that they reach."""
    bits: dict[_Place, int] = {}
    for place, tensor in changed:
        bits[place] = bits.get(place, 0) | 1 << tensor.data_type
    values = {place: mask for place, mask in bits.items() if isinstance(place, str)}
    functions: dict[Key, int] = {}
    for place, mask in bits.items():
        if isinstance(place, tuple) and len(place) == 3:
            functions[place] = mask
    marks = Marks(values, lambda node: bits.get(_place(node), 0), functions)
    found = gathered(model.proto, marks) if changed else {}
    return {name: {code for code in _FLOATS if mask & (1 << code)} for name, mask in found.items()}


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


def _tensors(model: ModelProto) -> Iterator[_Placed]:
    """The floating-point constants that a run of the model may read."""
    yield from ((t.name, t) for t in _initializers(model.graph))
    for node in model.graph.node:
        yield from ((_place(node), t) for t in _of_nodes([node]))
    for function in model.functions:
        key = (function.domain, function.name, function.overload)
        yield from ((key, t) for t in _of_nodes(function.node))


def _place(node: NodeProto) -> tuple[str]:
    return (next(iter(node.output), ""),)


def _initializers(graph: GraphProto) -> list[TensorProto]:
    found = [*graph.initializer, *(sparse.values for sparse in graph.sparse_initializer)]
    return [tensor for tensor in found if tensor.data_type in _FLOATS]


def _of_graph(graph: GraphProto) -> Iterator[TensorProto]:
    yield from _initializers(graph)
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
