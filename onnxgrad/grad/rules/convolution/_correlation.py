"""The weight gradient of a convolution as a correlation of two images, and the views of the images
that its forms share.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod
from typing import Any

import numpy as np

from onnxgrad.frozen import frozen
from onnxgrad.grad.rules._common import pad
from onnxgrad.grad.rules._geometry import Geometry, spatial
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import Array
from onnxgrad.ir.var import Var


@frozen
class Correlation:
    """sum over batch and positions of long[n, c, o s + k d - begin] short[n, m, o], as
    (M, C / group, kernel).

    long is (N, C, *D), short (N, M, *O). `maps` is M and `channels` is C / group. Both and the
    kernel are known; D, O and N need not be.
    """

    long: Var
    short: Var
    geo: Geometry
    group: int
    maps: int
    channels: int
    kernel: tuple[int, ...]

    @property
    def axes(self) -> int:
        """The number of spatial axes."""
        return len(self.kernel)

    @property
    def taps(self) -> int:
        """The number of kernel elements."""
        return prod(self.kernel)

    @property
    def shape(self) -> list[int]:
        """The shape of the result."""
        return [self.maps, self.channels, *self.kernel]

    @property
    def sizes(self) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """D and O, if both and the zeros before are known."""
        d, o = spatial(self.long), spatial(self.short)
        return (d, o) if d is not None and o is not None and self.geo.is_fixed else None

    @property
    def area(self) -> int:
        """|D|, if D is known."""
        return prod((self.sizes or ((), ()))[0])

    @property
    def positions(self) -> int | None:
        """N |O|, or None if it is not known."""
        batch, o = None if self.short.shape is None else self.short.shape[0], spatial(self.short)
        return batch * prod(o) if isinstance(batch, int) and o is not None else None

    def maps_first(self) -> Var:
        """Returns short as (M, N |O|); grouped as (group, M / group, N |O|). Moves whole images."""
        rows = op.Transpose(self.short, perm=[1, 0, *range(2, self.axes + 2)])
        lead = [] if self.group == 1 else [self.group]
        return op.Reshape(rows, [*lead, self.maps // self.group, -1])

    def windows(self) -> Iterator[Var]:
        """Yields for each kernel element the pixels that it meets.

        They are (N |O|, C), or (group, N |O|, C / group) if grouped.
        """
        if self.group == 1:
            rows, lead = channels_last(self.long), []
        else:
            image = (self.sizes or ((), ()))[0]
            split = op.Reshape(self.long, [-1, self.group, self.channels, *image])
            rows = op.Transpose(split, perm=[1, 0, *range(3, self.axes + 3), 2])
            lead = [self.group]
        for window in self.slices(rows, len(lead) + 1):
            yield op.Reshape(window, [*lead, -1, self.channels])

    def slices(self, rows: Var, first: int) -> Iterator[Var]:
        """Yields windows of O positions into `rows`.

        `first` is the first spatial axis of `rows`; one axis follows the spatial axes.
        """
        axes, strides = list(range(first, first + self.axes)), list(self.geo.strides)
        pads = self.pads(first)
        padded = pad(rows, pads) if isinstance(pads, Var) or any(pads) else rows
        span = self._span()
        for place in product(*map(range, self.kernel)):
            start = np.array([p * d for p, d in zip(place, self.geo.dilations)], np.int64)
            yield op.Slice(padded, start, span + start, axes, strides)

    def _span(self) -> Any:
        """Returns the distance from the first position to the end of the last."""
        strides = np.array(self.geo.strides, np.int64)
        if self.sizes is not None:
            return (np.array(self.sizes[1], np.int64) - 1) * strides + 1
        one = np.array([1], np.int64)
        return op.Mul(op.Shape(self.short, start=2) - one, strides) + one

    def pads(self, first: int) -> Any:
        """Returns the pads: zeros before, and after as far as the last window reaches.

        The axes before `first` and the last axis get none.
        """
        ahead, behind = np.zeros(first, np.int64), np.zeros(1, np.int64)
        begin: Any = self.geo.begin
        end: Any = self.geo.end
        if self.sizes is not None:
            end = tuple(max(m, 0) for m in self.geo.missing(*self.sizes))
        if isinstance(begin, Var) or isinstance(end, Var):
            return op.Concat(ahead, begin, behind, ahead, end, behind, axis=0)
        return [*ahead.tolist(), *begin, 0, *ahead.tolist(), *end, 0]

    def index(self) -> Array:
        """Returns (|O|, taps): the position among |D| that each element meets; |D| means a zero."""
        long, short = self.sizes or ((), ())
        rank = self.axes
        flat = np.zeros((1,) * (2 * rank), np.int64)
        inside = np.ones((1,) * (2 * rank), bool)
        for i, (size, count) in enumerate(zip(long, short)):
            starts = np.arange(count)[:, None] * self.geo.strides[i] - self.geo.fixed_begin[i]
            at = starts + np.arange(self.kernel[i]) * self.geo.dilations[i]
            at = at.reshape(
                [
                    count if j == i else self.kernel[i] if j == rank + i else 1
                    for j in range(2 * rank)
                ]
            )
            flat = flat * size + at
            inside = inside & (at >= 0) & (at < size)
        return np.where(inside, flat, prod(long)).reshape(prod(short), self.taps)


def channels_last(v: Var) -> Var:
    """Transposes (N, C, *D) to (N, *D, C)."""
    return op.Transpose(v, perm=[0, *range(2, v.rank or 0), 1])
