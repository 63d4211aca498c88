"""Normalizations over channels, layers, groups and norms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import TensorProto

from onnxgrad.errors import InputError
from onnxgrad.grad.registry import FORM, gradient_body, vjp, vjp_all
from onnxgrad.grad.rules._common import as_count, divided, multiplied, pad, ranked, reduced_count
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission.arithmetic import in_dtype_of, plus, rank_of
from onnxgrad.ir.emission.fill_and_reshape import reshape_like, zeros_like
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import element_count, is_static
from onnxgrad.ir.var import Var


def spread(part: Var, like: Var, axes: Sequence[int]) -> Var:
    """Divides `part` evenly over the elements along `axes`."""
    ones = op.Sign(op.Abs(like) + 1.0)
    return part * (ones / op.ReduceSum(ones, list(axes), keepdims=1))


def per_channel(v: Var, rank: int) -> Var:
    """Reshapes (C,) to (C, 1, ...), to broadcast against (N, C, ...)."""
    return op.Unsqueeze(v, list(range(1, rank - 1))) if rank > 2 else v


def _by_channel(v: Var, scale: Var) -> Var:
    """Reshapes (N, C, ...) of unknown rank to (N, C, rest)."""
    return ranked(op.Reshape(v, op.Concat([0], op.Shape(scale), [-1], axis=0)), 3)


def _batch_norm(
    g: Sequence[Var | None],
    y: Sequence[Var],
    xs: Sequence[Var],
    epsilon: float,
    momentum: float,
    training_mode: int,
    binding: Binding,
    wanted: Sequence[bool],
) -> list[Any]:
    if xs[0].rank is None:
        x, scale, *others = xs
        g = [None if g[0] is None else _by_channel(g[0], scale), *g[1:]]
        result = _batch_norm(
            g,
            y,
            [_by_channel(x, scale), scale, *others],
            epsilon,
            momentum,
            training_mode,
            binding,
            wanted,
        )
        return [None if result[0] is None else reshape_like(result[0], x), *result[1:]]
    if training_mode:
        return _batch_norm_training(g, xs, epsilon, momentum, binding, wanted)
    if g[0] is None:
        return [None] * len(xs)
    x, scale, _, mean, variance = xs
    rank = rank_of(x, binding)
    axes = [0, *range(2, rank)]
    g0 = in_dtype_of(g[0], variance)
    alike = g[0].dtype == x.dtype == scale.dtype == variance.dtype
    inverse = 1.0 / op.Sqrt(variance + epsilon)
    slope = in_dtype_of(scale, inverse) * inverse
    total = op.ReduceSum(g0, axes, keepdims=0) if wanted[2] or wanted[3] else None
    if wanted[1] or wanted[4]:
        along = op.ReduceSum(
            g0 * (in_dtype_of(x, mean) - per_channel(mean, rank)), axes, keepdims=0
        )
    by_x: Var | None = None
    if wanted[0] and alike and x.dtype in _WITH_PRODUCTS:
        # the operator itself with mean and bias 0: it multiplies by the slope
        zeros = zeros_like(variance)
        by_x = op.BatchNormalization(g0, scale, zeros, zeros, variance, epsilon=epsilon)
    elif wanted[0]:
        by_x = g0 * per_channel(slope, rank)
    return [
        by_x,
        along * inverse if wanted[1] else None,
        total if wanted[2] else None,
        -(total * slope) if wanted[3] and total is not None else None,
        along * slope * inverse * inverse * -0.5 if wanted[4] else None,
    ]


def _batch_norm_training(
    g: Sequence[Var | None],
    xs: Sequence[Var],
    epsilon: float,
    momentum: float,
    binding: Binding,
    wanted: Sequence[bool],
) -> list[Any]:
    """With c = x - mean, r = 1 / sqrt(var + epsilon) and n elements per channel:

        x: scale r (g - sum(g) / n - c r^2 sum(g c) / n),  scale: r sum(g c),  bias: sum(g)

    Batch statistics are not outputs and are computed again. The adjoints of the running statistics
    are multiplied by momentum's share. Source: Ioffe and Szegedy, 2015.
    """
    x, scale, _, mean_in, _ = xs
    rank = rank_of(x, binding)
    axes = [0, *range(2, rank)]
    up = in_dtype_of(x, mean_in)
    count = _count(up, mean_in, axes)
    centred = up - op.ReduceMean(up, axes, keepdims=1)
    variance = divided(op.ReduceSum(centred * centred, axes, keepdims=0), count)
    inverse = op.Reciprocal(op.Sqrt(variance + epsilon))
    g0 = None if g[0] is None else in_dtype_of(g[0], mean_in)
    result: list[Any] = [None] * len(xs)
    if g0 is not None:
        total = op.ReduceSum(g0, axes, keepdims=0)
        along = op.ReduceSum(g0 * centred, axes, keepdims=0)
        if wanted[0]:
            # combine the numbers per channel first: four passes over all elements remain
            slope = in_dtype_of(scale, inverse) * inverse
            mean = divided(slope * total, count)
            tilt = divided(slope * inverse * inverse * along, count)
            moved = centred * per_channel(tilt, rank) + per_channel(mean, rank)
            result[0] = g0 * per_channel(slope, rank) - moved
        result[1] = along * inverse if wanted[1] else None
        result[2] = total if wanted[2] else None
    for i in (1, 2):
        arrived = g[i] if len(g) > i else None
        if arrived is None:
            continue
        result[2 + i] = arrived * momentum if wanted[2 + i] else None
        if wanted[0]:
            part = op.ReduceMean(
                op.Expand(per_channel(arrived, rank), op.Shape(x)) * (1.0 - momentum),
                axes,
                keepdims=1,
            )
            part = divided(part, count) if i == 1 else centred * divided(part * 2.0, count)
            result[0] = op.Expand(part, op.Shape(x)) if result[0] is None else result[0] + part
    return result


def _count(x: Var, statistic: Var, axes: Sequence[int]) -> Var | float:
    """Returns the number of elements per channel."""
    count = element_count(tuple((x.shape or ())[i] for i in axes))
    if count is not None:
        return float(count)
    return as_count(op.Div(op.Size(x), op.Size(statistic)), x)


vjp_all("BatchNormalization", _batch_norm)


def _instance_parts(g: Var, x: Var, epsilon: float, axes: Sequence[int]) -> tuple[Var, Var, Var]:
    """Returns x - mean, var + eps, and mean(g (x - mean)), each per instance and channel."""
    centred = x - op.ReduceMean(x, axes, keepdims=1)
    variance = op.ReduceMean(centred * centred, axes, keepdims=1) + epsilon
    return centred, variance, op.ReduceMean(g * centred, axes, keepdims=1)


def _instance_norm_x(g: Var, y: Var, x: Var, scale: Var, bias: Var, epsilon: float) -> Var:
    """Returns (g - mean(g) - hat mean(g hat)) scale / sqrt(var + eps); hat is the normalized input.

    hat is not stored: one factor per channel multiplies the elements instead.
    """
    if x.rank is None:
        g0, flat = (_by_channel(v, scale) for v in (g, x))
        return reshape_like(_instance_norm_x(g0, y, flat, scale, bias, epsilon), x)
    rank = x.rank
    axes = list(range(2, rank))
    centred, variance, along = _instance_parts(g, x, epsilon, axes)
    flat = g - op.ReduceMean(g, axes, keepdims=1)
    return (flat - centred * (along / variance)) * (per_channel(scale, rank) / op.Sqrt(variance))


def _instance_norm_scale(g: Var, y: Var, x: Var, scale: Var, bias: Var, epsilon: float) -> Var:
    if x.rank is None:
        g, x = (_by_channel(v, scale) for v in (g, x))
    axes = list(range(2, x.rank or 3))
    _, variance, along = _instance_parts(g, x, epsilon, axes)
    total = op.ReduceSum(along / op.Sqrt(variance), [0, *axes], keepdims=0)
    return multiplied(total, reduced_count(x, along, axes))


vjp(
    "InstanceNormalization",
    _instance_norm_x,
    _instance_norm_scale,
    lambda g, y, x, scale, bias: op.ReduceSum(
        _by_channel(g, scale) if x.rank is None else g, [0, *range(2, x.rank or 3)], keepdims=0
    ),
)


def _normalized(y: Sequence[Var], x: Var) -> Var:
    return (in_dtype_of(x, y[1]) - y[1]) * y[2]


def _statistics(y: Sequence[Var], x: Var, axes: Sequence[int], epsilon: float) -> Sequence[Var]:
    """Returns y with the mean and 1 / sqrt(var + epsilon) of doubles in double: the outputs of the
    operator are float32, while its first result is computed in double.
    """
    if x.dtype != TensorProto.DOUBLE:
        return y
    mean = op.ReduceMean(x, axes, keepdims=1)
    centred = x - mean
    variance = op.ReduceMean(centred * centred, axes, keepdims=1)
    return y[0], mean, op.Reciprocal(op.Sqrt(variance + epsilon))


def _layer_norm_axes(x: Var, axis: int, binding: Binding) -> list[int]:
    if axis < 0 and x.rank is None:
        return list(range(axis, 0))
    rank = rank_of(x, binding)
    return list(range(axis % rank, rank))


def _rows(v: Var, axis: int) -> Var:
    """Reshapes `v` of unknown rank to (axes before `axis`, the others)."""
    return ranked(op.Flatten(v, axis=axis), 2)


def _layer_norm_x(
    g: Sequence[Var | None],
    y: Sequence[Var],
    x: Var,
    scale: Var,
    bias: Var | None,
    axis: int,
    epsilon: float,
    binding: Binding,
) -> Var:
    if x.rank is None and axis >= 0:
        rows = [None if v is None else _rows(v, axis) for v in g]
        across = op.Reshape(op.Expand(scale, op.Shape(x, start=axis)), [-1])
        wide = x.dtype == TensorProto.DOUBLE
        results = y if wide else [y[0], *(_rows(y[i], axis) for i in (1, 2))]
        flat = _layer_norm_x(rows, results, _rows(x, axis), across, None, 1, epsilon, binding)
        return reshape_like(flat, x)
    axes = _layer_norm_axes(x, axis, binding)
    y = _statistics(y, x, axes, epsilon)
    total: Var | None = None
    if g[0] is not None and _by_products(x, scale, y, axes):
        total = _from_products(g[0], y, x, scale)
    elif g[0] is not None:
        hat, inverse = _normalized(y, x), y[2]
        h = in_dtype_of(g[0], inverse) * in_dtype_of(scale, inverse)
        along = hat * op.ReduceMean(h * hat, axes, keepdims=1)
        total = (h - op.ReduceMean(h, axes, keepdims=1) - along) * inverse
    if len(g) > 1 and g[1] is not None:  # the adjoint of the mean
        hat = _normalized(y, x)
        part = in_dtype_of(g[1], hat) * op.ReduceMean(op.Sign(hat) * 0.0 + 1.0, axes, keepdims=1)
        total = plus(total, spread(part, hat, axes))
    if len(g) > 2 and g[2] is not None:  # of 1 / sqrt(var + eps): d = -inverse^2 hat / n
        hat, inverse = _normalized(y, x), y[2]
        part = -(in_dtype_of(g[2], inverse) * inverse * inverse)
        total = plus(total, spread(part, hat, axes) * hat)
    if total is None:
        raise InputError(f"no adjoint arrived at '{binding}'")
    return total


def _by_products(x: Var, scale: Var, y: Sequence[Var], axes: list[int]) -> bool:
    """Whether sums are computed as products with a vector.

    This applies to the last axis, in a dtype that has kernels for products.
    """
    if FORM.get() == "small":
        return False
    alike = x.dtype == scale.dtype == y[2].dtype and x.dtype in _WITH_PRODUCTS
    return alike and len(axes) == 1 and _last(x) > 0 and scale.shape == (_last(x),)


_WITH_PRODUCTS = (TensorProto.FLOAT, TensorProto.DOUBLE)


def _last(x: Var) -> int:
    """Returns the size of the last axis, or 0 if the size is not known."""
    size = x.shape[-1] if x.shape else None
    return size if isinstance(size, int) else 0


def _from_products(g: Var, y: Sequence[Var], x: Var, scale: Var) -> Var:
    """Returns r (t - mean(t)) with t = g s - h mean(g s h), where r = 1 / sqrt(var + eps) and h is
    the normalized input, whose mean is 0.

    mean(g s h) is a product of g h and s / n. The gradient by the scale uses g h as well. Forward
    and backward take 0.85 to 0.95 of the time of the term-by-term form (`scripts/bench_forms.py`).
    """
    hat = _normalized(y, x)
    over = op.Reshape(scale * (1.0 / _last(x)), [-1, 1])
    tilted = g * scale - hat * ((g * hat) @ over)
    return (tilted - op.ReduceMean(tilted, [-1], keepdims=1)) * y[2]


def _layer_norm_scale(
    g: Sequence[Var | None],
    y: Sequence[Var],
    x: Var,
    scale: Var,
    axis: int,
    epsilon: float,
    binding: Binding,
) -> Var | None:
    if g[0] is None:
        return None
    axes = [] if x.rank is None else _layer_norm_axes(x, axis, binding)
    if x.rank is None and axis >= 0 and x.dtype == TensorProto.DOUBLE:
        rows = _rows(x, axis)
        hat = _normalized(_statistics(y, rows, [1], epsilon), rows)
        return in_dtype_of(g[0], hat) * reshape_like(hat, x)
    y = _statistics(y, x, axes or list(range(axis, 0)), epsilon)
    if not _by_products(x, scale, y, axes) or is_static(x.shape):
        return in_dtype_of(g[0], y[2]) * _normalized(y, x)
    # the number of rows is not known, so the engine could not add them up as a product
    rows = op.Reshape(g[0] * (x - y[1]), [-1, _last(x)])
    return op.MatMul(op.Reshape(y[2], [-1]), rows)


vjp(
    "LayerNormalization",
    _layer_norm_x,
    _layer_norm_scale,
    lambda g, y, x, scale, bias: g[0],
    broadcasts=True,
)


def _lp_normalization(g: Var, y: Var, x: Var, axis: int, p: int) -> Var:
    """y = x / |x|: removes the component of g along y, by the gradient of the norm (y for 2,
    sign(x) for 1).
    """
    norm = (op.ReduceL1 if p == 1 else op.ReduceL2)(x, [axis], keepdims=1)
    along = op.ReduceSum(g * y, [axis], keepdims=1)
    across = (g - (op.Sign(x) if p == 1 else y) * along) / norm
    return op.Where(op.Equal(norm, 0.0), 0.0, across)


vjp("LpNormalization", _lp_normalization, notes="0 where the norm is 0; sign(0) = 0 in the 1-norm")


def _window_sum(v: Var, before: int, after: int) -> Var:
    """Returns sums over channels, each from `before` channels ahead to `after` channels behind."""
    others = [0] * ((v.rank or 0) - 2)
    padded = pad(v, [0, before, *others, 0, after, *others])
    channels = op.Shape(v, start=1, end=2)
    return op.Sum(
        *(
            op.Slice(padded, [i], op.Add(channels, np.array([i], np.int64)), [1])
            for i in range(before + after + 1)
        )
    )


def _lrn(g: Var, y: Var, x: Var, size: int, alpha: float, beta: float, bias: float) -> Var:
    """y = x s^-b, s = bias + a/n sum x²: dx = g s^-b - 2ab/n x W'(g x s^(-b-1)), W' the mirrored
    window.
    """
    if x.rank is None:
        g0, flat = (ranked(op.Reshape(v, [0, 0, -1]), 3) for v in (g, x))
        return reshape_like(_lrn(g0, y, flat, size, alpha, beta, bias), x)
    before, after = (size - 1) // 2, size - 1 - (size - 1) // 2
    s = _window_sum(x * x, before, after) * (alpha / size) + bias
    inner = _window_sum(g * x * op.Pow(s, -beta - 1.0), after, before)
    return g * op.Pow(s, -beta) - x * inner * (2.0 * alpha * beta / size)


vjp("LRN", _lrn)


def _mean_variance_normalization(x: Var, *, axes: Sequence[int]) -> Var:
    """d / (sqrt(mean d²) + 1e-9), d = x - mean x. The schema has mean x² - (mean x)², which loses
    digits and whose root has an infinite slope where x is constant.
    """
    d = x - op.ReduceMean(x, list(axes))
    return d / (op.Sqrt(op.ReduceMean(d * d, list(axes))) + 1e-9)


gradient_body("MeanVarianceNormalization", _mean_variance_normalization)
