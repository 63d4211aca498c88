"""RoiAlign: what pooled regions give back to the images, and to the regions' corners.

The average is separable: with the image X of a region, Y = A X Bᵀ, where A (bins x rows) and B (bins x columns)
hold the mean bilinear weights of a bin's samples. So dX = Aᵀ G B, summed over the regions inside one matrix product,
and the weights receive dA = (G B) Xᵀ, dB = (Aᵀ G)ᵀ X. onnxruntime's (and onnx.reference's) max mode is not: it takes
the largest product of a pixel and its weight among all samples of a bin. That pixel is found again and receives the
adjoint (`_roi_max`), as MaxRoiPool's does.

Adaptive sampling takes ceil(bin size) samples, another number for each region: as many as the largest region has are
laid out at run time, and those a region does not have are masked.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from onnx import TensorProto

from onnxgrad.grad.registry import vjp
from onnxgrad.grad.rules._common import as_number, size_along, where
from onnxgrad.grad.rules.images._roi_max import Candidates
from onnxgrad.grad.rules.images._sampling import as_type, number_type, product, reshaped
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission.constant import constant
from onnxgrad.ir.like import reshape_like
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var


def counting(count: Any, dtype: int) -> Var:
    """0, 1, ... count - 1 as numbers; `count` is a vector of length 1."""
    if not isinstance(count, Var):
        return op.Cast(constant(np.arange(int(count[0]))), to=dtype)
    return op.Cast(op.Range(np.int64(0), op.Squeeze(count, [0]), np.int64(1)), to=dtype)


@dataclass(frozen=True)
class Samples:
    """Where the samples of R regions lie along one axis; (R, bins, S) unless said otherwise.

    `bins` and `count` = S are sizes; `size` is the images' extent. `low` is the pixel below, as a number, `above` the
    distance from it; `taken` is 1 for a region's own samples, `inside` for those that read the image; `moves` is 1
    where a sample's pixels change with its position; `along` is a sample's position in bins; `samples` (R, 1, 1) says
    how many there are; `stretches` (R, 1) is 1 where the bins' size follows the region's.
    """

    bins: int
    count: Any
    size: Any
    low: Var
    above: Var
    taken: Var
    inside: Var
    moves: Var
    along: Var
    samples: Var
    stretches: Any

    @property
    def next(self) -> Var:
        """The pixel above; beyond the last one the same."""
        last = op.Sub(as_type_of(self.size, self.low), 1.0)
        return op.Min(self.low + 1.0, last)

    @cached_property
    def weights(self) -> Var:
        """A: each pixel's weight in each bin's mean, (R, bins, size)."""
        return self._onto_pixels(1.0 - self.above, self.above)

    def slopes(self, d_weights: Var) -> Var:
        """<dA, how A changes with a sample's position>, (R, bins, S)."""
        d = op.Unsqueeze(d_weights, [2])
        steps = as_number(self._is_at(self.low + 1.0), d) - as_number(self._is_at(self.low), d)
        total = op.ReduceSum(d * steps, [3], keepdims=0)
        return total * self.inside * self.moves / self.samples

    def corners(self, d_places: Var) -> tuple[Var, Var]:
        """What a region's start and end receive of its samples' positions, each (R, 1)."""
        both = op.ReduceSum(d_places, [1, 2], keepdims=0)
        end = op.ReduceSum(d_places * self.along, [1, 2], keepdims=0) / float(self.bins)
        end = op.Unsqueeze(end, [1]) * self.stretches
        return op.Sub(op.Unsqueeze(both, [1]), end), end

    def _is_at(self, pixel: Var) -> Var:
        """Whether a sample's neighbour is each of the pixels, (R, bins, S, size)."""
        return op.Equal(op.Unsqueeze(pixel, [3]), counting(self.size, pixel.dtype))

    def _onto_pixels(self, low: Var, high: Var) -> Var:
        share = self.inside / self.samples
        lower = as_number(self._is_at(self.low), low) * op.Unsqueeze(low * share, [3])
        upper = as_number(self._is_at(self.low + 1.0), low) * op.Unsqueeze(high * share, [3])
        return op.ReduceSum(lower + upper, [2], keepdims=0)


def as_type_of(size: Any, like: Var) -> Var:
    """A size as a number of the dtype of `like`."""
    return as_type(size, like.dtype) if isinstance(size, Var) else constant(float(size[0]), like.dtype)


def samples(rois: Var, axis: int, size: Any, binding: Binding) -> Samples:
    """The samples of each region (R, 4) along axis 0 (height) or 1 (width), in onnxruntime's order of arithmetic."""
    half = binding.attr("coordinate_transformation_mode", "half_pixel") == "half_pixel"
    bins, ratio = int(binding.attr("output_height" if axis == 0 else "output_width")), binding.attr("sampling_ratio")
    scaled = rois * float(binding.attr("spatial_scale"))
    scaled = scaled - 0.5 if half else scaled
    start, end = (op.Gather(scaled, np.array([column], np.int64), axis=1) for column in (1 - axis, 3 - axis))
    length, stretches = end - start, constant(1.0, rois.dtype)
    if not half:  # regions that are smaller than a pixel count as one
        stretches = as_number(op.Greater(length, 1.0), length)
        length = op.Max(length, 1.0)
    step = op.Unsqueeze(length / float(bins), [2])
    start = op.Unsqueeze(start, [2])
    count: Any
    if ratio > 0:
        taken, count = constant(np.ones((1, 1, 1)), rois.dtype), np.array([ratio], np.int64)
        number = constant(np.full((1, 1, 1), ratio), rois.dtype)
    else:
        own = op.Ceil(step)
        count = op.Cast(op.ReduceMax(op.Concat(op.Reshape(own, [-1]), [1.0], axis=0), keepdims=1), to=TensorProto.INT64)
        taken = as_number(op.Less(counting(count, rois.dtype), own), rois)
        number = op.Max(own, 1.0)
    within = counting(count, rois.dtype) + 0.5
    bin_number = constant(np.arange(bins).reshape(-1, 1), rois.dtype)
    place = start + bin_number * step + within * step / number
    length_along = as_type_of(size, rois)
    on_image = op.And(op.GreaterOrEqual(place, -1.0), op.LessOrEqual(place, length_along))
    last = op.Sub(length_along, 1.0)
    held = op.Min(op.Max(where(on_image, place, 0.0), 0.0), last)
    moves = as_number(op.And(op.Greater(place, 0.0), op.Less(place, last)), rois)
    low = op.Floor(held)
    return Samples(
        bins,
        count,
        size,
        low,
        held - low,
        taken,
        as_number(on_image, rois) * taken,
        moves,
        bin_number + within / number,
        number,
        stretches,
    )


@dataclass(frozen=True)
class _Regions:
    """One RoiAlign: its regions along both axes, the images x (N, C, H, W) and the adjoint g (R, C, bins, bins)."""

    binding: Binding
    x: Var
    g: Var
    rois: Var
    batch: Var

    @staticmethod
    def of(g: Var, x: Var, rois: Var, batch: Var, binding: Binding) -> _Regions:
        """In the number type of the positions."""
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
        product_ = self.g @ op.Unsqueeze(self.columns.weights, [1])
        flat = op.Transpose(product_, perm=[0, 2, 1, 3])
        return reshaped(flat, [product([self.count, self._bins(self.rows)]), product([c, w])])

    @property
    def g_rows(self) -> Var:
        """Aᵀ G, (R * bins, C * H)."""
        _, c, h, _ = self.sizes
        product_ = op.Unsqueeze(self.rows.weights, [1]).mT @ self.g
        flat = op.Transpose(product_, perm=[0, 3, 1, 2])
        return reshaped(flat, [product([self.count, self._bins(self.columns)]), product([c, h])])

    def images(self) -> Var:
        """dX: (N, H, R * bins) @ (R * bins, C * W), so that no region needs an image of its own."""
        n, c, h, w = self.sizes
        weights = op.Transpose(self.rows.weights, perm=[2, 0, 1]) * op.Unsqueeze(self.owners, [1, 3])
        flat = reshaped(weights, [n, h, product([self.count, self._bins(self.rows)])])
        return op.Transpose(reshaped(flat @ self.g_columns, [n, h, c, w]), perm=[0, 2, 1, 3])

    def d_rows(self) -> Var:
        """dA, (R, bins, H)."""
        n, c, h, w = self.sizes
        images = reshaped(op.Transpose(self.x, perm=[1, 3, 0, 2]), [product([c, w]), product([n, h])])
        return self._own(self.g_columns @ images, self.rows)

    def d_columns(self) -> Var:
        """dB, (R, bins, W)."""
        n, c, h, w = self.sizes
        images = reshaped(op.Transpose(self.x, perm=[1, 2, 0, 3]), [product([c, h]), product([n, w])])
        return self._own(self.g_rows @ images, self.columns)

    def _own(self, every: Var, axis: Samples) -> Var:
        """Of products with every image (R * bins, N * size) those with the region's own."""
        split = reshaped(every, [self.count, self._bins(axis), self.sizes[0], axis.size])
        mine = op.Unsqueeze(op.Transpose(self.owners, perm=[1, 0]), [1, 3])
        return op.ReduceSum(split * mine, [2], keepdims=0)

    @staticmethod
    def _bins(axis: Samples) -> Any:
        return np.array([axis.bins], np.int64)

    # ---- max mode -------------------------------------------------------------------------------------------------

    @cached_property
    def candidates(self) -> Candidates:
        """Every weighted pixel of each bin, in onnxruntime's order: samples by row, corners by row."""
        rows, columns = self.rows, self.columns
        pixels = self._pairs(_taps(rows.low, rows.next), _taps(columns.low, columns.next))
        ys, xs = pixels
        width = as_type_of(self.sizes[3], self.x)
        image = op.Mul(op.Cast(self.batch, to=TensorProto.INT64), op.Mul(self.sizes[2], self.sizes[3]))
        within = self._flat(op.Cast(ys * width + xs, to=TensorProto.INT64))
        down, across = self._pairs(_taps(1.0 - rows.above, rows.above), _taps(1.0 - columns.above, columns.above))
        here = self._outer(rows.inside, columns.inside)
        weights = self._flat(down * across * here)
        taken = self._flat(op.Expand(self._outer(rows.taken, columns.taken), op.Shape(down * across)))
        return Candidates.among(self.x, op.Add(within, op.Unsqueeze(image, [1, 2])), taken, weights)

    def slope(self, axis: int) -> tuple[Var, Var]:
        """How each candidate's weight moves with its sample along an axis, and that times its position in bins."""
        rows, columns = self.rows, self.columns
        sides = [_taps(1.0 - a.above, a.above) for a in (rows, columns)]
        steps = constant(np.array([-1.0, 1.0]), self.x.dtype)
        own = (rows, columns)[axis]
        sides[axis] = op.Unsqueeze(own.moves, [3]) * steps
        down, across = self._pairs(*sides)
        slope = down * across * self._outer(rows.inside, columns.inside)
        both = [op.Unsqueeze(v, [3]) for v in (rows.along, columns.along)]
        at = self._pairs(*both)[axis]
        return self._flat(slope), self._flat(slope * at)

    def _pairs(self, down: Var, across: Var) -> tuple[Var, Var]:
        """(R, bins, S, corners) of the two axes beside each other: axes (R, bins, bins, S, S, corners, corners)."""
        return op.Unsqueeze(down, [2, 4, 6]), op.Unsqueeze(across, [1, 3, 5])

    def _outer(self, down: Var, across: Var) -> Var:
        """The product of (R, bins, S) of both axes, with axes for the corners."""
        a, b = self._pairs(op.Unsqueeze(down, [3]), op.Unsqueeze(across, [3]))
        return a * b

    def _flat(self, v: Var) -> Var:
        """(R, bins * bins, candidates)."""
        bins = np.array([self.rows.bins * self.columns.bins], np.int64)
        four = np.array([4], np.int64)
        return reshaped(v, [self.count, bins, product([self.rows.count, self.columns.count, four])])


def _taps(low: Var, high: Var) -> Var:
    """Both corners along one axis, (R, bins, S, 2)."""
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
            both, end = (op.ReduceSum(pulled * chosen.of(v), [1, 2], keepdims=0) for v in regions.slope(axis))
            end = op.Unsqueeze(end, [1]) * samples_.stretches / float(samples_.bins)
            ends.append((op.Unsqueeze(both, [1]) - end, end))
        else:
            d_weights = regions.d_rows() if axis == 0 else regions.d_columns()
            ends.append(samples_.corners(samples_.slopes(d_weights)))
    (top, bottom), (left, right) = ends
    corners = op.Concat(left, top, right, bottom, axis=1) * float(binding.attr("spatial_scale"))
    return reshape_like(corners, rois)


vjp(
    "RoiAlign",
    _x,
    _rois,
    notes="max mode as onnxruntime has it (the largest weighted pixel; equal ones: the first); at a pixel's centre the "
    "slope towards larger positions, at the image's edge none; the number of samples is constant",
)
