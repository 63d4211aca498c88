"""The constants that a gradient adds to a model, each off by what rounding may have done to it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper

from onnxgrad.ir.protobufs import elements, graphs_of

# the relative rounding of one number
UNITS: dict[int, float] = {
    TensorProto.DOUBLE: 2.0**-53,
    TensorProto.FLOAT: 2.0**-24,
    TensorProto.FLOAT16: 2.0**-11,
    TensorProto.BFLOAT16: 2.0**-8,
}
# numbers of so few digits, such as 0.5 and 10, were not rounded
_EXACT = 2.0**8


def constants_shifted(graph: ModelProto, source: ModelProto, seed: int) -> ModelProto | None:
    """The gradient `graph` of `source`, for float64, with each number that was rounded in
    constants that `source` lacks off by one unit of its type, up or down by chance; None where
    there is no such number. Weights that a rewrite transposed or negated were not rounded again.
    """
    theirs = dict(_constants(source))
    numbers = _magnitudes(theirs.values())
    shifted = ModelProto()
    shifted.CopyFrom(graph)
    rng, found = np.random.default_rng(seed), False
    for name, tensor in _constants(shifted):
        if name in theirs or tensor.data_type not in UNITS:
            continue
        values = np.asarray(elements(tensor)).astype(np.float64)
        mantissa = np.frexp(values)[0] * _EXACT
        rounded = np.isfinite(values) & (mantissa != np.round(mantissa))
        rounded &= ~np.isin(np.abs(values), numbers)
        if rounded.any():
            signs = rng.choice([-1.0, 1.0], values.shape)
            moved = values * (1.0 + np.where(rounded, signs * UNITS[tensor.data_type], 0.0))
            tensor.CopyFrom(numpy_helper.from_array(np.asarray(moved), tensor.name))
            found = True
    return shifted if found else None


def _magnitudes(tensors: Iterable[TensorProto]) -> np.ndarray[Any, Any]:
    found = [np.asarray(elements(t)) for t in tensors if t.data_type in UNITS]
    return np.unique(
        np.abs(np.concatenate([np.zeros(1), *(v.ravel().astype(float) for v in found)]))
    )


def _constants(model: ModelProto) -> Iterator[tuple[tuple[str, str], TensorProto]]:
    """The tensors of initializers and Constants, each by its function and its name."""
    yield from _of_graph("", model.graph)
    for function in model.functions:
        yield from _of_nodes(f"{function.domain}::{function.name}", function.node)


def _of_graph(where: str, graph: GraphProto) -> Iterator[tuple[tuple[str, str], TensorProto]]:
    for tensor in graph.initializer:
        yield (where, tensor.name), tensor
    yield from _of_nodes(where, graph.node)


def _of_nodes(
    where: str, nodes: Iterable[NodeProto]
) -> Iterator[tuple[tuple[str, str], TensorProto]]:
    for node in nodes:
        for nested in graphs_of(node):
            yield from _of_graph(where, nested)
        for attribute in node.attribute if node.op_type == "Constant" else ():
            if attribute.HasField("t"):
                yield (where, node.output[0]), attribute.t
