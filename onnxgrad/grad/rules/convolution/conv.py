"""Conv, ConvTranspose and Col2Im."""

from __future__ import annotations

from collections.abc import Collection
from itertools import product
from typing import Any

import numpy as np
from onnx import TensorProto

from onnxgrad.errors import InputError
from onnxgrad.grad.chains import chain
from onnxgrad.grad.registry import FORM, vjp
from onnxgrad.grad.rules._common import pad, ranked, redirect
from onnxgrad.grad.rules._geometry import (
    Geometry,
    geometry,
    kernel_of,
    known_extent,
    of_attributes,
    onto_short,
    spatial,
    spatial_rank,
)
from onnxgrad.grad.rules.convolution._input_gradient import input_gradient
from onnxgrad.grad.rules.convolution._weight_gradient import as_product, weight_gradient
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission.emitter import emitter
from onnxgrad.ir.emission.fill_and_reshape import reshape_like
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import element_count
from onnxgrad.ir.var import Var
from onnxgrad.rewrite.pattern import P, capture
from onnxgrad.wording import counted


def bias(g: Var, y: Var, x: Var, w: Var, binding: Binding) -> Var:
    """Sums g over images and positions."""
    n = spatial_rank(kernel_of(w, binding), x, binding)
    return op.ReduceSum(g, [0, *range(2, n + 2)], keepdims=0)


def _checked(binding: Binding, x: Var, w: Var, axis: int, times: int) -> tuple[int, ...] | None:
    """Returns the kernel's sizes after a check of the channels, which shape inference omits.

    Raises InputError unless the channels of x are `times` the size of axis `axis` of w, if both are
    known.
    """
    given, taken = (v.shape[a] if v.shape else None for v, a in ((x, 1), (w, axis)))
    if isinstance(given, int) and isinstance(taken, int) and given != times * taken:
        raise InputError(
            f"no gradient of '{binding}': {x.name} has {counted(given, 'channel')}, but "
            f"{w.name} accepts "
            f"{times * taken}"
        )
    return kernel_of(w, binding)


def _geometry(binding: Binding, x: Var, y: Var, w: Var, group: int) -> Geometry:
    return geometry(binding, _checked(binding, x, w, 1, group), x, y)


def _by_weight(g: Var, y: Var, x: Var, w: Var, group: int, binding: Binding) -> Var:
    geo, block = _geometry(binding, x, y, w, group), binding.block
    # neither a stand-in of checkpointing nor an operator of another block
    if binding in block.bindings and emitter().block is block:
        product = as_product(x, y, w, binding.operand(2), geo, group)
        if product is not None:
            redirect(y, product)
    return weight_gradient(x, g, w, geo, group)


vjp(
    "Conv",
    lambda g, y, x, w, group, binding: input_gradient(
        g, w, x, _geometry(binding, x, y, w, group), group
    ),
    _by_weight,
    bias,
)

x, w, b, scale, offset, mean, variance = capture("x w b scale offset mean variance")
_NORMALIZED = P.BatchNormalization(
    P.Conv(x, w, b.maybe).only.named("conv"), scale, offset, mean, variance, training_mode=0
).named("norm")


@chain(_NORMALIZED, ends="x w b scale offset mean variance")
def normalized_convolution(
    g: Var,
    y: Var,
    x: Var,
    w: Var,
    b: Var | None,
    scale: Var,
    mean: Var,
    variance: Var,
    conv: Binding,
    norm: Binding,
    needed: Collection[Var],
) -> tuple[Var | None, ...] | None:
    """y = k (conv(x, w) + b - mean) + offset, k = scale r, r = 1 / sqrt(variance + epsilon). With
    the gradient V of conv(x, w) by w at the adjoint g, T = sum(g) and D = sum(w V) + (b - mean) T
    per channel:

        x: the gradient of conv(x, k w) by x at g,  w: k V,  b: k T,  offset: T,  mean: -k T,
        scale: r D,  variance: -k r^2 D / 2

    Nothing reads the result of the convolution, so onnxruntime folds the normalization into it, and
    four passes over all positions become three over the weight.
    """
    alike = all(v is None or v.dtype == g.dtype for v in (*conv.inputs, *norm.inputs))
    if not alike or not _is_larger(g, w):
        return None
    if w not in needed and (scale in needed or variance in needed):
        return None  # sums over positions are cheaper than the gradient by the weight
    group, rank = conv.attr("group"), w.rank or 0
    geo = _geometry(conv, x, conv.out, w, group)
    inverse = 1.0 / op.Sqrt(variance + norm.attr("epsilon"))
    slope = scale * inverse
    factors = op.Reshape(slope, [-1] + [1] * (rank - 1))
    total = op.ReduceSum(g, [0, *range(2, rank)], keepdims=0)
    by_input = input_gradient(g, w, x, geo, group, factors) if x in needed else None
    by_bias, by_mean = (None if b is None else total * slope), -(total * slope)
    if w not in needed:
        return by_input, None, by_bias, None, total, by_mean, None
    by_weight = weight_gradient(x, g, w, geo, group)
    along = op.ReduceSum(w * by_weight, list(range(1, rank)), keepdims=0)
    along = along - (mean if b is None else mean - b) * total
    by_variance = along * slope * inverse * inverse * -0.5
    return by_input, by_weight * factors, by_bias, along * inverse, total, by_mean, by_variance


# from how many elements on a pass takes longer than the bindings that replace it
_MANY = 1 << 14


def _is_larger(g: Var, w: Var) -> bool:
    """Whether g has many elements, and twice as many as the weight. An unknown number of images
    counts as one.
    """
    if FORM.get() == "small" or g.dtype not in (TensorProto.FLOAT, TensorProto.DOUBLE):
        return False
    if not g.shape or not w.shape:
        return False
    images = g.shape[0] if isinstance(g.shape[0], int) else 1
    count, weights = element_count((images, *g.shape[1:])), element_count(w.shape)
    return bool(count and weights and count >= max(_MANY, 2 * weights))


def _transposed_geometry(binding: Binding, x: Var, w: Var) -> Geometry:
    """ConvTranspose's special rules: SAME makes D s long, `output_shape` determines the pads."""
    kernel = _checked(binding, x, w, 0, 1)
    n = spatial_rank(kernel, x, binding)
    geo, wanted = of_attributes(binding, kernel, n), binding.attr("output_shape")
    auto = binding.attr("auto_pad", "NOTSET")
    if not wanted and not auto.startswith("SAME"):
        return geo
    extent, strides = known_extent(geo, binding), geo.strides
    extra = tuple(binding.attr("output_padding") or (0,) * n)
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
    return geo.around(tuple(t // 2 for t in total), tuple(t - t // 2 for t in total), auto)


vjp(
    "ConvTranspose",
    lambda g, y, x, w, group, binding: onto_short(
        g, w, x, _transposed_geometry(binding, x, w), group
    ),
    lambda g, y, x, w, group, binding: weight_gradient(
        g, x, w, _transposed_geometry(binding, x, w), group
    ),
    bias,
)


def _col2im(
    g: Var, y: Var, x: Var, image: Any, block: tuple[int, ...] | Var, binding: Binding
) -> Var:
    """Returns the patches of g: a strided slice for each place in the block.

    If the block is not known, elements are gathered by number.
    """
    rank = g.rank if isinstance(block, Var) else len(block) + 2
    if rank is None and isinstance(image, Var) and image.shape is not None:
        count = image.shape[0]
        rank = ranked(g, count + 2).rank if isinstance(count, int) else None
    if rank is None:
        raise InputError(
            f"the gradient of '{binding}' needs to know how many axes the image has: "
            "declare its shape"
        )
    n = rank - 2
    geo = of_attributes(binding, None, n)
    padded = pad(g, [0, 0, *geo.fixed_begin, 0, 0, *geo.fixed_end])
    if isinstance(block, Var):
        return reshape_like(_patches(padded, block, geo), x)
    axes = list(range(2, n + 2))
    ends = op.Shape(padded, start=2)
    extent = np.array([(k - 1) * d for k, d in zip(block, geo.dilations, strict=True)], np.int64)
    patches = []
    for place in product(*map(range, block)):
        start = np.array([p * d for p, d in zip(place, geo.dilations, strict=True)], np.int64)
        patch = op.Slice(padded, start, op.Sub(ends, extent - start), axes, list(geo.strides))
        patches.append(op.Unsqueeze(op.Reshape(patch, [0, 0, -1]), [2]))
    return reshape_like(op.Concat(*patches, axis=2), x)


def _patches(padded: Var, block: Var, geo: Geometry) -> Var:
    """Returns padded (N, C, *image) as (N, C, places in the block, positions).

    Gathers by the sum of two row-major numbers.
    """
    sizes = op.Shape(padded, start=2)
    place: Any = np.int64(0)
    position: Any = np.int64(0)
    for i, (stride, dilation) in enumerate(zip(geo.strides, geo.dilations)):
        size, count = (op.Squeeze(op.Slice(v, [i], [i + 1], [0]), [0]) for v in (sizes, block))
        offsets = op.Range(np.int64(0), count, np.int64(1)) * np.int64(dilation)
        starts = op.Range(
            np.int64(0), size - (count - np.int64(1)) * np.int64(dilation), np.int64(stride)
        )
        place = offsets if i == 0 else op.Reshape(op.Unsqueeze(place * size, [1]) + offsets, [-1])
        position = (
            starts if i == 0 else op.Reshape(op.Unsqueeze(position * size, [1]) + starts, [-1])
        )
    numbers = op.Unsqueeze(place, [1]) + position
    return op.Gather(op.Reshape(padded, [0, 0, -1]), numbers, axis=2)


vjp("Col2Im", _col2im)
