"""Elementwise operators that onnx.reference rounds to float32 (Erf, Gelu) or does not know in every
opset.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from onnxgrad.verify.reference.kernels.registry import Array, Call, kernel


def erf_of(x: Array) -> Array:
    """Returns erf of each element, with C's function, because numpy has none."""
    flat = np.ascontiguousarray(x, np.float64).reshape(-1)
    return np.fromiter(map(math.erf, flat.data), np.float64, flat.size).reshape(x.shape)


@kernel("Erf", why="rounds")
def erf(call: Call, x: Array) -> Array:
    return erf_of(x)


@kernel("Gelu", why="rounds")
@kernel("Gelu", "BiasGelu", "FastGelu", domain="com.microsoft", why="missing")
def gelu(call: Call, x: Array, bias: Array | None = None) -> Array:
    x = x if bias is None else x + bias
    if call["approximate"] == "tanh" or call.op_type == "FastGelu":
        return np.asarray(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))
    return np.asarray(0.5 * x * (1 + erf_of(x / math.sqrt(2))))


def sigmoid_of(x: Array) -> Array:
    """Returns 1 / (1 + exp(-x)) without overflow."""
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, e) / (1.0 + e)


@kernel("HardSwish", why="rounds")  # its body has 1 / 6 in float32
def hard_swish(call: Call, x: Array) -> Array:
    return np.asarray(x * np.clip(x / 6.0 + 0.5, 0.0, 1.0))


@kernel("Softsign", why="wrong")  # onnx.reference fails for a number without an axis
def softsign(call: Call, x: Array) -> Array:
    return np.asarray(x / (1.0 + np.abs(x)))


@kernel("Mean", why="wrong")  # onnx.reference fails if the first operand is broadcast
def mean(call: Call, *operands: Array) -> Array:
    return np.asarray(functools.reduce(np.add, operands) / len(operands))


_ARITHMETIC: dict[str, Any] = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply}


@kernel("Add", "Sub", "Mul", why="opset")
def arithmetic(call: Call, a: Array, b: Array) -> Array:
    return _legacy(call, _ARITHMETIC[call.op_type], a, b)


@kernel("Div", why="opset")
def div(call: Call, a: Array, b: Array) -> Array:
    """Divides; integers round towards zero. Division of an integer by zero gives 0; onnxruntime
    would crash.
    """
    if a.dtype.kind not in "iu":
        return _legacy(call, np.divide, a, b)
    floored = _legacy(call, np.floor_divide, a, b)
    inexact = floored * b != a
    return np.asarray(floored + (inexact & ((a < 0) != (b < 0)))).astype(a.dtype)


def _legacy(call: Call, operation: Any, a: Array, b: Array) -> Array:
    """Broadcasts as before opset 7, when attributes chose it: b's axes start at `axis` of a."""
    if call.version < 7 and call["broadcast"]:
        axis = call["axis"] if call["axis"] is not None else a.ndim - b.ndim
        b = b.reshape(b.shape + (1,) * (a.ndim - axis % max(a.ndim, 1) - b.ndim))
    return np.asarray(operation(a, b))


@kernel("Clip", why="opset")
def clip(call: Call, x: Array, low: Array | None = None, high: Array | None = None) -> Array:
    low = call["min"] if low is None else low
    high = call["max"] if high is None else high
    y = x if low is None else np.maximum(x, np.asarray(low, x.dtype))
    return np.asarray(y if high is None else np.minimum(y, np.asarray(high, x.dtype)))


@kernel("PRelu", why="opset")
def prelu(call: Call, x: Array, slope: Array) -> Array:
    """Before opset 7, a slope per channel lies along axis 1. onnx.reference tries that only if
    broadcasting fails.
    """
    if call.version < 7 and slope.ndim == 1 and slope.size > 1:
        slope = slope.reshape(-1, *[1] * (x.ndim - 2))
    return np.where(x < 0, x * slope, x)


# name -> (function of x, alpha, beta; default alpha; default beta)
ACTIVATIONS: dict[str, tuple[Callable[[Array, float, float], Any], float, float]] = {
    "sigmoid": (lambda x, a, b: sigmoid_of(x), 0.0, 0.0),
    "tanh": (lambda x, a, b: np.tanh(x), 0.0, 0.0),
    "relu": (lambda x, a, b: np.maximum(x, 0.0), 0.0, 0.0),
    "affine": (lambda x, a, b: a * x + b, 1.0, 0.0),
    "leakyrelu": (lambda x, a, b: np.where(x >= 0, x, a * x), 0.01, 0.0),
    "thresholdedrelu": (lambda x, a, b: np.where(x >= a, x, 0.0), 1.0, 0.0),
    "scaledtanh": (lambda x, a, b: a * np.tanh(b * x), 1.0, 1.0),
    "hardsigmoid": (lambda x, a, b: np.clip(a * x + b, 0.0, 1.0), 0.2, 0.5),
    "elu": (lambda x, a, b: np.where(x >= 0, x, a * np.expm1(np.minimum(x, 0.0))), 1.0, 0.0),
    "softsign": (lambda x, a, b: x / (1 + np.abs(x)), 0.0, 0.0),
    "softplus": (lambda x, a, b: np.logaddexp(0.0, x), 0.0, 0.0),
}
