"""Small parts of an output beside large ones.

A difference is measured as a share of an output's largest value, so a difference in the second half
of Concat(1e7 x, x) would go unnoticed. If an output is a Concat, a small part is judged by its own
largest value, like a separate output.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto

from onnxgrad.frozen import frozen
from onnxgrad.verify.reference.client import typed
from onnxgrad.verify.tolerance import is_float
from onnxgrad.verify.values import Value

_SMALL = 1e-3  # of the output's largest value; larger parts need no separate judgement


@frozen
class Part:
    """Elements `start` to `stop` along one axis of an output."""

    output: str
    axis: int
    start: int
    stop: int

    @property
    def name(self) -> str:
        """The part in numpy's notation."""
        return f"{self.output}[{':, ' * self.axis}{self.start}:{self.stop}]"

    def of(self, results: Mapping[str, Value]) -> Value:
        """Returns the part of a result; None if the result is not a tensor that has it."""
        value = results.get(self.output)
        if not isinstance(value, np.ndarray) or value.ndim <= self.axis:
            return None
        return value[(slice(None),) * self.axis + (slice(self.start, self.stop),)]


@frozen
class _Join:
    """A Concat whose result an output is, possibly transposed."""

    operands: tuple[str, ...]
    axis: int  # the axis of the Concat; may count from the end
    moves: tuple[tuple[int, ...], ...]  # the Transposes after it, the last first

    def axis_of(self, rank: int) -> int:
        """Returns the axis of the output along which the operands lie."""
        axis = self.axis % rank
        for perm in reversed(self.moves):
            axis = (perm or tuple(reversed(range(rank)))).index(axis)
        return axis


class Joins:
    """The outputs of a model that end in a Concat. Sizes are inferred when first needed."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        maker = {name: node for node in model.graph.node for name in node.output}
        found = ((v.name, _join(v.name, maker)) for v in model.graph.output)
        self.joins = {name: join for name, join in found if join is not None}

    @cached_property
    def _sizes(self) -> dict[str, tuple[int | None, ...]]:
        graph = typed(self.model).graph
        shapes: dict[str, tuple[int | None, ...]] = {
            v.name: tuple(
                d.dim_value if d.HasField("dim_value") else None
                for d in v.type.tensor_type.shape.dim
            )
            for v in (*graph.value_info, *graph.input, *graph.output)
        }
        return shapes | {t.name: tuple(t.dims) for t in graph.initializer}

    def parts(self, results: Mapping[str, Value]) -> tuple[list[Part], list[str]]:
        """Returns the small parts of these results, and the outputs whose parts have
        unknown sizes.
        """
        found: list[Part] = []
        unknown: list[str] = []
        for name, join in self.joins.items():
            value = results.get(name)
            if not isinstance(value, np.ndarray) or not is_float(value) or not value.ndim:
                continue
            axis = join.axis_of(value.ndim)
            if not _uneven(value, axis):
                continue
            bounds = self._bounds(join, value.ndim, value.shape[axis])
            if bounds is None:
                unknown.append(name)
            else:
                found += _small(name, axis, bounds, value)
        return found, unknown

    def _bounds(self, join: _Join, rank: int, total: int) -> list[int] | None:
        """Returns the positions at which the operands end; None if several sizes are unknown."""
        sizes = [self._size(name, join.axis % rank, rank) for name in join.operands]
        if sizes.count(None) > 1:
            return None
        rest = total - sum(size or 0 for size in sizes)
        return [int(n) for n in np.cumsum([rest if size is None else size for size in sizes])]

    def _size(self, name: str, axis: int, rank: int) -> int | None:
        shape = self._sizes.get(name, ())
        return shape[axis] if len(shape) == rank else None


def _join(name: str, maker: Mapping[str, NodeProto]) -> _Join | None:
    moves: list[tuple[int, ...]] = []
    while (node := maker.get(name)) is not None and len(moves) <= len(maker):
        if node.op_type == "Concat" and len(node.input) > 1:
            axis = next((a.i for a in node.attribute if a.name == "axis"), 1)
            return _Join(tuple(node.input), int(axis), tuple(moves))
        if node.op_type == "Transpose":
            moves.append(next((tuple(a.ints) for a in node.attribute if a.name == "perm"), ()))
        elif node.op_type not in ("Identity", "Cast"):
            return None
        name = node.input[0]
    return None


def _uneven(value: np.ndarray[Any, Any], axis: int) -> bool:
    """True if a position along the axis is small beside the others."""
    found = _magnitudes(value, axis)
    return bool(found.size and found.min() < _SMALL * found.max())


def _magnitudes(value: np.ndarray[Any, Any], axis: int) -> np.ndarray[Any, Any]:
    wide = np.abs(value.astype(np.float64))
    finite = np.where(np.isfinite(wide), wide, 0.0)
    rest = tuple(i for i in range(wide.ndim) if i != axis)
    return np.asarray(finite.max(axis=rest, initial=0.0))


def _small(
    name: str, axis: int, bounds: Sequence[int], value: np.ndarray[Any, Any]
) -> Iterator[Part]:
    sizes = _magnitudes(value, axis)
    largest = sizes.max(initial=0.0)
    for start, stop in zip((0, *bounds), bounds):
        own = float(sizes[start:stop].max(initial=0.0))
        if 0.0 < own < _SMALL * largest and math.isfinite(own):
            yield Part(name, axis, start, stop)
