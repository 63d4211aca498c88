"""DeformConv: a convolution over columns that are read between the pixels (see `_sampling`).

Its columns v (N, parts, *K, *O, C/parts) are samples of x at regular positions plus offsets; y = W (mask v). With the
columns' adjoint W^T g, everything else is sampling.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from onnxgrad.grad.accumulate import reshape_like
from onnxgrad.grad.registry import vjp
from onnxgrad.grad.rules._sampling import (
    Neighbours,
    along,
    as_type,
    neighbours,
    number_type,
    overlaps,
    read,
    reshaped,
    size_vectors,
    spread,
)
from onnxgrad.grad.rules._windows import kernel_of, spatial_rank
from onnxgrad.grad.rules.shape import size_along
from onnxgrad.ir.block import Binding, Var
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import numpy_dtype


class _Forward:
    """The forward binding's operands in one number type, its sizes as vectors, and what its columns read."""

    def __init__(self, g: Var, x: Var, w: Var, offset: Var, mask: Var | None, binding: Binding) -> None:
        said = kernel_of(w, binding)
        self.rank = r = spatial_rank(said, x, binding)
        self.dtype = number_type(x)
        self.g, self.x, self.w, self.offset = (as_type(v, self.dtype) for v in (g, x, w, offset))
        self.binding, self.group, self.parts = binding, binding.attr("group"), binding.attr("offset_group")
        self.batch, self.channels, self.maps = size_along(x, 0), size_along(x, 1), size_along(w, 0)
        self.image = size_vectors(x, 2, r)
        self.kernel = size_vectors(w, 2, r) if said is None else [np.array([k], np.int64) for k in said]
        self.out = size_vectors(g, 2, r)
        self.share = _divided(self.channels, self.parts)
        self.mask = None if mask is None else self._places(as_type(mask, self.dtype))

    def _places(self, v: Var, *more: Any) -> Var:
        """(N, parts |K| .., *O) as (N, parts, *K, .., *O)."""
        return reshaped(v, self._shape(*self.kernel, *more, *self.out))

    def _shape(self, *rest: Any) -> list[Any]:
        return [self.batch, np.array([self.parts]), *rest]

    def neighbours(self) -> Neighbours:
        """What is read at positions (N, parts, *K, *O)."""
        r, binding = self.rank, self.binding
        strides = binding.attr("strides") or (1,) * r
        dilations = binding.attr("dilations") or (1,) * r
        pads = binding.attr("pads") or (0,) * 2 * r
        moved = self._places(self.offset, np.array([r]))
        positions = []
        for i in range(r):
            within = self._line(self.kernel[i], 2 * r - 1 - i, 0, dilations[i])
            window = self._line(self.out[i], r - 1 - i, -pads[i], strides[i])
            positions.append(op.Gather(moved, np.int64(i), axis=2 + r) + (within + window))
        batch = op.Range(np.int64(0), op.Squeeze(self.batch), np.int64(1))
        part = np.arange(self.parts).reshape(-1, *[1] * 2 * r)
        image = op.Add(op.Mul(op.Reshape(batch, [-1, *[1] * (2 * r + 1)]), np.array([self.parts])), part)
        return neighbours(positions, image, self.image, "linear", "zeros", False)

    def _line(self, size: Any, behind: int, start: int, step: int) -> Any:
        """start, start + step, ...: `size` numbers along one axis with `behind` axes behind it."""
        if not isinstance(size, Var):
            numbers: Any = np.arange(int(size[0])) * step + start
            return numbers.astype(numpy_dtype(self.dtype)).reshape(-1, *[1] * behind)
        count = op.Range(np.int64(0), op.Squeeze(size), np.int64(1))
        numbers = op.Cast(count, to=self.dtype) * float(step) + float(start)
        return op.Reshape(numbers, [-1, *[1] * behind])

    def columns_adjoint(self) -> Var:
        """W^T g, the adjoint of the masked columns: (N, parts, *K, *O, C/parts)."""
        found = op.MatMul(self.weight().mT, self.cotangents())
        r = self.rank
        apart = reshaped(found, self._shape(self.share, *self.kernel, *self.out))
        result: Var = op.Transpose(apart, perm=[0, 1, *range(3, 3 + 2 * r), 2])
        return result

    def weight(self) -> Var:
        """(G, M/G, C/G |K|)."""
        inner = _product([_divided(self.channels, self.group), *self.kernel])
        return reshaped(self.w, [np.array([self.group]), _divided(self.maps, self.group), inner])

    def cotangents(self) -> Var:
        """g as (N, G, M/G, |O|)."""
        sizes = [self.batch, np.array([self.group]), _divided(self.maps, self.group), _product(self.out)]
        return reshaped(self.g, sizes)

    def images(self) -> Var:
        """x as (N, parts, *S, C/parts)."""
        apart = reshaped(self.x, self._shape(self.share, *self.image))
        result: Var = op.Transpose(apart, perm=[0, 1, *range(3, 3 + self.rank), 2])
        return result

    def masked(self, v: Var) -> Var:
        """`v` (N, parts, *K, *O) or with channels behind, times the mask."""
        if self.mask is None:
            return v
        return v * (self.mask if v.rank == self.mask.rank else op.Unsqueeze(self.mask, [-1]))


def _divided(size: Any, by: int) -> Any:
    return op.Div(size, np.array([by], np.int64)) if isinstance(size, Var) else size // by


def _product(sizes: Sequence[Any]) -> Any:
    """The product of vectors of one size each."""
    return reduce(lambda a, b: op.Mul(a, b) if isinstance(a, Var) or isinstance(b, Var) else a * b, sizes)


def _x(g: Var, y: Var, x: Var, w: Var, offset: Var, b: Var | None, mask: Var | None, binding: Binding) -> Var:
    f = _Forward(g, x, w, offset, mask, binding)
    sizes = [f.batch, np.array([f.parts]), *f.image, f.share]
    images = spread(f.masked(f.columns_adjoint()), sizes, f.neighbours())
    return reshape_like(op.Transpose(images, perm=[0, 1, 2 + f.rank, *range(2, 2 + f.rank)]), x)


def _w(g: Var, y: Var, x: Var, w: Var, offset: Var, b: Var | None, mask: Var | None, binding: Binding) -> Var:
    """g times the masked columns."""
    f = _Forward(g, x, w, offset, mask, binding)
    r = f.rank
    columns = op.Transpose(f.masked(read(f.images(), f.neighbours(), r)), perm=[0, 1, 2 + 2 * r, *range(2, 2 + 2 * r)])
    inner = _product([_divided(f.channels, f.group), *f.kernel])
    grouped = reshaped(columns, [f.batch, np.array([f.group]), inner, _product(f.out)])
    return reshape_like(op.ReduceSum(f.cotangents() @ grouped.mT, [0], keepdims=0), w)


def _offset(g: Var, y: Var, x: Var, w: Var, offset: Var, b: Var | None, mask: Var | None, binding: Binding) -> Var:
    f = _Forward(g, x, w, offset, mask, binding)
    at = f.neighbours()
    s = overlaps(f.columns_adjoint(), f.images(), at)
    parts = [op.Unsqueeze(f.masked(along(s, at.slope(i), f.rank)), [2 + f.rank]) for i in range(f.rank)]
    return reshape_like(op.Concat(*parts, axis=2 + f.rank), offset)


def _b(g: Var, y: Var, x: Var, w: Var, offset: Var, b: Var, mask: Var | None, binding: Binding) -> Var:
    r = spatial_rank(kernel_of(w, binding), x, binding)
    result: Var = op.ReduceSum(g, [0, *range(2, r + 2)], keepdims=0)
    return result


def _mask(g: Var, y: Var, x: Var, w: Var, offset: Var, b: Var | None, mask: Var, binding: Binding) -> Var:
    f = _Forward(g, x, w, offset, mask, binding)
    at = f.neighbours()
    return reshape_like(along(overlaps(f.columns_adjoint(), f.images(), at), at.weight, f.rank), mask)


vjp(
    "DeformConv",
    _x,
    _w,
    _offset,
    _b,
    _mask,
    notes="at a pixel's centre: the slope on the side of larger positions; outside the image zeros are read",
)
