"""Conv, ConvTranspose and Col2Im."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from onnxgrad.errors import InputError
from onnxgrad.grad.registry import vjp
from onnxgrad.grad.rules._common import pad
from onnxgrad.grad.rules._geometry import (
    Geometry,
    geometry,
    kernel_of,
    onto_short,
    spatial,
    spatial_rank,
)
from onnxgrad.grad.rules.convolution._input_gradient import input_gradient
from onnxgrad.grad.rules.convolution._weight_gradient import weight_gradient
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission.fill_and_reshape import reshape_like
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var


def _bias(g: Var, y: Var, x: Var, w: Var, b: Var, binding: Binding) -> Var:
    n = spatial_rank(kernel_of(w, binding), x, binding)
    return op.ReduceSum(g, [0, *range(2, n + 2)], keepdims=0)


def _check_channels(binding: Binding, x: Var, w: Var, axis: int, times: int) -> None:
    """Raises InputError unless x has the channels that w takes, `times` its axis `axis`, as far as
    both are known: shape inference lets such models pass.
    """
    given, taken = (v.shape[a] if v.shape else None for v, a in ((x, 1), (w, axis)))
    if isinstance(given, int) and isinstance(taken, int) and given != times * taken:
        raise InputError(
            f"no gradient of '{binding}': {x.name} has {given} channels, and {w.name} takes "
            f"{times * taken}"
        )


def _conv_x(g: Var, y: Var, x: Var, w: Var, group: int, binding: Binding) -> Var:
    _check_channels(binding, x, w, 1, group)
    return input_gradient(g, w, x, geometry(binding, kernel_of(w, binding), x, y), group)


def _conv_w(g: Var, y: Var, x: Var, w: Var, group: int, binding: Binding) -> Var:
    _check_channels(binding, x, w, 1, group)
    return weight_gradient(x, g, w, geometry(binding, kernel_of(w, binding), x, y), group)


vjp("Conv", _conv_x, _conv_w, _bias)


def _transposed_geometry(binding: Binding, x: Var, y: Var, w: Var) -> Geometry:
    """ConvTranspose's own rules: SAME makes D s long, `output_shape` derives the pads."""
    kernel = kernel_of(w, binding)
    n = spatial_rank(kernel, x, binding)
    strides = tuple(binding.attr("strides") or (1,) * n)
    dilations = tuple(binding.attr("dilations") or (1,) * n)
    extra = tuple(binding.attr("output_padding") or (0,) * n)
    auto = binding.attr("auto_pad", "NOTSET")
    wanted = binding.attr("output_shape")
    if not wanted and not auto.startswith("SAME"):
        pads = tuple(binding.attr("pads") or (0,) * (2 * n)) if auto == "NOTSET" else (0,) * (2 * n)
        return Geometry(kernel, strides, dilations, pads[:n], pads[n:])
    if kernel is None:
        raise InputError(
            f"the gradient of '{binding}' needs the kernel's size, which shape "
            "inference does not know"
        )
    extent = [(k - 1) * d + 1 for k, d in zip(kernel, dilations)]
    if wanted:
        sizes = spatial(x)
        if sizes is None:
            raise InputError(
                f"the gradient of '{binding}' with output_shape needs the sizes of its input, "
                "which are not known"
            )
        total = [
            max((d - 1) * s + e + a - out, 0)
            for d, s, e, a, out in zip(sizes, strides, extent, extra, wanted[-n:])
        ]
    else:
        total = [max(e - s + a, 0) for e, s, a in zip(extent, strides, extra)]
    small, large = tuple(t // 2 for t in total), tuple(t - t // 2 for t in total)
    begin, end = (small, large) if auto == "SAME_UPPER" else (large, small)
    return Geometry(kernel, strides, dilations, begin, end)


def _transpose_x(g: Var, y: Var, x: Var, w: Var, group: int, binding: Binding) -> Var:
    _check_channels(binding, x, w, 0, 1)
    return onto_short(g, w, x, _transposed_geometry(binding, x, y, w), group)


def _transpose_w(g: Var, y: Var, x: Var, w: Var, group: int, binding: Binding) -> Var:
    _check_channels(binding, x, w, 0, 1)
    return weight_gradient(g, x, w, _transposed_geometry(binding, x, y, w), group)


vjp("ConvTranspose", _transpose_x, _transpose_w, _bias)


def _col2im(
    g: Var, y: Var, x: Var, image: Any, block: tuple[int, ...] | Var, binding: Binding
) -> Var:
    """The patches of g: for each place in the block, a strided slice, or elements by number
    where it is not known.
    """
    rank = g.rank if isinstance(block, Var) else len(block) + 2
    if rank is None:
        raise InputError(
            f"the gradient of '{binding}' needs to know how many axes the image has: "
            "declare its shape"
        )
    n = rank - 2
    dilations = binding.attr("dilations") or (1,) * n
    strides = binding.attr("strides") or (1,) * n
    pads = binding.attr("pads") or (0,) * 2 * n
    padded = pad(g, [0, 0, *pads[:n], 0, 0, *pads[n:]])
    if isinstance(block, Var):
        return reshape_like(_patches(padded, block, n, strides, dilations), x)
    axes = list(range(2, n + 2))
    ends = op.Shape(padded, start=2)
    extent = np.array([(k - 1) * d for k, d in zip(block, dilations, strict=True)], np.int64)
    patches = []
    for place in product(*map(range, block)):
        start = np.array([p * d for p, d in zip(place, dilations, strict=True)], np.int64)
        patch = op.Slice(padded, start, op.Sub(ends, extent - start), axes, list(strides))
        patches.append(op.Unsqueeze(op.Reshape(patch, [0, 0, -1]), [2]))
    stacked = op.Concat(*patches, axis=2)
    return reshape_like(stacked, x)


def _patches(
    padded: Var, block: Var, n: int, strides: Sequence[int], dilations: Sequence[int]
) -> Var:
    """padded (N, C, *image) as (N, C, places in the block, positions): Gather by the sum of two
    row-major numbers.
    """
    sizes = op.Shape(padded, start=2)
    place: Any = np.int64(0)
    position: Any = np.int64(0)
    for i in range(n):
        size, count = (op.Squeeze(op.Slice(v, [i], [i + 1], [0]), [0]) for v in (sizes, block))
        offsets = op.Range(np.int64(0), count, np.int64(1)) * np.int64(dilations[i])
        starts = op.Range(
            np.int64(0), size - (count - np.int64(1)) * np.int64(dilations[i]), np.int64(strides[i])
        )
        place = offsets if i == 0 else op.Reshape(op.Unsqueeze(place * size, [1]) + offsets, [-1])
        position = (
            starts if i == 0 else op.Reshape(op.Unsqueeze(position * size, [1]) + starts, [-1])
        )
    numbers = op.Unsqueeze(place, [1]) + position
    return op.Gather(op.Reshape(padded, [0, 0, -1]), numbers, axis=2)


vjp("Col2Im", _col2im)
