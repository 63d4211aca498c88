"""DeformConv: a convolution over columns that are read between the pixels (see `grid_sample`).

The columns v (N, parts, C/parts, |K| |O|) are samples of x at regular positions plus offsets, and
y = W (mask v). The columns' adjoint is W^T g; the rest is sampling.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from onnxgrad.grad.registry import Formula, vjp
from onnxgrad.grad.rules._geometry import kernel_of, of_attributes, spatial_rank
from onnxgrad.grad.rules.convolution.conv import bias
from onnxgrad.grad.rules.images.grid_sample import (
    Sampling,
    as_type,
    divided,
    number_type,
    product,
    reshaped,
    sampling,
)
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission.arithmetic import size_along
from onnxgrad.ir.emission.fill_and_reshape import reshape_like
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import numpy_dtype
from onnxgrad.ir.var import Var


class _Forward:
    """The forward binding: its operands in one number type, its sizes, and the pixels that its
    columns read.
    """

    def __init__(
        self, g: Var, x: Var, w: Var, offset: Var, mask: Var | None, binding: Binding
    ) -> None:
        kernel = kernel_of(w, binding)
        self.rank = r = spatial_rank(kernel, x, binding)
        self.dtype = number_type(x)
        self.g, self.x, self.w, self.offset = (as_type(v, self.dtype) for v in (g, x, w, offset))
        self.group, self.parts = binding.attr("group"), binding.attr("offset_group")
        self.geo = of_attributes(binding, None, r)
        self.batch, self.channels, *self.image = (size_along(x, i) for i in range(r + 2))
        self.kernel = [
            size_along(w, i + 2) if kernel is None else np.array([kernel[i]], np.int64)
            for i in range(r)
        ]
        self.out = [size_along(g, i + 2) for i in range(r)]
        self.lead = [self.batch, np.array([self.parts], np.int64)]
        self.share = divided(self.channels, self.parts)
        self.count = product([*self.kernel, *self.out])
        self.mask = (
            None if mask is None else reshaped(as_type(mask, self.dtype), [*self.lead, self.count])
        )

    def sampling(self) -> Sampling:
        """The pixels that the columns read: each kernel element in each window, moved by its
        offset.
        """
        r = self.rank
        moved = reshaped(
            self.offset, [*self.lead, *self.kernel, np.array([r], np.int64), *self.out]
        )
        positions = []
        for i in range(r):
            within = self._line(self.kernel[i], 2 * r - 1 - i, 0, self.geo.dilations[i])
            window = self._line(
                self.out[i], r - 1 - i, -self.geo.fixed_begin[i], self.geo.strides[i]
            )
            position = op.Gather(moved, np.int64(i), axis=2 + r) + (within + window)
            positions.append(reshaped(position, [*self.lead, self.count]))
        return sampling(positions, self.lead, self.image, self.count, "linear", "zeros", False)

    def _line(self, size: Any, behind: int, start: int, step: int) -> Any:
        """Returns `size` numbers start, start + step, ... along an axis before `behind` axes."""
        if not isinstance(size, Var):
            numbers: Any = np.arange(int(size[0])) * step + start
            return numbers.astype(numpy_dtype(self.dtype)).reshape(-1, *[1] * behind)
        count = op.Range(np.int64(0), op.Squeeze(size), np.int64(1))
        return op.Reshape(
            op.Cast(count, to=self.dtype) * float(step) + float(start), [-1, *[1] * behind]
        )

    def columns_adjoint(self) -> Var:
        """W^T g, the adjoint of the masked columns: (N, parts, C/parts, |K| |O|)."""
        weight = reshaped(
            self.w, [np.array([self.group]), divided(self.maps, self.group), self.inner]
        )
        return reshaped(
            op.MatMul(weight.mT, self.cotangents()), [*self.lead, self.share, self.count]
        )

    def cotangents(self) -> Var:
        """g as (N, G, M/G, |O|)."""
        return reshaped(
            self.g,
            [self.batch, np.array([self.group]), divided(self.maps, self.group), product(self.out)],
        )

    def images(self) -> Var:
        """x as (N, parts, C/parts, *S)."""
        return reshaped(self.x, [*self.lead, self.share, *self.image])

    def masked(self, columns: Var) -> Var:
        """Columns times the mask."""
        return columns if self.mask is None else columns * op.Unsqueeze(self.mask, [2])

    @property
    def maps(self) -> Any:
        """M, the number of output channels."""
        return size_along(self.w, 0)

    @property
    def inner(self) -> Any:
        """C/G |K|, the number of products per output element."""
        return product([divided(self.channels, self.group), *self.kernel])


def _w(f: _Forward) -> Var:
    """Returns g times the masked columns."""
    read = f.masked(f.sampling().read(f.images(), f.share))
    columns = reshaped(read, [f.batch, np.array([f.group]), f.inner, product(f.out)])
    return op.ReduceSum(f.cotangents() @ columns.mT, [0], keepdims=0)


def _offset(f: _Forward) -> Var:
    at = f.sampling()
    s = at.overlaps(f.columns_adjoint(), f.images(), f.share)
    parts = []
    for axis in range(f.rank):
        moved = at.along(s, at.slope(axis))
        moved = moved if f.mask is None else moved * f.mask
        parts.append(
            reshaped(moved, [*f.lead, product(f.kernel), np.array([1], np.int64), product(f.out)])
        )
    return op.Concat(*parts, axis=3)


def _mask(f: _Forward) -> Var:
    at = f.sampling()
    return at.along(at.overlaps(f.columns_adjoint(), f.images(), f.share), at.weight)


def _by(index: int, partial: Callable[[_Forward], Var]) -> Formula:
    """Returns the formula of operand `index`."""
    return lambda g, y, x, w, offset, b, mask, binding: reshape_like(
        partial(_Forward(g, x, w, offset, mask, binding)), binding.operand(index)
    )


vjp(
    "DeformConv",
    _by(0, lambda f: f.sampling().spread(f.masked(f.columns_adjoint()), f.share)),
    _by(1, _w),
    _by(2, _offset),
    bias,
    _by(4, _mask),
    notes="at a pixel's centre: the slope on the side of larger positions; outside of the image "
    "zeros are read",
)
