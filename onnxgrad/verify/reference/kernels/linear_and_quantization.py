"""Matrix products, QuantizeLinear, DequantizeLinear and DynamicQuantizeLinear at every opset."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import onnx

from onnxgrad.interpreter import cores
from onnxgrad.ir.storage.lazy_arrays import LazyArray
from onnxgrad.verify.reference.kernels.control_flow import cast_to_type
from onnxgrad.verify.reference.kernels.registry import Array, Call, kernel

_LARGE = 2**25  # multiplications of a product that is split over the cores


def product(a: Array, b: Array) -> Array:
    """Returns a @ b. In a child process BLAS has one thread: its threads would wait for each other
    in every small product while other processes compute. The rows of a large product are split.
    """
    if min(a.ndim, b.ndim) < 2 or max(a.size * b.shape[-1], b.size * a.shape[-2]) < _LARGE:
        return np.asarray(a @ b)
    from concurrent.futures import ThreadPoolExecutor

    parts = np.array_split(a, min(cores(), a.shape[-2]), axis=-2)
    with ThreadPoolExecutor(len(parts)) as pool:
        return np.concatenate([*pool.map(lambda part: part @ b, parts)], axis=-2)


def lazy_product(a: Array, b: LazyArray) -> Array:
    """Returns a @ b by blocks of a lazy matrix b."""
    rows = a.reshape(math.prod(a.shape[:-1]), a.shape[-1])
    if rows.shape[1] != b.shape[0]:
        raise ValueError(f"{a.shape} and {b.shape} cannot be multiplied")
    total = np.zeros((len(rows), b.shape[1]))
    for start, end, block in b.blocks():
        if b.transposed:
            total[:, start:end] = product(rows, block)
        else:
            total += product(rows[:, start:end], block)
    return total.reshape(*a.shape[:-1], b.shape[1])


@kernel("MatMul", why="speed")
def matmul(call: Call, a: Array, b: Array | LazyArray) -> Array:
    if isinstance(b, LazyArray):
        return lazy_product(a, b)
    if b.ndim == 2 and a.ndim > 2:  # one large product is faster than a batch of small ones
        rows = a.reshape(math.prod(a.shape[:-1]), a.shape[-1])
        return product(rows, b).reshape(*a.shape[:-1], b.shape[1])
    return product(a, b)


@kernel("Gemm", why="opset")
def gemm(call: Call, a: Array, b: Array | LazyArray, c: Array | None = None) -> Array:
    a, b = a.T if call["transA"] else a, b.T if call["transB"] else b
    total = lazy_product(a, b) if isinstance(b, LazyArray) else product(a, b)
    alpha = 1.0 if call["alpha"] is None else call["alpha"]
    beta = 1.0 if call["beta"] is None else call["beta"]
    if alpha != 1:
        total = alpha * total
    return total if c is None or beta == 0 else total + (c if beta == 1 else beta * c)


@kernel("MatMulInteger", why="speed")
def matmul_integer(
    call: Call, a: Array, b: Array, a_zero: Array | None = None, b_zero: Array | None = None
) -> Array:
    """Multiplies integers. A zero point is a scalar, one per row of a, or one per column of b.
    Exact in float64 while sums stay below 2**53.
    """
    left, right = a.astype(np.float64), b.astype(np.float64)
    if a_zero is not None:
        left = left - (
            a_zero.astype(np.float64)[..., None]
            if a_zero.ndim == 1 and a_zero.size > 1
            else a_zero.astype(np.float64)
        )
    if b_zero is not None:
        right = right - b_zero.astype(np.float64)
    total = np.asarray(left @ right)
    return total.astype(np.int32) if call.steps else total


@kernel("QuantizeLinear", why="wrong")
@kernel("QuantizeLinear", domain="com.microsoft", why="missing")
def quantize_linear(call: Call, x: Array, scale: Array, zero: Array | None = None) -> Array:
    """Quantizes x (*S) to the dtype of the zero point, else `output_dtype`, else uint8. Scale and
    zero point: () or (1,), (S[axis],), or one for each block of `block_size` along the axis.
    """
    code = call["output_dtype"] or onnx.TensorProto.UINT8
    if zero is not None:
        code = onnx.helper.np_dtype_to_tensor_dtype(zero.dtype)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(code)
    y = x.astype(np.float64) / _spread(call, scale, x)
    if not _is_integer(dtype):
        return cast_to_type(call, y, dtype, code)
    return stepped(call, y, 0.0 if zero is None else _spread(call, zero, x), dtype)


@kernel("DequantizeLinear", why="opset")
@kernel("DequantizeLinear", domain="com.microsoft", why="missing")
def dequantize_linear(call: Call, x: Array, scale: Array, zero: Array | None = None) -> Array:
    """Dequantizes x, with operands like those of QuantizeLinear; a zero point of float8 is 0."""
    shift = 0.0 if zero is None or not _is_integer(zero.dtype) else _spread(call, zero, x)
    return np.asarray((x.astype(np.float64) - shift) * _spread(call, scale, x))


def _spread(call: Call, value: Array, x: Array) -> Array:
    """Returns a scale or zero point in float64, broadcastable to x."""
    wide = value.astype(np.float64)
    if value.size == 1 and value.ndim <= 1:
        return wide.reshape(())
    axis = 1 if call["axis"] is None else call["axis"]
    if value.ndim == 1:
        return wide.reshape([-1 if a == axis % x.ndim else 1 for a in range(x.ndim)])
    if call["block_size"]:
        wide = np.repeat(wide, call["block_size"], axis=axis)
    return wide[tuple(slice(size) for size in x.shape)]


def _is_integer(dtype: np.dtype[np.generic]) -> bool:
    return dtype.kind in "iu" or dtype.name.startswith(("int", "uint"))


def saturated(whole: Array, dtype: np.dtype[np.generic]) -> Array:
    """Returns whole numbers clipped to an integer dtype."""
    info = ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call]
    return np.clip(whole, info.min, info.max).astype(dtype)


def stepped(call: Call, y: Array, zero: Array | float, dtype: np.dtype[np.generic]) -> Array:
    """Returns saturate(round(y) + zero); without rounding, the result is in float64."""
    if call.steps:
        return saturated(np.rint(y) + zero, dtype)
    info = ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call]
    return np.asarray(np.clip(y + zero, float(info.min), float(info.max)))


@kernel("DynamicQuantizeLinear", why="rounds")
def dynamic_quantize(call: Call, x: Array) -> tuple[Array, Array, Array]:
    """Computes the scale in float64; onnx.reference computes it in float32."""
    low, high = min(0.0, float(x.min(initial=0.0))), max(0.0, float(x.max(initial=0.0)))
    scale = (high - low) / 255 or 1.0
    zero = stepped(call, np.asarray(-low / scale), 0.0, np.dtype(np.uint8))
    quantized = stepped(call, x / scale, zero.astype(np.float64), np.dtype(np.uint8))
    return quantized, np.asarray(scale), zero
