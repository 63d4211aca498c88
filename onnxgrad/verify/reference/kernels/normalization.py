"""Normalisations and softmax in every opset and for every `stash_type`; onnx.reference accepts only
one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from onnxgrad.verify.reference.kernels.registry import Array, Call, axes_of, kernel


def epsilon_of(call: Call, default: float = 1e-5) -> float:
    """Returns the attribute `epsilon` or its default, because operators of onnxruntime have no
    schema here that provides it.
    """
    return default if call["epsilon"] is None else float(call["epsilon"])


def _softmax_view(call: Call, x: Array) -> tuple[Array, int]:
    """Returns x and the axis to normalise. Up to opset 12 all axes from `axis` on are merged; later
    only `axis` counts.
    """
    if call.version >= 13:
        return x, -1 if call["axis"] is None else call["axis"]
    axis = (1 if call["axis"] is None else call["axis"]) % max(x.ndim, 1)
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:])), -1


@kernel("Softmax", why="opset")
def softmax(call: Call, x: Array) -> Array:
    view, axis = _softmax_view(call, x)
    e = np.asarray(view - view.max(axis=axis, keepdims=True, initial=-np.inf))
    np.exp(e, out=e)
    e /= e.sum(axis=axis, keepdims=True)
    return e.reshape(x.shape)


@kernel("LogSoftmax", why="opset")
def log_softmax(call: Call, x: Array) -> Array:
    view, axis = _softmax_view(call, x)
    return log_of_softmax(view, axis).reshape(x.shape)


def log_of_softmax(x: Array, axis: int) -> Array:
    """Returns x - max - log(1 + the sum of the others), with max the largest element: near 0 it has
    as many digits as anywhere.
    """
    if not x.shape[axis]:
        return x
    top = x.argmax(axis=axis, keepdims=True)
    centred = x - np.take_along_axis(x, top, axis)
    others = np.exp(centred)
    # 0, or NaN if the largest element is infinite
    np.put_along_axis(others, top, np.expm1(np.take_along_axis(centred, top, axis)), axis)
    return np.asarray(centred - np.log1p(others.sum(axis=axis, keepdims=True)))


@kernel("Hardmax", why="opset")
def hardmax(call: Call, x: Array) -> Array:
    """Returns 1 at the first of the largest elements, and 0 elsewhere."""
    view, axis = _softmax_view(call, x)
    y = np.zeros(view.shape, x.dtype)
    if x.size:
        np.put_along_axis(y, np.expand_dims(view.argmax(axis=axis), axis), 1, axis=axis)
    return y.reshape(x.shape)


def _standardise(x: Array, axes: tuple[int, ...], epsilon: float) -> tuple[Array, Array, Array]:
    """Returns (normalised, mean, 1 / standard deviation); the reduced axes are kept."""
    mean = x.mean(axis=axes, keepdims=True)
    centred = x - mean
    inverse = 1.0 / np.sqrt((centred * centred).mean(axis=axes, keepdims=True) + epsilon)
    return centred * inverse, mean, inverse


@kernel("LayerNormalization", why="wrong")
@kernel("LayerNormalization", domain="com.microsoft", why="missing")
def layer_normalization(
    call: Call, x: Array, scale: Array, bias: Array | None = None
) -> tuple[Array, Array, Array]:
    first = -1 if call["axis"] is None else call["axis"]
    y, mean, inverse = _standardise(x, tuple(range(first % x.ndim, x.ndim)), epsilon_of(call))
    return y * scale if bias is None else y * scale + bias, mean, inverse


@kernel("RMSNormalization", why="wrong")
@kernel("SimplifiedLayerNormalization", why="missing")
@kernel("SimplifiedLayerNormalization", domain="com.microsoft", why="missing")
def rms_normalization(call: Call, x: Array, scale: Array) -> tuple[Array, ...]:
    """Returns the result and the factor, which only onnxruntime's SimplifiedLayerNormalization
    returns.
    """
    first = -1 if call["axis"] is None else call["axis"]
    axes = tuple(range(first % x.ndim, x.ndim))
    inverse = 1 / np.sqrt((x * x).mean(axis=axes, keepdims=True) + epsilon_of(call))
    return (x * inverse * scale, inverse)[: len(call.outputs)]


@kernel("SkipLayerNormalization", domain="com.microsoft", why="missing")
def skip_layer_normalization(
    call: Call,
    x: Array,
    skip: Array,
    gamma: Array,
    beta: Array | None = None,
    bias: Array | None = None,
) -> tuple[Any, ...]:
    total = x + skip if bias is None else x + skip + bias
    y, mean, inverse = _standardise(total, (x.ndim - 1,), epsilon_of(call, 1e-12))
    return y * gamma if beta is None else y * gamma + beta, mean, inverse, total


@kernel("GroupNormalization", why="opset")
def group_normalization(call: Call, x: Array, scale: Array, bias: Array) -> Array:
    """Up to opset 20, scale and bias have one value per group, later one per channel."""
    groups, channels = call["num_groups"], x.shape[1]
    y = _standardise(x.reshape(x.shape[0], groups, -1), (2,), epsilon_of(call))[0].reshape(x.shape)
    if scale.size == groups and groups != channels:
        scale, bias = np.repeat(scale, channels // groups), np.repeat(bias, channels // groups)
    shape = (1, -1, *[1] * (x.ndim - 2))
    return np.asarray(y * scale.reshape(shape) + bias.reshape(shape))


@kernel("BatchNormalization", why="opset")
def batch_normalization(
    call: Call, x: Array, scale: Array, bias: Array, mean: Array, var: Array
) -> tuple[Array, ...]:
    """Runs inference, or training (training_mode; before opset 7 is_test = 0) with batch
    statistics, which also updates the running ones.
    """
    shape = (1, -1, *[1] * (x.ndim - 2))
    training = bool(call["training_mode"]) or (call.version < 7 and not call["is_test"])
    used_mean, used_var = mean, var
    if training:
        axes = (0, *range(2, x.ndim))
        used_mean, used_var = x.mean(axis=axes), x.var(axis=axes)
    # in place: a new array for each step takes longer than its arithmetic
    y = np.subtract(x, used_mean.reshape(shape), dtype=np.result_type(x, scale, bias, mean, var))
    y /= np.sqrt(used_var.reshape(shape) + epsilon_of(call))
    y *= scale.reshape(shape)
    y += bias.reshape(shape)
    if not training:
        return (y,)
    keep = 0.9 if call["momentum"] is None else float(call["momentum"])
    updated = (keep * mean + (1 - keep) * used_mean, keep * var + (1 - keep) * used_var)
    return (y, *updated, used_mean, used_var) if call.version < 14 else (y, *updated)


@kernel("LRN", why="rounds")
def lrn(call: Call, x: Array) -> Array:
    """x (N, C, *S): divides each element by (bias + alpha / size * the sum of squares of `size`
    neighbouring channels) ** beta.
    """
    size, channels = call["size"], x.shape[1]
    squares = np.pad(x * x, [(0, 0), ((size - 1) // 2, size // 2), *[(0, 0)] * (x.ndim - 2)])
    total = sum(squares[:, k : k + channels] for k in range(size))
    return np.asarray(x / (call["bias"] + call["alpha"] / size * total) ** call["beta"])


def _log_sum_exp(x: Array, axes: tuple[int, ...]) -> Array:
    top = x.max(axis=axes, keepdims=True, initial=-np.inf)
    top = np.where(np.isfinite(top), top, 0.0)
    return np.asarray(np.log(np.exp(x - top).sum(axis=axes, keepdims=True)) + top)


# onnx.reference returns another dtype than its operand's (int64 for int32, or floats), and NaN for
# infinities
_REDUCTIONS: dict[str, Callable[[Array, tuple[int, ...]], Array]] = {
    "ReduceSumSquare": lambda x, axes: (x * x).sum(axis=axes, keepdims=True, dtype=x.dtype),
    "ReduceLogSum": lambda x, axes: np.log(x.sum(axis=axes, keepdims=True)).astype(x.dtype),
    "ReduceLogSumExp": _log_sum_exp,
}


@kernel(*_REDUCTIONS, why="wrong")
def reduce(call: Call, x: Array, axes: Array | None = None) -> Array:
    """Reduces over `axes`, an attribute or an operand. Without axes, reduces over all, or none if
    `noop_with_empty_axes`.
    """
    chosen = axes_of(call, axes, x.ndim)
    if chosen is None:
        chosen = () if call["noop_with_empty_axes"] else tuple(range(x.ndim))
    result = np.asarray(_REDUCTIONS[call.op_type](x, chosen))
    if call["keepdims"] is None or call["keepdims"]:
        return result
    return result.reshape([n for axis, n in enumerate(result.shape) if axis not in chosen])


@kernel("LpNormalization", why="wrong")
def lp_normalization(call: Call, x: Array) -> Array:
    """Divides by the norm. onnx.reference computes the 1-norm without absolute values."""
    p = call["p"]
    norm = np.power(np.power(np.abs(x), p).sum(axis=call["axis"], keepdims=True), 1.0 / p)
    return np.where(norm == 0, 0, x / np.where(norm == 0, 1, norm))
