"""Tensors, and sequences of tensors, as vectors for the sums and products of the numeric check."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np
from onnx import ModelProto, ValueInfoProto

from onnxgrad.grad.sequences import element_type, map_elements
from onnxgrad.ir.ops import op
from onnxgrad.ir.protobufs import copy_of
from onnxgrad.ir.storage.lazy_arrays import LazyArray
from onnxgrad.ir.storage.shared_weights import Files
from onnxgrad.ir.types import SequenceType
from onnxgrad.ir.var import Var
from onnxgrad.verify.reference.client import Float64

Flat = np.ndarray[Any, Any]
# an array that may be too large to hold in float64
Vector: TypeAlias = "Flat | LazyArray"
Mask = np.ndarray[Any, np.dtype[np.bool_]]


def flat(value: Any) -> Flat:
    """Returns a tensor in float64 with its shape, or a sequence as one float64 vector."""
    if isinstance(value, LazyArray):
        return np.asarray(value.wide())
    if isinstance(value, list):
        return np.concatenate(
            [np.zeros(0), *(np.asarray(v).astype(np.float64).ravel() for v in value)]
        )
    return np.asarray(value).astype(np.float64, copy=False)


def flat_shape(value: Any) -> tuple[int, ...]:
    """Returns the shape of `flat`; a lazy array is not computed."""
    return value.shape if isinstance(value, LazyArray) else flat(value).shape


def vector(value: Any) -> Vector:
    """Returns `flat`, or a lazy array unchanged."""
    return value if isinstance(value, LazyArray) else flat(value)


def total(v: Vector) -> float:
    """Returns the sum of the elements."""
    if isinstance(v, LazyArray):
        return math.fsum(float(np.sum(block)) for _, _, block in v.blocks())
    return float(np.sum(v))


def norm(v: Vector) -> float:
    """Returns the root of the sum of the squares of the elements."""
    if isinstance(v, LazyArray):
        return math.sqrt(math.fsum(float(np.linalg.norm(b)) ** 2 for _, _, b in v.blocks()))
    return float(np.linalg.norm(v))


def is_finite(v: Vector) -> bool:
    """Whether all elements are finite."""
    blocks = (b for _, _, b in v.blocks()) if isinstance(v, LazyArray) else [v]
    return all(bool(np.isfinite(block).all()) for block in blocks)


def largest_of(value: Any) -> float:
    """Returns the magnitude of the largest element."""
    found = vector(value)
    blocks = (b for _, _, b in found.blocks()) if isinstance(found, LazyArray) else [found]
    return float(max((max(b.max(initial=0.0), -b.min(initial=0.0)) for b in blocks), default=0.0))


def shaped(moved: Vector, like: Any) -> Any:
    """Splits a vector into a sequence shaped as `like`; returns it unchanged if that is a
    tensor.
    """
    if not isinstance(like, list) or isinstance(moved, LazyArray):
        return moved
    ends = np.cumsum([np.size(v) for v in like])
    return [
        part.reshape(np.shape(v))
        for part, v in zip(np.split(moved, ends[:-1]) if like else [], like)
    ]


def moved_by(v: Var, delta: Var) -> Var:
    """Emits `v + delta`, element by element for sequences."""
    if isinstance(v.type, SequenceType):
        return map_elements("moved", [v, delta], lambda a, b: a + b, element_type(v))
    return op.Add(v, delta)


def zero_deltas(
    model: ModelProto,
    files: Files,
    feeds: Mapping[str, Any],
    names: Iterable[str],
    sequences: Collection[str],
) -> dict[str, Any]:
    """Returns a zero to add to each named value: a number, or a sequence of zeros for a
    sequence.
    """
    names = list(names)
    unknown = [n for n in names if n in sequences and n not in feeds]
    values = {**feeds, **values_of(model, files, feeds, unknown)}
    return {
        n: [np.zeros(np.shape(v)) for v in values[n]] if n in sequences else np.zeros(())
        for n in names
    }


def values_of(
    model: ModelProto, files: Files, feeds: Mapping[str, Any], names: Collection[str]
) -> dict[str, Any]:
    """Returns values of the model's main graph by name, computed by the float64 reference."""
    if not names:
        return {}
    probe = copy_of(model)
    del probe.graph.output[:]
    probe.graph.output.extend(ValueInfoProto(name=n) for n in names)
    return dict(Float64(files.runnable(probe)).run(feeds, outputs=list(names)))


def side_by_side(v: Flat) -> Flat:
    """Returns a matrix of three directions side by side, `v` in the middle: [rows, 3 columns] for a
    matrix [rows, columns], [elements, 3] for any other shape.
    """
    one = v if v.ndim == 2 else v.reshape(-1, 1)
    first, last = np.random.default_rng(1).standard_normal((2, *one.shape))
    return np.concatenate([first, one, last], axis=1)


def middle(matrix: Flat, shape: tuple[int, ...]) -> Flat:
    """Returns the direction in the middle, in its own shape."""
    columns = matrix.shape[1] // 3
    return matrix[:, columns : 2 * columns].reshape(shape)
