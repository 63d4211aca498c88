"""MatMulNBits: x W^T + bias, W being (N, K) integers of 2, 4 or 8 bits that share bytes, each block
of a row with a scale and a zero point of its own.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from onnxgrad.errors import InputError
from onnxgrad.grad.registry import body
from onnxgrad.grad.rules._common import plus
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var


def _matmul_nbits(
    a: Var,
    b: Var,
    scales: Var,
    zero_points: Var | None,
    g_idx: Var | None,
    bias: Var | None,
    *,
    K: int,
    N: int,
    bits: int = 4,
    block_size: int,
    accuracy_level: int = 0,
    weight_prepacked: int = 0,
    binding: Binding,
) -> Var:
    """x W^T + bias, W = scale (q - zero point)"""
    if g_idx is not None or weight_prepacked or bits not in (2, 4, 8):
        raise InputError(
            f"no gradient of '{binding}': its integers are not in the order of rows and blocks, "
            "or not of 2, 4 or 8 bits"
        )
    blocks = -(-K // block_size)
    each = [N, blocks, 1]
    zero: Var | float = float(1 << bits - 1)
    if zero_points is not None and zero_points.dtype == TensorProto.UINT8:
        padded = op.Reshape(_unpacked(zero_points, bits), [N, -1])
        zero = op.Cast(op.Slice(padded, [0], [blocks], [1]), to=scales.dtype)
        zero = op.Reshape(zero, each)
    elif zero_points is not None:
        zero = op.Reshape(zero_points, each)
    q = op.Cast(op.Reshape(_unpacked(b, bits), [N, blocks, block_size]), to=scales.dtype)
    w = op.Reshape((q - zero) * op.Reshape(scales, each), [N, blocks * block_size])
    if blocks * block_size != K:
        w = op.Slice(w, [0], [K], [1])
    return plus(a @ w.mT, bias)


def _unpacked(v: Var, bits: int) -> Var:
    """The integers in the bytes, lowest bits first, in a line."""
    line = op.Reshape(v, [-1, 1])
    if bits == 8:
        return line
    parts = [
        op.BitShift(line, np.uint8(low), direction="RIGHT") if low else line
        for low in range(0, 8, bits)
    ]
    mask = np.uint8((1 << bits) - 1)
    return op.Concat(*[op.BitwiseAnd(part, mask) for part in parts], axis=1)


body("com.microsoft::MatMulNBits", _matmul_nbits, notes="the matrix is formed in full")
