"""onnxruntime's operators with quantised operands (com.microsoft). Integers receive no gradient;
the derivative of the floats is exact.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from onnxgrad.errors import InputError
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission.arithmetic import from_front, plus, rank_of, size_along
from onnxgrad.ir.emission.emit import constant
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var
from onnxgrad.laws.bodies.attention import count
from onnxgrad.laws.bodies.calls import Bodies, decline

# from this opset on, Cast accepts integers of four bits
_FOUR_BITS = 21


def _matmul_nbits(
    a: Var,
    b: Var,
    scales: Var,
    zero_points: Var | None,
    g_idx: Var | None,
    bias: Var | None,
    *,
    binding: Binding,
) -> Var:
    """x W^T + bias, W = scale (q - zero point)"""
    K, N, size, blocks, _ = sizes(binding)
    q = centred(b, zero_points, scales.dtype, binding)
    w = op.Reshape(q * op.Reshape(scales, [N, blocks, 1]), [N, blocks * size])
    if blocks * size != K:
        w = op.Slice(w, [0], [K], [1])
    return plus(a @ w.mT, bias)


def sizes(binding: Binding) -> tuple[int, int, int, int, int]:
    """Returns K, N, the size of a block, blocks per row, and bits of MatMulNBits. Raises InputError
    if the integers are in another order.
    """
    K, N, size = (int(binding.attr(name)) for name in ("K", "N", "block_size"))
    bits = int(binding.attr("bits", 4))
    g_idx, prepacked = binding.operand(4), binding.attr("weight_prepacked", 0)
    if g_idx is not None or prepacked or bits not in (2, 4, 8):
        raise InputError(
            f"no gradient of '{binding}': its integers are not in the order of rows and blocks, "
            "or not of 2, 4 or 8 bits"
        )
    return K, N, size, -(-K // size), bits


def centred(b: Var, zero_points: Var | None, dtype: int, binding: Binding) -> Var:
    """Returns q - zero point of MatMulNBits as floats (N, blocks, size of a block)."""
    _, N, size, blocks, bits = sizes(binding)
    zero: Var | float = float(1 << bits - 1)
    if zero_points is not None:
        zero = op.Reshape(zeros_of(zero_points, dtype, binding), [N, blocks, 1])
    return op.Cast(op.Reshape(_unpacked(b, bits), [N, blocks, size]), to=dtype) - zero


def zeros_of(zero_points: Var, dtype: int, binding: Binding) -> Var:
    """Returns the zero points of MatMulNBits as floats (N, blocks)."""
    _, N, _, blocks, bits = sizes(binding)
    if zero_points.dtype != TensorProto.UINT8:
        return op.Reshape(zero_points, [N, blocks])
    padded = op.Reshape(_unpacked(zero_points, bits), [N, -1])
    return op.Cast(op.Slice(padded, [0], [blocks], [1]), to=dtype)


def _unpacked(v: Var, bits: int) -> Var:
    """Returns the integers packed in bytes, lowest bits first, as a vector."""
    line = op.Reshape(v, [-1, 1])
    if bits == 8:
        return line
    parts = [
        op.BitShift(line, np.uint8(low), direction="RIGHT") if low else line
        for low in range(0, 8, bits)
    ]
    return op.Concat(*(op.BitwiseAnd(v, np.uint8((1 << bits) - 1)) for v in parts), axis=1)


# the numbers that the 4-bit codes of bitsandbytes represent: FP4, NF4
_FP4 = (
    0.0, 0.00520833333, 0.66666667, 1.0, 0.33333333, 0.5, 0.16666667, 0.25,
    -0.0, -0.00520833333, -0.66666667, -1.0, -0.33333333, -0.5, -0.16666667, -0.25,
)  # fmt: skip
_NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1.0,
)  # fmt: skip


def _matmul_bnb4(a: Var, b: Var, absmax: Var, *, binding: Binding) -> Var:
    """a W^T, where W (N, K) is a sequence of blocks with one scale each."""
    decline(binding, "transB = 0", not binding.attr("transB", 1))
    K, N, block = (binding.attr(name) for name in ("K", "N", "block_size"))
    length = N * K
    # the first of two codes is in the upper half of a byte
    low = op.BitwiseAnd(b, np.uint8(15))
    high = op.BitShift(b, np.uint8(4), direction="RIGHT")
    codes = op.Concat(*(op.Reshape(v, [-1, 1]) for v in (high, low)), axis=1)
    table = np.asarray((_FP4, _NF4)[binding.attr("quant_type")])
    line = op.Gather(
        constant(table, absmax.dtype), op.Cast(op.Reshape(codes, [-1]), to=TensorProto.INT64)
    )
    place = constant(np.arange(length, dtype=np.int64) // block)
    w = op.Reshape(op.Slice(line, [0], [length], [0]) * op.Gather(absmax, place), [N, K])
    return a @ w.mT


def _gather_block_quantized(
    data: Var, indices: Var, scales: Var, zero_points: Var | None, *, binding: Binding
) -> Var:
    """Returns the elements `indices` of (data - zero point) * scale; blocks lie along one axis."""
    rank, packed = rank_of(data, binding), data.dtype == TensorProto.UINT8
    rows = from_front(binding.attr("gather_axis", 0), rank)
    axis = from_front(binding.attr("quantize_axis", 1), rank)
    whole = data.dtype in (TensorProto.UINT4, TensorProto.INT4)
    decline(binding, f"data of type {data.type}", not (packed or whole))
    bits = binding.attr("bits", 4) if packed else 0
    integers = [data] if zero_points is None else [data, zero_points]
    if whole:
        integers = [_in_bytes(v, binding) for v in integers]
    given = [scales, *integers]
    indices = op.Cast(indices, to=TensorProto.INT64)
    number, size = rank_of(indices, binding), size_along(data, rows)
    inside = op.And(op.GreaterOrEqual(indices, op.Neg(size)), op.Less(indices, size))
    indices = op.Where(inside, indices, 0)
    split = axis != rows
    if split:  # convert only the elements that are read
        given = [op.Gather(v, indices, axis=rows) for v in given]
        axis += number - 1 if axis > rows else 0
    scale, *integers = given
    q, *zeros = (_numbers(v, bits, scales) for v in integers)
    block = np.int64(binding.attr("block_size", 128))
    place = op.Div(op.Range(0, count(q, axis), 1), block)
    if zeros:
        q = q - op.Gather(zeros[0], place, axis=axis)
    elif packed:
        q = q - float(1 << bits - 1)
    table = q * op.Gather(scale, place, axis=axis)
    y = table if split else op.Gather(table, indices, axis=rows)
    others = [*range(rows), *range(rows + number, rank + number - 1)]
    return op.Where(op.Unsqueeze(inside, others) if others else inside, y, 0.0)


def _in_bytes(v: Var, binding: Binding) -> Var:
    """Widens integers of four bits to eight, because few operators accept the shorter ones."""
    signed = v.dtype == TensorProto.INT4
    if v.const is not None:
        return constant(np.asarray(v.const).astype(np.int8 if signed else np.uint8))
    known = binding.block.opsets.get("", 0) >= _FOUR_BITS
    decline(binding, "non-constant data of four bits before opset 21", not known)
    return op.Cast(v, to=TensorProto.INT8 if signed else TensorProto.UINT8)


def _numbers(v: Var, bits: int, like: Var) -> Var:
    """Returns integers as floats; packed ones lie along the last axis, lowest bits first."""
    if bits in (2, 4):
        parts = [op.BitShift(v, np.uint8(low), direction="RIGHT") for low in range(0, 8, bits)]
        last = v.rank or 1
        parts = [op.Unsqueeze(op.BitwiseAnd(p, np.uint8((1 << bits) - 1)), [last]) for p in parts]
        v = op.Reshape(op.Concat(*parts, axis=last), [0] * (last - 1) + [-1])
    return op.Cast(v, to=like.dtype)


BODIES: Bodies = {
    "MatMulNBits": (_matmul_nbits, "the matrix is formed in full"),
    "MatMulBnb4": (_matmul_bnb4, "the matrix is formed in full"),
    "GatherBlockQuantized": (_gather_block_quantized, "the scales"),
}
