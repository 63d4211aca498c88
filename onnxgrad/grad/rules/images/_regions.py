"""Regions of interest: their sample positions, and the candidates of their maxima."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from onnx import TensorProto

from onnxgrad.frozen import frozen
from onnxgrad.grad.rules._common import as_number
from onnxgrad.grad.rules.images.grid_sample import as_type, product, reshaped
from onnxgrad.grad.rules.scatter import scatter_elements, zeros
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission.arithmetic import size_along
from onnxgrad.ir.emission.emit import constant
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var


def counting(count: Any, dtype: int) -> Var:
    """Returns 0, 1, ... count - 1 as numbers; `count` is a vector of length 1."""
    if not isinstance(count, Var):
        return op.Cast(constant(np.arange(int(count[0]))), to=dtype)
    return op.Cast(op.Range(np.int64(0), op.Squeeze(count, [0]), np.int64(1)), to=dtype)


@frozen
class Samples:
    """The positions of the samples of R regions along one axis; (R, bins, S) unless noted.

    `bins` and `count` = S are sizes; `size` is the images' extent. `low` is the pixel below a
    sample, as a number, and `above` the distance from it. `taken` is 1 for samples that the region
    has, and `inside` for those of them that read the image. `moves` is 1 if the weights of a
    sample's pixels change with its position. `along` is a sample's position in bins. `samples`
    (R, 1, 1) counts samples per bin. `stretches` (R, 1) is 1 if the size of the bins follows the
    size of the region.
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
        """The pixel above a sample; at the last pixel, the last pixel."""
        last = op.Sub(as_type_of(self.size, self.low), 1.0)
        return op.Min(self.low + 1.0, last)

    @cached_property
    def weights(self) -> Var:
        """A: each pixel's weight in each bin's mean, (R, bins, size)."""
        low = 1.0 - self.above
        share = self.inside / self.samples
        lower = as_number(self._is_at(self.low), low) * op.Unsqueeze(low * share, [3])
        upper = as_number(self._is_at(self.low + 1.0), low) * op.Unsqueeze(self.above * share, [3])
        return op.ReduceSum(lower + upper, [2], keepdims=0)

    def slopes(self, d_weights: Var) -> Var:
        """<dA, how A changes with a sample's position>, (R, bins, S)."""
        d = op.Unsqueeze(d_weights, [2])
        steps = as_number(self._is_at(self.low + 1.0), d) - as_number(self._is_at(self.low), d)
        total = op.ReduceSum(d * steps, [3], keepdims=0)
        return total * self.inside * self.moves / self.samples

    def corners(self, d_places: Var) -> tuple[Var, Var]:
        """The adjoints of a region's start and end from its samples' positions, each (R, 1)."""
        both = op.ReduceSum(d_places, [1, 2], keepdims=0)
        end = op.ReduceSum(d_places * self.along, [1, 2], keepdims=0) / float(self.bins)
        end = op.Unsqueeze(end, [1]) * self.stretches
        return op.Sub(op.Unsqueeze(both, [1]), end), end

    def _is_at(self, pixel: Var) -> Var:
        """Whether a sample's neighbour is each of the pixels, (R, bins, S, size)."""
        return op.Equal(op.Unsqueeze(pixel, [3]), counting(self.size, pixel.dtype))


def as_type_of(size: Any, like: Var) -> Var:
    """Returns a size as a number of the dtype of `like`."""
    return (
        as_type(size, like.dtype) if isinstance(size, Var) else constant(float(size[0]), like.dtype)
    )


def samples(rois: Var, axis: int, size: Any, binding: Binding) -> Samples:
    """Returns the samples of each region (R, 4) along axis 0 (height) or 1 (width).

    The order of arithmetic is that of onnxruntime.
    """
    half = binding.attr("coordinate_transformation_mode", "half_pixel") == "half_pixel"
    bins, ratio = (
        int(binding.attr("output_height" if axis == 0 else "output_width")),
        binding.attr("sampling_ratio"),
    )
    scaled = rois * float(binding.attr("spatial_scale"))
    scaled = scaled - 0.5 if half else scaled
    start, end = (
        op.Gather(scaled, np.array([column], np.int64), axis=1) for column in (1 - axis, 3 - axis)
    )
    length, stretches = end - start, constant(1.0, rois.dtype)
    if not half:  # regions smaller than a pixel are one pixel long
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
        count = op.Cast(
            op.ReduceMax(op.Concat(op.Reshape(own, [-1]), [1.0], axis=0), keepdims=1),
            to=TensorProto.INT64,
        )
        taken = as_number(op.Less(counting(count, rois.dtype), own), rois)
        number = op.Max(own, 1.0)
    within = counting(count, rois.dtype) + 0.5
    bin_number = constant(np.arange(bins).reshape(-1, 1), rois.dtype)
    place = start + bin_number * step + within * step / number
    length_along = as_type_of(size, rois)
    on_image = op.And(op.GreaterOrEqual(place, -1.0), op.LessOrEqual(place, length_along))
    last = op.Sub(length_along, 1.0)
    held = op.Min(op.Max(op.Where(on_image, place, 0.0), 0.0), last)
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


_LOWEST = -3.0e38  # below every pixel; -inf would meet 0 * inf in a second derivative


@frozen
class Candidates:
    """K candidates for each of the P bins of R regions; images (N, C, H, W) as rows of channels.

    `pixels` (R, P, K) are the numbers of rows, `read` (R, P, K, C) the values of these rows, and
    `first` (R, P, C) the number of the winning candidate.
    """

    sizes: tuple[Any, ...]
    pixels: Var
    weights: Var | None
    read: Var
    first: Var

    @staticmethod
    def among(x: Var, pixels: Var, taken: Var, weights: Var | None) -> Candidates:
        """Returns candidates for the largest of x, times `weights` if given, where `taken` is not
        0. The first of equal values wins.
        """
        n, c, h, w = sizes = tuple(size_along(x, i) for i in range(4))
        rows = reshaped(op.Transpose(x, perm=[0, 2, 3, 1]), [product([n, h, w]), c])
        read = op.Gather(rows, pixels, axis=0)
        values = read if weights is None else read * op.Unsqueeze(weights, [3])
        masked = op.Where(op.Greater(op.Unsqueeze(taken, [3]), 0.0), values, _LOWEST)
        return Candidates(sizes, pixels, weights, read, op.ArgMax(masked, axis=2, keepdims=0))

    def of(self, v: Var | None) -> Any:
        """Returns the winners' elements of `v` (R, P, K), as (R, P, C); 1 if `v` is None."""
        return 1.0 if v is None else op.GatherElements(v, self.first, axis=2)

    @cached_property
    def pixel(self) -> Var:
        """The winning pixels' values, (R, P, C)."""
        return op.Squeeze(op.GatherElements(self.read, op.Unsqueeze(self.first, [2]), axis=2), [2])

    def columns(self, g: Var) -> Var:
        """Reshapes an adjoint (R, C, bins, bins) to (R, P, C)."""
        flat = reshaped(
            g, [size_along(g, 0), self.sizes[1], product([size_along(g, 2), size_along(g, 3)])]
        )
        return op.Transpose(flat, perm=[0, 2, 1])

    def spread(self, share: Var) -> Var:
        """Adds (R, P, C) into the winning pixels of zeros (N, C, H, W)."""
        n, c, h, w = self.sizes
        places = op.GatherElements(self.pixels, self.first, axis=2)
        empty = zeros(op.Concat(product([n, h, w]), c, axis=0), share)
        flat = [np.array([-1], np.int64), c]
        rows, shares = (op.Reshape(v, op.Concat(*flat, axis=0)) for v in (places, share))
        added = scatter_elements(empty, rows, shares, axis=0, reduction="add")
        return op.Transpose(reshaped(added, [n, h, w, c]), perm=[0, 3, 1, 2])
