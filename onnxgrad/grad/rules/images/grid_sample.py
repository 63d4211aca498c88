"""Sampling images at any position: neighbours and their weights, GridSample, AffineGrid."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
from onnx import TensorProto

from onnxgrad.errors import InputError
from onnxgrad.frozen import frozen
from onnxgrad.grad.registry import vjp
from onnxgrad.grad.rules._common import as_number, pad
from onnxgrad.grad.rules.scatter import scatter_elements, zeros
from onnxgrad.ir.attributes import GRID_MODES
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission.arithmetic import rank_of, size_along
from onnxgrad.ir.emission.emit import constant
from onnxgrad.ir.emission.fill_and_reshape import reshape_like, with_type_of
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import Dim, TensorType
from onnxgrad.ir.var import Var

# positions beyond this bound are clipped, so that integers can hold them
_FAR = 2.0**30
_A = -0.75
# per neighbour, the coefficients of 1, t, t^2, ... in its weight, where t is the distance from the
# pixel below (Keys 1981)
_WEIGHTS = {
    "nearest": [[1.0]],
    "linear": [[1.0, -1.0], [0.0, 1.0]],
    "cubic": [
        [0.0, _A, -2 * _A, _A],
        [1.0, 0.0, -(_A + 3), _A + 2],
        [0.0, -_A, 2 * _A + 3, -(_A + 2)],
        [0.0, 0.0, _A, -_A],
    ],
}
_FIRST = {"nearest": 0, "linear": 0, "cubic": -1}


# ---- sizes: vectors of length 1, numpy arrays if known, else Vars --------------------------------


def product(sizes: Sequence[Any]) -> Any:
    """Returns the product of sizes."""
    return reduce(
        lambda a, b: op.Mul(a, b) if isinstance(a, Var) or isinstance(b, Var) else a * b, sizes
    )


def divided(size: Any, by: int) -> Var:
    """Returns a size divided by one of its divisors."""
    return op.Div(size, np.array([by], np.int64)) if isinstance(size, Var) else size // by


def joined(sizes: Sequence[Any]) -> Any:
    """Joins sizes to one shape, which is known if all sizes are."""
    if any(isinstance(s, Var) for s in sizes):
        return op.Concat(*sizes, axis=0)
    return np.concatenate([np.asarray(s, np.int64) for s in sizes])


def reshaped(v: Var, sizes: Sequence[Any]) -> Var:
    """Reshapes `v` to axes of these sizes; the rank of the result is always known."""
    result = op.Reshape(v, joined(sizes), allowzero=1)
    if result.rank is None:
        result.type = TensorType(result.dtype, (None,) * len(sizes))
    return result


# ---- number types --------------------------------------------------------------------------------


def number_type(*operands: Var) -> int:
    """Returns the dtype to compute in: positions in pixels need more than half precision."""
    return (
        TensorProto.DOUBLE
        if any(v.dtype == TensorProto.DOUBLE for v in operands)
        else TensorProto.FLOAT
    )


def as_type(v: Var, dtype: int) -> Var:
    """Returns `v`, cast to `dtype` if necessary."""
    return v if v.dtype == dtype else op.Cast(v, to=dtype)


# ---- neighbours ----------------------------------------------------------------------------------


@frozen
class _Taps:
    """One axis: the neighbours' indices, weights and slopes of the weights, (*B, 1, 1, .., T,
    .., 1, P).
    """

    index: Var
    weight: Var
    slope: Var


@frozen
class Sampling:
    """The pixels read from images (*lead, C, *spatial) at P = `count` positions in each.

    `lead`, `spatial` and `count` are sizes; `index` (*lead, 1, T, ..., T, P) counts an image's
    pixels.
    """

    lead: tuple[Any, ...]
    spatial: tuple[Any, ...]
    count: Any
    taps: int
    index: Var
    axes: tuple[_Taps, ...]

    @property
    def weight(self) -> Var:
        """The weight of each neighbour, (*lead, 1, T, ..., T, P)."""
        return reduce(op.Mul, [a.weight for a in self.axes])

    def slope(self, axis: int) -> Var:
        """The slopes of the weights by the position along `axis`, (*lead, 1, T, ..., T, P)."""
        return reduce(op.Mul, [a.slope if i == axis else a.weight for i, a in enumerate(self.axes)])

    def overlaps(self, g: Var, images: Var, channels: Any) -> Var:
        """Returns s_k, the sum over channels of g times the k-th neighbour.

        g: (*lead, C, P); images: (*lead, C, *spatial); result: (*lead, 1, T, ..., T, P).
        """
        products = self._pixels(images, channels) * self._beside(g)
        return op.ReduceSum(products, [len(self.lead)], keepdims=1)

    def along(self, s: Var, weights: Var) -> Var:
        """Returns sum_k s_k weights_k, (*lead, P)."""
        first = len(self.lead)
        return op.ReduceSum(s * weights, list(range(first, first + 1 + len(self.axes))), keepdims=0)

    def read(self, images: Var, channels: Any) -> Var:
        """Returns y (*lead, C, P): the images (*lead, C, *spatial) at the positions."""
        return op.ReduceSum(
            self._pixels(images, channels) * self.weight, self._tap_axes, keepdims=0
        )

    def spread(self, g: Var, channels: Any) -> Var:
        """Returns the images' adjoint, (*lead, C, *spatial).

        Adds w_k g into each neighbour, for cotangents g (*lead, C, P).
        """
        empty = zeros(joined([*self.lead, channels, product(self.spatial)]), g)
        updates = reshaped(self.weight * self._beside(g), [*self.lead, channels, self._reads])
        added = scatter_elements(empty, self._places(channels), updates, axis=-1, reduction="add")
        return reshaped(added, [*self.lead, channels, *self.spatial])

    @property
    def _tap_axes(self) -> list[int]:
        first = len(self.lead) + 1
        return list(range(first, first + len(self.axes)))

    @property
    def _reads(self) -> Any:
        """The number of pixels that are read of each channel."""
        return product([np.array([self.taps ** len(self.axes)], np.int64), self.count])

    def _beside(self, g: Var) -> Var:
        """Adds axes for the neighbours to cotangents (*lead, C, P)."""
        return op.Unsqueeze(g, self._tap_axes)

    def _places(self, channels: Any) -> Var:
        """Returns the index for each channel, (*lead, C, reads)."""
        flat = reshaped(self.index, [*self.lead, np.array([1], np.int64), self._reads])
        return op.Expand(flat, joined([*self.lead, channels, self._reads]))

    def _pixels(self, images: Var, channels: Any) -> Var:
        """Returns the neighbours' values, (*lead, C, T, ..., T, P)."""
        flat = reshaped(images, [*self.lead, channels, product(self.spatial)])
        found = op.GatherElements(flat, self._places(channels), axis=-1)
        each = np.array([self.taps], np.int64)
        return reshaped(found, [*self.lead, channels, *([each] * len(self.axes)), self.count])


def sampling(
    positions: Sequence[Var],
    lead: Sequence[Any],
    spatial: Sequence[Any],
    count: Any,
    mode: str,
    padding: str,
    aligned: bool,
) -> Sampling:
    """Returns the pixels read at `positions`, which are (*lead, P) in pixels for each spatial axis.

    `mode` is nearest, linear or cubic. `padding` is zeros, border or reflection; `aligned`
    reflects about the edge pixels' centres.
    """
    first, rank = len(lead), len(positions)
    beside = list(range(first, first + rank + 1))
    axes = []
    for i, (position, size) in enumerate(zip(positions, spatial, strict=True)):
        taps_axis = [-1 if j == i else 1 for j in range(rank)] + [1]
        axes.append(_taps(op.Unsqueeze(position, beside), size, mode, padding, aligned, taps_axis))
    index = axes[0].index
    for axis, size in zip(axes[1:], spatial[1:], strict=True):
        index = op.Add(op.Mul(index, size), axis.index)
    # the index dtype that onnxruntime gathers and scatters by fastest
    places = op.Cast(index, to=TensorProto.INT32)
    return Sampling(tuple(lead), tuple(spatial), count, len(_WEIGHTS[mode]), places, tuple(axes))


def _taps(
    position: Var, size: Any, mode: str, padding: str, aligned: bool, shape: list[int]
) -> _Taps:
    """Returns the neighbours along one axis; `shape` is that of their axis among the last ones."""
    position = op.Clip(position, -_FAR, _FAR)
    base = op.Round(position) if mode == "nearest" else op.Floor(position)
    table = np.array(_WEIGHTS[mode])
    offsets = (np.arange(len(table)) + _FIRST[mode]).reshape(shape)
    index, inside = _continued(
        op.Add(op.Cast(base, to=TensorProto.INT64), offsets), size, padding, aligned
    )
    t = position - base
    slopes = table[:, 1:] * np.arange(1, table.shape[1])
    values = [_polynomial([c.reshape(shape) for c in v.T], t) for v in (table, slopes)]
    if inside is not None:
        values = [v * as_number(inside, position) for v in values]
    elif mode == "linear":
        values[1] = op.Where(
            _is_on_edge(t, index, offsets.shape.index(2) - offsets.ndim, size), 0.0, values[1]
        )
    return _Taps(index, *values)


def _is_on_edge(t: Var, index: Var, axis: int, size: Any) -> Var:
    """Whether a position is exactly an edge pixel's centre, where border and reflection begin."""
    pixel = op.Gather(index, np.array([0], np.int64), axis=axis)
    first, last = (
        op.Equal(pixel, np.array([0], np.int64)),
        op.Equal(pixel, op.Sub(size, np.array([1], np.int64))),
    )
    return op.And(op.Equal(t, 0.0), op.Or(first, last))


def _polynomial(coefficients: Sequence[np.ndarray[Any, Any]], t: Var) -> Var:
    """Evaluates a polynomial by Horner's scheme, given the coefficients of 1, t, ..."""
    terms = [constant(c, t.dtype) for c in coefficients] or [constant(0.0, t.dtype)]
    return reduce(lambda total, c: total * t + c, reversed(terms[:-1]), terms[-1])


def _continued(place: Var, size: Any, padding: str, aligned: bool) -> tuple[Var, Var | None]:
    """Returns the index of the pixel at `place`, and whether the pixel counts (None if all do)."""
    one, zero = np.array([1], np.int64), np.array([0], np.int64)
    last = op.Sub(size, one)
    # reflect about the centres of the edge pixels if aligned, else about their outer edges
    if padding == "reflection":
        reach = op.Mul(last if aligned else size, np.array([2], np.int64))
        folded = op.Mod(place, op.Max(reach, one))
        place = op.Min(folded, op.Sub(reach if aligned else op.Sub(reach, one), folded))
    clamped = op.Max(op.Min(place, last), zero)
    return clamped, op.Equal(clamped, place) if padding == "zeros" else None


def _sampling(g: Var, x: Var, grid: Var, binding: Binding) -> tuple[Sampling, Var]:
    """Returns the pixels of x that the grid (N, *O, rank), last axis first, reads; g (N, C, P)."""
    rank = rank_of(grid if x.rank is None else x, binding) - 2
    dtype = number_type(x, grid)
    aligned, mode = bool(binding.attr("align_corners")), binding.attr("mode")
    batch, channels, *spatial = (size_along(x, i) for i in range(rank + 2))
    count = product([size_along(grid, i) for i in range(1, rank + 1)])
    places = reshaped(as_type(grid, dtype), [batch, count, np.array([rank], np.int64)])
    positions = []
    for axis, size in enumerate(spatial):
        p, length = op.Gather(places, np.int64(rank - 1 - axis), axis=-1), _length(size, dtype)
        # onnxruntime's order of arithmetic decides which pixels are neighbours
        positions.append(
            (p + 1.0) / 2.0 * (length - 1.0) if aligned else ((p + 1.0) * length - 1.0) / 2.0
        )
    at = sampling(
        positions,
        [batch],
        spatial,
        count,
        GRID_MODES.get(mode, mode),
        binding.attr("padding_mode"),
        aligned,
    )
    return at, reshaped(as_type(g, dtype), [batch, channels, count])


def _length(size: Any, dtype: int) -> Any:
    """Returns a size as a number."""
    return op.Cast(size, to=dtype) if isinstance(size, Var) else float(size[0])


def _x(g: Var, y: Var, x: Var, grid: Var, binding: Binding) -> Var:
    at, cotangents = _sampling(g, x, grid, binding)
    return at.spread(cotangents, size_along(x, 1))


def _grid(
    g: Var, y: Var, x: Var, grid: Var, mode: str, align_corners: int, binding: Binding
) -> Var | None:
    if mode == "nearest":
        return None
    at, cotangents = _sampling(g, x, grid, binding)
    s = at.overlaps(cotangents, as_type(x, cotangents.dtype), size_along(x, 1))
    parts = []
    for axis, size in reversed(list(enumerate(at.spatial))):
        length = _length(size, cotangents.dtype)
        pixels = (length - 1.0 if align_corners else length) / 2.0
        parts.append(op.Unsqueeze(at.along(s, at.slope(axis)) * pixels, [-1]))
    return reshape_like(op.Concat(*parts, axis=-1), grid)


vjp(
    "GridSample",
    _x,
    _grid,
    notes="nearest: the grid receives zero; linear, at a pixel's centre: the slope towards larger "
    "positions, and 0 at edge pixels with border and reflection (PyTorch's; in mirrored copies of "
    "the image it takes the other side)",
)


def _affine_grid(
    g: Var, y: Var, theta: Var, size: tuple[int, ...] | Var, align_corners: int, binding: Binding
) -> Var:
    """grid[n, p] = theta[n] (p, 1), so theta_grad[n] = sum_p g[n, p] (p, 1)^T; the positions p are
    the grid of the identity.
    """
    if isinstance(size, Var):
        rank: Dim = size.shape[0] if size.shape else None
        single = op.Concat(
            constant(np.array([1])), op.Slice(size, [1], [np.iinfo(np.int64).max]), axis=0
        )
    else:
        rank, single = len(size), constant(np.array([1, *size[1:]]))
    if not isinstance(rank, int):
        raise InputError(
            f"the gradient of '{binding}' needs to know how many axes the grid has: "
            "declare size's shape"
        )
    d = rank - 2
    # onnxruntime has kernels for these dtypes; for others it inlines the body and fails on a
    # constant operand
    dtype = np.float64 if theta.dtype == TensorProto.DOUBLE else np.float32
    grid = op.AffineGrid(
        constant(np.eye(d, d + 1, dtype=dtype)[None]), single, align_corners=align_corners
    )
    homogeneous = pad(op.Reshape(op.CastLike(grid, theta), [-1, d]), [0, 1], [1], 1.0)
    cotangents = op.Transpose(op.Reshape(g, [0, -1, d]), perm=[0, 2, 1])
    return with_type_of(op.MatMul(cotangents, homogeneous), theta)


vjp("AffineGrid", _affine_grid)
