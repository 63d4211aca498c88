"""RoiAlign and MaxRoiPool."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from onnx import TensorProto

from onnxgrad.frozen import frozen
from onnxgrad.grad.registry import vjp
from onnxgrad.grad.rules._common import as_number
from onnxgrad.grad.rules.images._regions import Candidates, Samples, as_type_of, counting, samples
from onnxgrad.grad.rules.images.grid_sample import as_type, number_type, product, reshaped
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission.arithmetic import size_along
from onnxgrad.ir.emission.emit import constant
from onnxgrad.ir.emission.fill_and_reshape import reshape_like
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var


@frozen
class _Regions:
    """One RoiAlign: its regions along both axes, the images x (N, C, H, W) and the adjoint g (R,
    C, bins, bins).
    """

    binding: Binding
    x: Var
    g: Var
    rois: Var
    batch: Var

    @staticmethod
    def of(g: Var, x: Var, rois: Var, batch: Var, binding: Binding) -> _Regions:
        """Returns the regions, with g and x in the number type of the positions."""
        dtype = number_type(x, rois)
        return _Regions(binding, as_type(x, dtype), as_type(g, dtype), as_type(rois, dtype), batch)

    @cached_property
    def sizes(self) -> tuple[Any, ...]:
        """N, C, H, W."""
        return tuple(size_along(self.x, i) for i in range(4))

    @cached_property
    def rows(self) -> Samples:
        return samples(self.rois, 0, self.sizes[2], self.binding)

    @cached_property
    def columns(self) -> Samples:
        return samples(self.rois, 1, self.sizes[3], self.binding)

    @cached_property
    def owners(self) -> Var:
        """(N, R): 1 where a region lies on an image."""
        images = op.Unsqueeze(counting(self.sizes[0], TensorProto.INT64), [1])
        return as_number(op.Equal(op.Cast(self.batch, to=TensorProto.INT64), images), self.x)

    @cached_property
    def count(self) -> Any:
        return size_along(self.rois, 0)

    @property
    def g_columns(self) -> Var:
        """G B, (R * bins, C * W)."""
        _, c, _, w = self.sizes
        read = self.g @ op.Unsqueeze(self.columns.weights, [1])
        flat = op.Transpose(read, perm=[0, 2, 1, 3])
        return reshaped(flat, [product([self.count, self._bins(self.rows)]), product([c, w])])

    @property
    def g_rows(self) -> Var:
        """Aᵀ G, (R * bins, C * H)."""
        _, c, h, _ = self.sizes
        read = op.Unsqueeze(self.rows.weights, [1]).mT @ self.g
        flat = op.Transpose(read, perm=[0, 3, 1, 2])
        return reshaped(flat, [product([self.count, self._bins(self.columns)]), product([c, h])])

    def images(self) -> Var:
        """dX: (N, H, R * bins) @ (R * bins, C * W), so that no region needs a separate image."""
        n, c, h, w = self.sizes
        weights = op.Transpose(self.rows.weights, perm=[2, 0, 1]) * op.Unsqueeze(
            self.owners, [1, 3]
        )
        flat = reshaped(weights, [n, h, product([self.count, self._bins(self.rows)])])
        return op.Transpose(reshaped(flat @ self.g_columns, [n, h, c, w]), perm=[0, 2, 1, 3])

    def d_weights(self, axis: int) -> Var:
        """dA (R, bins, H) along axis 0, dB (R, bins, W) along axis 1.

        These are products with every image, (R * bins, N * size); each region keeps those of the
        image that it lies on.
        """
        n, c, *sizes = self.sizes
        images = reshaped(
            op.Transpose(self.x, perm=[1, 3 - axis, 0, 2 + axis]),
            [product([c, sizes[1 - axis]]), product([n, sizes[axis]])],
        )
        g, at = (self.g_rows, self.columns) if axis else (self.g_columns, self.rows)
        split = reshaped(g @ images, [self.count, self._bins(at), n, at.size])
        mine = op.Unsqueeze(op.Transpose(self.owners, perm=[1, 0]), [1, 3])
        return op.ReduceSum(split * mine, [2], keepdims=0)

    @staticmethod
    def _bins(axis: Samples) -> Any:
        return np.array([axis.bins], np.int64)

    # ---- max mode --------------------------------------------------------------------------------

    @cached_property
    def candidates(self) -> Candidates:
        """Every weighted pixel of each bin, in onnxruntime's order: samples by row, then corners by
        row.
        """
        rows, columns = self.rows, self.columns
        ys, xs = self._pairs(_taps(rows.low, rows.next), _taps(columns.low, columns.next))
        width = as_type_of(self.sizes[3], self.x)
        image = op.Mul(
            op.Cast(self.batch, to=TensorProto.INT64), op.Mul(self.sizes[2], self.sizes[3])
        )
        within = self._flat(op.Cast(ys * width + xs, to=TensorProto.INT64))
        down, across = self._pairs(
            _taps(1.0 - rows.above, rows.above), _taps(1.0 - columns.above, columns.above)
        )
        here = self._outer(rows.inside, columns.inside)
        weights = self._flat(down * across * here)
        taken = self._flat(
            op.Expand(self._outer(rows.taken, columns.taken), op.Shape(down * across))
        )
        return Candidates.among(self.x, op.Add(within, op.Unsqueeze(image, [1, 2])), taken, weights)

    def slope(self, axis: int) -> tuple[Var, Var]:
        """Returns the slope of each candidate's weight by its sample's position along an axis, and
        the slope times its position in bins.
        """
        rows, columns = self.rows, self.columns
        sides = [_taps(1.0 - a.above, a.above) for a in (rows, columns)]
        steps = constant(np.array([-1.0, 1.0]), self.x.dtype)
        sides[axis] = op.Unsqueeze((rows, columns)[axis].moves, [3]) * steps
        down, across = self._pairs(*sides)
        slope = down * across * self._outer(rows.inside, columns.inside)
        at = self._pairs(*(op.Unsqueeze(v, [3]) for v in (rows.along, columns.along)))[axis]
        return self._flat(slope), self._flat(slope * at)

    def _pairs(self, down: Var, across: Var) -> tuple[Var, Var]:
        """Expands (R, bins, S, corners) of both axes to broadcast as (R, bins, bins, S, S, corners,
        corners).
        """
        return op.Unsqueeze(down, [2, 4, 6]), op.Unsqueeze(across, [1, 3, 5])

    def _outer(self, down: Var, across: Var) -> Var:
        """Returns the product of (R, bins, S) of both axes, with axes for the corners."""
        a, b = self._pairs(op.Unsqueeze(down, [3]), op.Unsqueeze(across, [3]))
        return a * b

    def _flat(self, v: Var) -> Var:
        """Reshapes `v` to (R, bins * bins, candidates)."""
        bins = np.array([self.rows.bins * self.columns.bins], np.int64)
        four = np.array([4], np.int64)
        return reshaped(v, [self.count, bins, product([self.rows.count, self.columns.count, four])])


def _taps(low: Var, high: Var) -> Var:
    """Returns both corners along one axis, (R, bins, S, 2)."""
    return op.Concat(op.Unsqueeze(low, [3]), op.Unsqueeze(high, [3]), axis=3)


def _x(g: Var, y: Var, x: Var, rois: Var, batch: Var, binding: Binding) -> Var:
    regions = _Regions.of(g, x, rois, batch, binding)
    if binding.attr("mode") == "max":
        chosen = regions.candidates
        return reshape_like(chosen.spread(chosen.columns(regions.g) * chosen.of(chosen.weights)), x)
    return reshape_like(regions.images(), x)


def _rois(g: Var, y: Var, x: Var, rois: Var, batch: Var, binding: Binding) -> Var:
    regions = _Regions.of(g, x, rois, batch, binding)
    ends = []
    for axis, samples_ in enumerate((regions.rows, regions.columns)):
        if binding.attr("mode") == "max":
            chosen = regions.candidates
            pulled = chosen.columns(regions.g) * chosen.pixel
            both, end = (
                op.ReduceSum(pulled * chosen.of(v), [1, 2], keepdims=0) for v in regions.slope(axis)
            )
            end = op.Unsqueeze(end, [1]) * samples_.stretches / float(samples_.bins)
            ends.append((op.Unsqueeze(both, [1]) - end, end))
        else:
            ends.append(samples_.corners(samples_.slopes(regions.d_weights(axis))))
    (top, bottom), (left, right) = ends
    corners = op.Concat(left, top, right, bottom, axis=1) * float(binding.attr("spatial_scale"))
    return reshape_like(corners, rois)


vjp(
    "RoiAlign",
    _x,
    _rois,
    notes="max mode as in onnxruntime (the largest weighted pixel, the first of equal ones); at "
    "a pixel's centre the slope towards larger positions, at the image's edge none; the number of "
    "samples is constant",
)


def _max_roi_pool(
    g: Var, y: Var, x: Var, rois: Var, pooled_shape: Any, spatial_scale: float
) -> Var:
    """Adds the adjoint of each bin to its first maximum.

    Bin boundaries are rounded as onnxruntime rounds them in float32.
    """
    dtype = TensorProto.FLOAT
    rois, x_ = as_type(rois, dtype), as_type(x, dtype)
    h, w = size_along(x_, 2), size_along(x_, 3)
    batch = op.Cast(op.Gather(rois, np.array([0], np.int64), axis=1), to=TensorProto.INT64)
    rows, columns = (
        _windows(rois, axis, (h, w)[axis], pooled_shape[axis], spatial_scale) for axis in range(2)
    )
    (ys, y_in, y_count), (xs, x_in, x_count) = rows, columns
    down, across = [2, 4], [1, 3]
    within = op.Add(op.Mul(op.Unsqueeze(ys, down), w), op.Unsqueeze(xs, across))
    inside = op.And(op.Unsqueeze(y_in, down), op.Unsqueeze(x_in, across))
    flat = [
        size_along(rois, 0),
        np.array([int(np.prod(pooled_shape))], np.int64),
        product([y_count, x_count]),
    ]
    image = op.Unsqueeze(op.Mul(batch, op.Mul(h, w)), [2])
    taken = reshaped(as_number(inside, x_), flat)
    chosen = Candidates.among(x_, op.Add(reshaped(within, flat), image), taken, None)
    return reshape_like(chosen.spread(chosen.columns(as_type(g, dtype)) * chosen.of(taken)), x)


def _windows(rois: Var, axis: int, size: Any, bins: int, scale: float) -> tuple[Var, Var, Any]:
    """Returns the pixels of each region's bins along one axis, (R, bins, K), whether each pixel
    belongs to its bin, and K.
    """
    ends = (
        op.Gather(rois, np.array([column], np.int64), axis=1) * float(scale)
        for column in (2 - axis, 4 - axis)
    )
    first, last = (op.Sign(v) * op.Floor(op.Abs(v) + 0.5) for v in ends)
    extent = op.Max(last - first + 1.0, 1.0) / float(bins)
    number = constant(np.arange(bins), rois.dtype)
    limit = as_type_of(size, rois)
    begin, end = op.Floor(number * extent) + first, op.Ceil((number + 1.0) * extent) + first
    begin, end = (op.Min(op.Max(v, 0.0), limit) for v in (begin, end))
    widest = op.ReduceMax(op.Concat(op.Reshape(end - begin, [-1]), [1.0], axis=0), keepdims=1)
    count = op.Cast(widest, to=TensorProto.INT64)
    place = op.Unsqueeze(begin, [2]) + counting(count, rois.dtype)
    inside = op.Less(place, op.Unsqueeze(end, [2]))
    return op.Cast(op.Min(place, op.Sub(limit, 1.0)), to=TensorProto.INT64), inside, count


vjp(
    "MaxRoiPool",
    _max_roi_pool,
    notes="equal maxima: the first; regions are rounded to pixels and receive nothing",
)
