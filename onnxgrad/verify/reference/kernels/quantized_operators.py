"""Operators on quantized tensors (QOperator files): integers are centred exactly, the operator is
computed in float64, and its result is quantized once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxgrad.verify.reference.kernels.conv_and_pool import average_pool, conv
from onnxgrad.verify.reference.kernels.elementwise import sigmoid_of
from onnxgrad.verify.reference.kernels.linear_and_quantization import dynamic_quantize, stepped
from onnxgrad.verify.reference.kernels.registry import Array, Call, axes_of, kernel

_MS = "com.microsoft"


def _centred(call: Call, x: Array, zero: Array | None, axis: int | None = None) -> Array:
    """Returns x - zero, exactly. `axis`: that of a vector of zero points."""
    wide = x.astype(np.float64)
    return call.rounded(wide if zero is None else wide - _along(zero, x.ndim, axis))


def _real(call: Call, x: Array, scale: Array, zero: Array | None) -> Array:
    """Returns (x - zero) * scale."""
    return np.asarray(_centred(call, x, zero) * _along(scale, x.ndim, None))


def _along(value: Array, rank: int, axis: int | None) -> Array:
    """Returns a scale or zero point, broadcastable to a tensor: a scalar, a vector along an axis,
    or one per matrix.
    """
    wide = value.astype(np.float64)
    if value.size == 1:
        return wide.reshape(())
    if value.ndim > 1 or axis is None:
        return wide
    return wide.reshape([-1 if a == axis % rank else 1 for a in range(rank)])


def _quantized(call: Call, y: Array, scale: Array, zero: Array | None, like: Array) -> Array:
    """Returns saturate(round(y / scale) + zero), in the dtype of the zero point or of `like`."""
    value = call.rounded(np.asarray(y / _along(scale, y.ndim, None)))
    shift = 0.0 if zero is None else _along(zero, y.ndim, None)
    return stepped(call, value, shift, like.dtype if zero is None else zero.dtype)


@kernel("QLinearConv", why="speed")
@kernel("QLinearConv", domain=_MS, why="missing")
def qlinear_conv(call: Call, *operands: Any) -> Array:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias = (*operands, None)[:9]
    data, weight = _centred(call, x, x_zero), _centred(call, w, w_zero, 0)
    total = conv(
        call, _first(call, data), weight, None if bias is None else bias.astype(np.float64)
    )
    steps = _along(x_scale, 0, None) * _along(w_scale, x.ndim, 1)
    return _last(call, _quantized(call, total * steps, y_scale, y_zero, x))


def _first(call: Call, x: Array) -> Array:
    """Returns x with the channels on axis 1."""
    return np.moveaxis(x, -1, 1) if call["channels_last"] else x


def _last(call: Call, y: Array) -> Array:
    return np.moveaxis(y, 1, -1) if call["channels_last"] else y


@kernel("QLinearMatMul", why="rounds")
def qlinear_matmul(call: Call, *operands: Any) -> Array:
    """A scale is a scalar, one per row of a or column of b, or one per matrix."""
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = operands
    total = _centred(call, a, a_zero, -2) @ _centred(call, b, b_zero, -1)
    steps = _along(a_scale, total.ndim, -2) * _along(b_scale, total.ndim, -1)
    return _quantized(call, total * steps, y_scale, y_zero, a)


@kernel("QGemm", domain=_MS, why="missing")
def qgemm(call: Call, *operands: Any) -> Array:
    """Computes alpha a b + c, with c in steps of alpha and both scales. Returns a float if the
    result has no scale.
    """
    a, a_scale, a_zero, b, b_scale, b_zero, c, y_scale, y_zero = (*operands, *[None] * 3)[:9]
    left = _centred(call, a.T if call["transA"] else a, a_zero)
    total = left @ _centred(call, b.T if call["transB"] else b, b_zero, -1)
    total = total if c is None else total + c.astype(np.float64)
    alpha = 1.0 if call["alpha"] is None else float(call["alpha"])
    y = total * (alpha * _along(a_scale, 0, None) * _along(b_scale, 2, -1))
    return y if y_scale is None else _quantized(call, y, y_scale, y_zero, a)


@kernel("QLinearAdd", "QLinearMul", domain=_MS, why="missing")
def qlinear_binary(call: Call, *operands: Any) -> Array:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = (*operands, None)[:8]
    left, right = _real(call, a, a_scale, a_zero), _real(call, b, b_scale, b_zero)
    value = left + right if call.op_type == "QLinearAdd" else left * right
    return _quantized(call, value, y_scale, y_zero, a)


@kernel(
    "QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax", "QLinearAveragePool",
    "QLinearGlobalAveragePool", "QLinearReduceMean", domain=_MS, why="missing",
)  # fmt: skip
def qlinear_unary(call: Call, *operands: Any) -> Array:
    x, x_scale, x_zero, y_scale, y_zero = (*operands, None)[:5]
    y = _UNARY[call.op_type](call, _real(call, x, x_scale, x_zero))
    return _quantized(call, y, y_scale, y_zero, x)


def _leaky(call: Call, x: Array) -> Array:
    return np.where(x >= 0, x, x * (0.01 if call["alpha"] is None else call["alpha"]))


def _softmax(call: Call, x: Array) -> Array:
    """From opset 13 on, normalises along one axis; before, over all axes from that one on."""
    axis = (-1 if call["axis"] is None else call["axis"]) % x.ndim
    axes = tuple(range(axis, x.ndim)) if (call["opset"] or 0) < 13 else (axis,)
    e = np.exp(x - x.max(axis=axes, keepdims=True))
    return np.asarray(e / e.sum(axis=axes, keepdims=True))


def _average(call: Call, x: Array) -> Array:
    return _last(call, average_pool(call, _first(call, x)))


def _global_average(call: Call, x: Array) -> Array:
    data = _first(call, x)
    return _last(call, data.mean(axis=tuple(range(2, data.ndim)), keepdims=True))


def _mean(call: Call, x: Array) -> Array:
    keep = call["keepdims"] is None or bool(call["keepdims"])
    return np.asarray(x.mean(axis=axes_of(call, None, x.ndim), keepdims=keep))


_UNARY = {
    "QLinearSigmoid": lambda call, x: sigmoid_of(x),
    "QLinearLeakyRelu": _leaky,
    "QLinearSoftmax": _softmax,
    "QLinearAveragePool": _average,
    "QLinearGlobalAveragePool": _global_average,
    "QLinearReduceMean": _mean,
}


@kernel("QLinearConcat", domain=_MS, why="missing")
def qlinear_concat(call: Call, y_scale: Array, y_zero: Array, *operands: Any) -> Array:
    triples = [operands[i : i + 3] for i in range(0, len(operands), 3)]
    y = np.concatenate([_real(call, *triple) for triple in triples], axis=call["axis"])
    return _quantized(call, y, y_scale, y_zero, triples[0][0])


@kernel("QLinearWhere", domain=_MS, why="missing")
def qlinear_where(call: Call, condition: Array, *operands: Any) -> Array:
    x, x_scale, x_zero, y, y_scale, y_zero, z_scale, z_zero = operands
    z = np.where(condition, _real(call, x, x_scale, x_zero), _real(call, y, y_scale, y_zero))
    return _quantized(call, z, z_scale, z_zero, x)


@kernel("MatMulIntegerToFloat", domain=_MS, why="missing")
def matmul_integer_to_float(call: Call, *operands: Any) -> Array:
    a, b, a_scale, b_scale, a_zero, b_zero, bias = (*operands, *[None] * 3)[:7]
    return _product(call, a, a_scale, a_zero, b, b_scale, b_zero, bias)


def _product(call: Call, *operands: Any) -> Array:
    a, a_scale, a_zero, b, b_scale, b_zero, bias = operands
    total = _centred(call, a, a_zero, -2) @ _centred(call, b, b_zero, -1)
    y = total * (_along(a_scale, total.ndim, -2) * _along(b_scale, total.ndim, -1))
    return np.asarray(y if bias is None else y + bias)


@kernel("DynamicQuantizeMatMul", domain=_MS, why="missing")
def dynamic_quantize_matmul(call: Call, *operands: Any) -> Array:
    """Quantizes the first operand as DynamicQuantizeLinear does."""
    x, b, b_scale, b_zero, bias = (*operands, *[None] * 2)[:5]
    a, a_scale, a_zero = dynamic_quantize(call, call.rounded(x))
    return _product(call, a, a_scale, a_zero, b, b_scale, b_zero, bias)
