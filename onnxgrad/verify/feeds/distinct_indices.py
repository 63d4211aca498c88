"""Indices that must not repeat: onnx leaves the result of a Scatter without a reduction and of
MaxUnpool undefined if two elements write to one place, and refuses an axis that occurs twice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from onnxgrad.frozen import frozen

Array: TypeAlias = np.ndarray[Any, Any]


@frozen
class Distinct:
    """The places that an operand names. sizes: the number of places along each component of an
    index. axis: if not None, indices may repeat between the lines along this axis. among: if not
    empty, the legal values.
    """

    sizes: tuple[int, ...]
    axis: int | None = None
    among: tuple[int, ...] = ()

    def below(self, most: int) -> Distinct:
        """Returns the places whose components all are less than `most`, as another use of the
        operand may demand.
        """
        return replace(
            self,
            sizes=tuple(min(size, most) for size in self.sizes),
            among=tuple(value for value in self.among if value < most),
        )


def distinct_of(
    op: str,
    attributes: dict[str, Any],
    data: Sequence[int] | None,
    indices: Sequence[int] | None,
    result: Sequence[int] | None,
) -> Distinct | None:
    """Returns the places that an operand of NAMES_PLACES names, or None if its elements may repeat.
    `data`, `indices` and `result`: the sizes of operand 0, of this operand and of the result, None
    if unknown.
    """
    if attributes.get("reduction", b"none") != b"none" or indices is None:
        return None
    if op in ("ScatterElements", "Scatter") and data:
        axis = attributes.get("axis", 0) % len(data)
        return Distinct((data[axis],), axis)
    if op == "ScatterND" and data is not None and indices:
        return Distinct(tuple(data[: indices[-1]]))
    if op == "MaxUnpool" and result is not None:
        return Distinct((math.prod(result),))
    if data is None or op not in _AXES:
        return None
    if op == "Squeeze":
        ones = tuple(axis for axis, size in enumerate(data) if size == 1)
        return Distinct((len(data),), among=ones)
    return Distinct((len(data) + (math.prod(indices) if op == "Unsqueeze" else 0),))


_AXES = ("Slice", "Squeeze", "Unsqueeze")
# operands that name places, if their operator has no reduction
NAMES_PLACES = {
    ("ScatterElements", 1), ("Scatter", 1), ("ScatterND", 1), ("MaxUnpool", 1), ("Slice", 3),
    ("Squeeze", 1), ("Unsqueeze", 1),
}  # fmt: skip


def drawn(distinct: Distinct, shape: Sequence[int], rng: np.random.Generator) -> Array | None:
    """Returns indices of this shape that name no place twice; None if there are fewer places than
    indices.
    """
    components = len(distinct.sizes)
    if distinct.among:
        most = math.prod(shape)
        few = len(distinct.among) < most
        return None if few else rng.permutation(distinct.among)[:most].reshape(shape)
    if components > 1:
        if not shape or shape[-1] != components:
            return None
        flat = _places(math.prod(distinct.sizes), math.prod(shape[:-1]), rng)
        parts = None if flat is None else np.unravel_index(flat, distinct.sizes)
        return None if parts is None else np.stack(parts, axis=-1).reshape(shape)
    axis, size = distinct.axis, distinct.sizes[0]
    if axis is None or axis >= len(shape):
        flat = _places(size, math.prod(shape), rng)
        return None if flat is None else flat.reshape(shape)
    if shape[axis] > size:
        return None
    lines = np.empty([*shape[:axis], *shape[axis + 1 :], shape[axis]], np.int64)
    for at in np.ndindex(*lines.shape[:-1]):
        lines[at] = rng.permutation(size)[: shape[axis]]
    return np.moveaxis(lines, -1, axis)


_MOST = 1 << 24  # places that are permuted


def _places(size: int, count: int, rng: np.random.Generator) -> Array | None:
    """Returns `count` different numbers below `size`; None if there are not so many."""
    if count > size:
        return None
    if size > _MOST:
        return rng.integers(0, size // count, count) + np.arange(count) * (size // count)
    return rng.permutation(size)[:count]
