"""Elementwise operators that onnx.reference rounds to float32 (Erf, Gelu) or does not know in
every opset.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from onnxgrad.verify.reference.kernels.registry import Array, Call, kernel

# Rational approximations of erf and erfc from fdlibm's s_erf.c (Sun Microsystems, 1993; freely
# distributable): below 1 ulp in float64.
_PP = (
    1.28379167095512558561e-01,
    -3.25042107247001499370e-01,
    -2.84817495755985104766e-02,
    -5.77027029648944159157e-03,
    -2.37630166566501626084e-05,
)
_QQ = (
    1.0,
    3.97917223959155352819e-01,
    6.50222499887672944485e-02,
    5.08130628187576562776e-03,
    1.32494738004321644526e-04,
    -3.96022827877536812320e-06,
)
_PA = (
    -2.36211856075265944077e-03,
    4.14856118683748331666e-01,
    -3.72207876035701323847e-01,
    3.18346619901161753674e-01,
    -1.10894694282396677476e-01,
    3.54783043256182359371e-02,
    -2.16637559486879084300e-03,
)
_QA = (
    1.0,
    1.06420880400844228286e-01,
    5.40397917702171048937e-01,
    7.18286544141962662868e-02,
    1.26171219808761642112e-01,
    1.36370839120290507362e-02,
    1.19844998467991074170e-02,
)
_RA = (
    -9.86494403484714822705e-03,
    -6.93858572707181764372e-01,
    -1.05586262253232909814e01,
    -6.23753324503260060396e01,
    -1.62396669462573470355e02,
    -1.84605092906711035994e02,
    -8.12874355063065934246e01,
    -9.81432934416914548592e00,
)
_SA = (
    1.0,
    1.96512716674392571292e01,
    1.37657754143519042600e02,
    4.34565877475229228821e02,
    6.45387271733267880336e02,
    4.29008140027567833386e02,
    1.08635005541779435134e02,
    6.57024977031928170135e00,
    -6.04244152148580987438e-02,
)
_RB = (
    -9.86494292470009928597e-03,
    -7.99283237680523006574e-01,
    -1.77579549177547519889e01,
    -1.60636384855821916062e02,
    -6.37566443368389627722e02,
    -1.02509513161107724954e03,
    -4.83519191608651397019e02,
)
_SB = (
    1.0,
    3.03380607434824582924e01,
    3.25792512996573918826e02,
    1.53672958608443695994e03,
    3.19985821950859553908e03,
    2.55305040643316442583e03,
    4.74528541206955367215e02,
    -2.24409524465858183362e01,
)
_ERX = 8.45062911510467529297e-01


def _poly(coefficients: tuple[float, ...], x: Array) -> Array:
    result = np.full_like(x, coefficients[-1])
    for c in coefficients[-2::-1]:
        result = result * x + c
    return result


def erf_of(x: Array) -> Array:
    """erf in float64, vectorised: fdlibm's four intervals."""
    x = np.asarray(x, np.float64)
    size = np.abs(x)
    y = np.where(np.isnan(x), np.nan, 1.0)
    small = size < 0.84375
    middle = (size >= 0.84375) & (size < 1.25)
    large = (size >= 1.25) & (size < 6.0)
    if small.any():
        s, z = size[small], size[small] ** 2
        y[small] = s + s * (_poly(_PP, z) / _poly(_QQ, z))
    if middle.any():
        s = size[middle] - 1.0
        y[middle] = _ERX + _poly(_PA, s) / _poly(_QA, s)
    if large.any():
        v = size[large]
        s = 1.0 / (v * v)
        ratio = np.where(v < 1 / 0.35, _poly(_RA, s) / _poly(_SA, s), _poly(_RB, s) / _poly(_SB, s))
        top = (v.view(np.uint64) & np.uint64(0xFFFFFFFF00000000)).view(
            np.float64
        )  # v without its low bits, so that top * top is exact
        y[large] = 1.0 - np.exp(-top * top - 0.5625) * np.exp((top - v) * (top + v) + ratio) / v
    return np.asarray(np.copysign(y, x))


@kernel("Erf", why="rounds")
def erf(call: Call, x: Array) -> Array:
    return erf_of(x)


@kernel("Gelu", why="rounds")
@kernel("Gelu", domain="com.microsoft", why="missing")
def gelu(call: Call, x: Array) -> Array:
    if call["approximate"] == "tanh":
        return np.asarray(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))
    return np.asarray(0.5 * x * (1 + erf_of(x / math.sqrt(2))))


def sigmoid_of(x: Array) -> Array:
    """1 / (1 + exp(-x)) without overflow."""
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, e) / (1.0 + e)


@kernel("Softsign", why="wrong")  # an error for a number without an axis
def softsign(call: Call, x: Array) -> Array:
    return np.asarray(x / (1.0 + np.abs(x)))


@kernel("Mean", why="wrong")  # an error where the first operand is broadcast
def mean(call: Call, *operands: Array) -> Array:
    return np.asarray(functools.reduce(np.add, operands) / len(operands))


@kernel("Add", why="opset")
def add(call: Call, a: Array, b: Array) -> Array:
    return _legacy(call, np.add, a, b)


@kernel("Sub", why="opset")
def sub(call: Call, a: Array, b: Array) -> Array:
    return _legacy(call, np.subtract, a, b)


@kernel("Mul", why="opset")
def mul(call: Call, a: Array, b: Array) -> Array:
    return _legacy(call, np.multiply, a, b)


@kernel("Div", why="opset")
def div(call: Call, a: Array, b: Array) -> Array:
    """Integers divide towards zero; by zero gives 0, where onnxruntime would die."""
    if a.dtype.kind not in "iu":
        return _legacy(call, np.divide, a, b)
    floored = _legacy(call, np.floor_divide, a, b)
    inexact = floored * b != a
    return np.asarray(floored + (inexact & ((a < 0) != (b < 0)))).astype(a.dtype)


def _legacy(call: Call, operation: Any, a: Array, b: Array) -> Array:
    """Before opset 7 broadcasting was asked for by attributes: b's axes start at `axis` of a."""
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
    """Below opset 7 a slope per channel lies along axis 1; onnx.reference only looks there when
    broadcasting fails.
    """
    if call.version < 7 and slope.ndim == 1 and slope.size > 1:
        slope = slope.reshape(-1, *[1] * (x.ndim - 2))
    return np.where(x < 0, x * slope, x)


# name -> function of x, alpha, beta; alpha and beta where they are not given
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
