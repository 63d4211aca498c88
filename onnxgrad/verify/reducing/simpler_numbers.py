"""Smaller models by sizes and numbers: an axis of one or two elements, constants of zeros, ones
or few digits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, TensorProto, numpy_helper

from onnxgrad.ir.protobufs import every_graph
from onnxgrad.verify.reducing.candidate import Candidates, Types, copied

_FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16)


def smaller_sizes(model: ModelProto, types: Types) -> Candidates:
    """One size becomes 1 or 2 wherever it occurs: in weights, in types, in constants that hold
    shapes.
    """
    sizes = {d for t in model.graph.initializer for d in t.dims}
    sizes |= {
        d.dim_value
        for v in [*model.graph.input, *model.graph.output]
        for d in v.type.tensor_type.shape.dim
    }
    for size in sorted((s for s in sizes if s > 1), reverse=True):
        for small in (1, 2, 4):
            if small < size:
                yield _resized(model, size, small)


def _resized(model: ModelProto, size: int, small: int) -> ModelProto:
    made = copied(model)
    for graph in every_graph(made.graph):
        graph.ClearField("value_info")
        for v in [*graph.input, *graph.output]:
            for d in v.type.tensor_type.shape.dim:
                if d.dim_value == size:
                    d.dim_value = small
        for t in _tensors(graph):
            if size in t.dims or t.data_type == TensorProto.INT64:
                array = numpy_helper.to_array(t)
                array = array[
                    tuple(slice(small) if d == size else slice(None) for d in array.shape)
                ]
                if t.data_type == TensorProto.INT64 and array.ndim <= 1:
                    array = np.where(array == size, np.int64(small), array)
                t.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array), t.name))
    return made


def _tensors(graph: GraphProto) -> Iterator[TensorProto]:
    yield from (t for t in graph.initializer if t.data_location != TensorProto.EXTERNAL)
    for n in graph.node:
        yield from (a.t for a in n.attribute if a.type == AttributeProto.TENSOR)


def plainer_numbers(model: ModelProto, types: Types) -> Candidates:
    """A floating-point constant of zeros, of ones, or of few digits."""
    plain: list[Callable[[Any], Any]] = [np.zeros_like, np.ones_like, _rounded]
    for i, tensor in enumerate(model.graph.initializer):
        for change in plain[: plainness(tensor)]:
            before = numpy_helper.to_array(tensor)
            after = np.asarray(change(before)).astype(before.dtype)
            if not np.array_equal(before, after):
                made = copied(model)
                made.graph.initializer[i].CopyFrom(numpy_helper.from_array(after, tensor.name))
                yield made


def plainness(tensor: TensorProto) -> int:
    """0 for zeros and for what is no float, 1 for ones, 2 for numbers of few digits, 3 for
    others.
    """
    if tensor.data_type not in _FLOATS:
        return 0
    array = numpy_helper.to_array(tensor)
    if not array.any():
        return 0
    if (array == 1).all():
        return 1
    return 2 if np.array_equal(array, _rounded(array)) else 3


def _rounded(array: Any) -> Any:
    with np.errstate(over="ignore", invalid="ignore"):  # the largest floats, as masks have them
        return np.round(array, 1).astype(array.dtype)
