"""Tables of cosines and sines of positions: their frequencies, and the table of any size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from onnxgrad.ir.emission.emit import constant
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import Array
from onnxgrad.ir.var import Var

_DTYPES = ("float32", "float64")
_ROUNDINGS = 8  # of a number of a table, beside that of its angle
_WITH_A_PARTNER = 2  # numbers of a row


@dataclass(frozen=True)
class Waves:
    """The number of column k at position p is amplitude * cos(p * frequency[k]), or the sine where
    `sines` is true. The arrays have the shape of one position.
    """

    frequency: Array
    sines: Array
    amplitude: float

    def at(self, positions: Array) -> Array:
        """Returns the numbers at positions, which broadcast with one position, in float64."""
        angles = np.multiply(positions.astype(self.frequency.dtype), self.frequency)
        exact = angles.astype(np.float64)
        made: Array = self.amplitude * np.where(self.sines, np.sin(exact), np.cos(exact))
        return made

    def emit(self, positions: Var, dtype: int) -> Var:
        """Emits the table at positions of the dtype, which broadcast with one position."""
        angles: Var = positions * constant(self.frequency, dtype)
        if self.sines.all() or not self.sines.any():
            made: Var = op.Sin(angles) if self.sines.all() else op.Cos(angles)
        else:
            made = op.Where(self.sines, op.Sin(angles), op.Cos(angles))
        if self.amplitude == 1:
            return made
        return made * constant(np.array(self.amplitude, self.frequency.dtype), dtype)


def waves_of(table: Array, axis: int, others: Iterable[Array]) -> Waves | None:
    """Returns the waves that a table holds along an axis of positions, or None.

    A frequency follows from a cosine and the sine of the same angle. The other one is in one of the
    `others`, tables of the same shape, or elsewhere in the same row. A slow wave alone says nothing
    of its frequency, so a table without partners is none.
    """
    if table.dtype.name not in _DTYPES or not table.size or not np.isfinite(table).all():
        return None
    first = np.take(table, [0], axis)
    sines = first == 0
    for partner in _partners(table, axis, others):
        start = np.where(sines, np.take(partner, [0], axis), first)
        amplitude = float(start.reshape(-1)[0])
        if amplitude > 0 and (start == amplitude).all():
            found = _fitted(table, partner, axis, sines, amplitude)
            if found is not None:
                return found
    return None


def _partners(table: Array, axis: int, others: Iterable[Array]) -> Iterator[Array]:
    """Yields tables that may hold the sine of each cosine and the cosine of each sine."""
    yield from (o for o in others if o.shape == table.shape and o.dtype == table.dtype)
    count = table.shape[-1]
    if axis != table.ndim - 1 and count % _WITH_A_PARTNER == 0:
        yield np.roll(table, count // 2, -1)
        yield table.reshape(*table.shape[:-1], -1, 2)[..., ::-1].reshape(table.shape)


def _fitted(
    table: Array, partner: Array, axis: int, sines: Array, amplitude: float
) -> Waves | None:
    count, eps = table.shape[axis], float(np.finfo(table.dtype.name).eps)
    mine, other = table.astype(np.float64), partner.astype(np.float64)
    if np.abs(mine**2 + other**2 - amplitude**2).max() > _ROUNDINGS * eps * amplitude**2:
        return None
    positions = np.arange(count).reshape([-1 if a == axis else 1 for a in range(table.ndim)])
    angles = np.arctan2(np.where(sines, mine, other), np.where(sines, other, mine))
    turns = np.round((positions * np.take(angles, [1], axis) - angles) / (2 * np.pi))
    angles = angles + 2 * np.pi * turns
    slopes = (positions * angles).sum(axis, keepdims=True) / float((positions**2).sum())
    found = Waves(slopes.astype(table.dtype), sines, amplitude)
    allowed = amplitude * eps * (_ROUNDINGS + np.abs(positions * slopes))
    return found if (np.abs(np.subtract(found.at(positions), mine)) <= allowed).all() else None
