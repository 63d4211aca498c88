"""Reading an image between its pixels at positions known at run time: where, with which weights, and their slopes.

The value at a position is a sum over neighbours, `y[c] = sum_k w_k x[i_k, c]`, with `w_k` a product over the axes. So
with `s_k = sum_c g[c] x[i_k, c]`, the adjoint of pixel `i_k` is `w_k g`, and that of the position along an axis is
`sum_k s_k dw_k`. The neighbours of all axes stand side by side in leading axes (T, ..., T, *P), one T per spatial axis.

Beyond its edges the image is continued by moving the neighbours' indices (as onnxruntime does), not the positions: at a
fold the slopes' signs then come out by themselves. Images are read as rows of channels: (images, *S, C) as (-1, C).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from onnx import TensorProto

from onnxgrad.grad.rules._common import as_number
from onnxgrad.grad.rules.shape import size_along
from onnxgrad.ir.block import Var
from onnxgrad.ir.ops import constant, op
from onnxgrad.ir.types import TensorType, numpy_dtype

# positions further out than any image reaches stay where int64 holds them
_FAR = 2.0**30
_A = -0.75
# per neighbour, the coefficients of 1, t, t^2, ... in its weight, t the distance from the pixel below (Keys 1981)
_WEIGHTS = {
    "linear": [[1.0, -1.0], [0.0, 1.0]],
    "cubic": [
        [0.0, _A, -2 * _A, _A],
        [1.0, 0.0, -(_A + 3), _A + 2],
        [0.0, -_A, 2 * _A + 3, -(_A + 2)],
        [0.0, 0.0, _A, -_A],
    ],
}
_FIRST = {"linear": 0, "cubic": -1}


@dataclass(frozen=True)
class Taps:
    """One axis: the neighbours' indices, weights and slopes of the weights, (1, .., T, .., 1, *P).

    `slope` is None where the weights are constant (nearest).
    """

    index: Var
    weight: Var
    slope: Var | None


@dataclass(frozen=True)
class Neighbours:
    """All axes together. `row`: the neighbours' rows among the images' pixels, (T, ..., T, *P)."""

    row: Var
    axes: tuple[Taps, ...]

    @property
    def weight(self) -> Var:
        """(T, ..., T, *P)."""
        return reduce(op.Mul, [a.weight for a in self.axes])

    def slope(self, axis: int) -> Var:
        """How the weights change with the position along `axis`, (T, ..., T, *P)."""
        factors = [a.slope if i == axis else a.weight for i, a in enumerate(self.axes)]
        return reduce(op.Mul, [f for f in factors if f is not None])


def neighbours(
    positions: Sequence[Var], image: Var, sizes: Sequence[Any], mode: str, padding: str, aligned: bool
) -> Neighbours:
    """What is read at `positions` (one Var *P per spatial axis) of images with the given spatial sizes.

    `image` is the number of the image, int64 broadcastable to *P; `sizes` are int64 vectors of length 1, as from
    `shape.size_along`; `mode` is nearest, linear or cubic, `padding` zeros, border or reflection.
    """
    rank = len(positions)
    axes = [
        _taps(p, size, mode, padding, aligned, np.eye(rank, dtype=np.int64)[i])
        for i, (p, size) in enumerate(zip(positions, sizes, strict=True))
    ]
    row = image
    for axis, size in zip(axes, sizes, strict=True):
        row = op.Add(op.Mul(row, size), axis.index)
    return Neighbours(row, tuple(axes))


def _taps(position: Var, size: Any, mode: str, padding: str, aligned: bool, along: np.ndarray[Any, Any]) -> Taps:
    position = op.Clip(position, -_FAR, _FAR)
    if mode == "nearest":
        lead = np.ones(len(along), np.int64)
        place = op.Unsqueeze(op.Cast(op.Round(position), to=TensorProto.INT64), list(range(len(along))))
        index, inside = _continued(place, size, padding, aligned)
        ones = constant(np.ones((*lead, *[1] * (position.rank or 0)), numpy_dtype(position.dtype)))
        return Taps(index, ones if inside is None else as_number(inside, position), None)
    low = op.Floor(position)
    table = np.array(_WEIGHTS[mode])
    shape = [len(table) if a else 1 for a in along] + [1] * (position.rank or 0)
    offsets = (np.arange(len(table)) + _FIRST[mode]).reshape(shape)
    place = op.Add(op.Cast(low, to=TensorProto.INT64), offsets)
    index, inside = _continued(place, size, padding, aligned)
    t = position - low
    powers = np.arange(1, table.shape[1])
    values = [_polynomial(c.reshape(-1, *shape), t) for c in (table.T, (table[:, 1:] * powers).T)]
    if inside is not None:
        values = [v * as_number(inside, position) for v in values]
    return Taps(index, *values)


def _polynomial(coefficients: np.ndarray[Any, Any], t: Var) -> Var:
    """Horner's scheme; the coefficients of 1, t, ... along the first axis."""
    terms = [constant(c, t.dtype) for c in coefficients]
    return reduce(lambda total, c: total * t + c, reversed(terms[:-1]), terms[-1])


def _continued(place: Var, size: Any, padding: str, aligned: bool) -> tuple[Var, Var | None]:
    """(the index of the pixel that stands at `place`, whether it counts; None where all do)."""
    one = np.array([1], np.int64)
    last = _minus(size, one)
    if padding == "reflection":  # about the centres of the edge pixels if aligned, else about their outer edges
        reach = _plus(last, last) if aligned else _plus(size, size)
        period = _at_least(reach, one)
        folded = op.Mod(place, period)
        place = op.Min(folded, op.Sub(reach if aligned else _minus(reach, one), folded))
    clamped = op.Max(op.Min(place, last), np.array([0], np.int64))
    return clamped, op.Equal(clamped, place) if padding == "zeros" else None


def _plus(a: Any, b: Any) -> Any:
    return op.Add(a, b) if isinstance(a, Var) or isinstance(b, Var) else a + b


def _minus(a: Any, b: Any) -> Any:
    return op.Sub(a, b) if isinstance(a, Var) or isinstance(b, Var) else a - b


def _at_least(a: Any, b: Any) -> Any:
    return op.Max(a, b) if isinstance(a, Var) else np.maximum(a, b)


def overlaps(cotangents: Var, images: Var, at: Neighbours) -> Var:
    """s_k: cotangents (*P, C) against the neighbours' pixels of images (..., *S, C), (T, ..., T, *P)."""
    return op.ReduceSum(_pixels(images, at) * cotangents, [-1], keepdims=0)


def read(images: Var, at: Neighbours, rank: int) -> Var:
    """y: images (..., *S, C) at the positions, (*P, C)."""
    result: Var = op.ReduceSum(_pixels(images, at) * op.Unsqueeze(at.weight, [-1]), list(range(rank)), keepdims=0)
    return result


def _pixels(images: Var, at: Neighbours) -> Var:
    """(T, ..., T, *P, C)."""
    result: Var = op.Gather(op.Flatten(images, axis=-1), at.row, axis=0)
    return result


def along(s: Var, weights: Var, rank: int) -> Var:
    """sum_k s_k weights_k, (*P)."""
    result: Var = op.ReduceSum(s * weights, list(range(rank)), keepdims=0)
    return result


def spread(cotangents: Var, sizes: Sequence[Any], at: Neighbours) -> Var:
    """The adjoint of images of `sizes` (..., *S, C), vectors of length 1: w_k g added into each neighbour's pixel."""
    like = op.CastLike(op.ConstantOfShape(joined(sizes)), cotangents)
    updates = op.Unsqueeze(at.weight, [-1]) * cotangents
    rows = op.ScatterND(op.Flatten(like, axis=-1), op.Unsqueeze(at.row, [-1]), updates, reduction="add")
    return reshaped(rows, sizes)


def size_vectors(v: Var, first: int, rank: int) -> list[Any]:
    """The sizes of the `rank` axes from `first` on."""
    return [size_along(v, first + i) for i in range(rank)]


def joined(sizes: Sequence[Any]) -> Any:
    """One shape of vectors of sizes: known where they all are."""
    if any(isinstance(s, Var) for s in sizes):
        return op.Concat(*sizes, axis=0)
    return np.concatenate([np.asarray(s, np.int64) for s in sizes])


def reshaped(v: Var, sizes: Sequence[Any]) -> Var:
    """`v` with axes of these sizes, each a vector of length 1, known or a Var; the rank is known in any case."""
    result: Var = op.Reshape(v, joined(sizes), allowzero=1)
    if result.rank is None:
        result.type = TensorType(result.dtype, (None,) * len(sizes))
    return result


def number_type(*operands: Var) -> int:
    """Positions in pixels need more than half precision."""
    return TensorProto.DOUBLE if any(v.dtype == TensorProto.DOUBLE for v in operands) else TensorProto.FLOAT


def as_type(v: Var, dtype: int) -> Var:
    """`v`, cast if need be."""
    result: Var = v if v.dtype == dtype else op.Cast(v, to=dtype)
    return result
