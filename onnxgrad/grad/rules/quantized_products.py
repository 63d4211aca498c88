"""MatMulNBits, onnxruntime's product with packed integers. It stays in the forward part."""

from __future__ import annotations

from onnxgrad.grad.registry import vjp
from onnxgrad.grad.rules._by_blocks import product
from onnxgrad.grad.rules._common import pad
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission.fill_and_reshape import reshape_like
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import TensorType
from onnxgrad.ir.var import Var
from onnxgrad.laws.bodies.quantized import centred, sizes, zeros_of

# y = a W' + bias, W = scale (q - zero point): da = g W, formed some rows at a time


def _by_input(
    g: Var,
    y: Var,
    a: Var,
    b: Var,
    scales: Var,
    zero_points: Var | None,
    binding: Binding,
) -> Var:
    K, N, size, blocks, bits = sizes(binding)
    # a part of packed zero points has an open size, with which onnxruntime loads no gather
    zero = None if zero_points is None else zeros_of(zero_points, scales.dtype, binding)
    factors = _table(scales, N)

    def rows(start: Var, end: Var) -> Var:
        line = op.Reshape(op.Slice(b, start, end, [0]), [0, -1])
        scale = op.Slice(factors, start, end, [0])
        w: Var = op.domain("com.microsoft").GatherBlockQuantized(
            line,
            op.Range(0, op.Squeeze(end - start, [0]), 1),
            scale,
            gather_axis=0,
            quantize_axis=1,
            block_size=size,
            bits=bits,
        )
        w.type = TensorType(scale.dtype, (None, blocks * size))
        if zero is not None:
            moved = (float(1 << bits - 1) - op.Slice(zero, start, end, [0])) * scale
            w = op.Reshape(op.Reshape(w, [0, blocks, size]) + op.Unsqueeze(moved, [2]), [0, -1])
        return w if blocks * size == K else op.Slice(w, [0], [K], [1])

    return product(g, rows, (N, K))


def _table(v: Var, rows: int) -> Var:
    """Returns numbers per block, which files store as a vector or a matrix, with an axis of
    rows.
    """
    return v if v.rank == 2 else op.Reshape(v, [rows, -1])


def _by_matrix(g: Var, a: Var, binding: Binding) -> Var:
    """Returns the adjoint of W, formed in full, as (N, blocks, size of a block)."""
    K, N, size, blocks, _ = sizes(binding)
    dw = op.Gemm(op.Reshape(g, [-1, N]), op.Reshape(a, [-1, K]), transA=1)
    if blocks * size != K:
        dw = pad(dw, [0, blocks * size - K], [1])
    return op.Reshape(dw, [N, blocks, size])


def _by_scales(
    g: Var, y: Var, a: Var, b: Var, scales: Var, zero_points: Var | None, binding: Binding
) -> Var:
    dw = _by_matrix(g, a, binding)
    q = centred(b, zero_points, scales.dtype, binding)
    return reshape_like(op.ReduceSum(dw * q, [2], keepdims=0), scales)


def _by_zero_points(
    g: Var, y: Var, a: Var, b: Var, scales: Var, zero_points: Var, binding: Binding
) -> Var:
    sums = op.ReduceSum(_by_matrix(g, a, binding), [2], keepdims=0)
    return reshape_like(op.Neg(sums * reshape_like(scales, sums)), zero_points)


vjp(
    "com.microsoft::MatMulNBits",
    _by_input,
    None,
    _by_scales,
    _by_zero_points,
    None,
    lambda g, y, a, b, scales, zero_points, g_idx, bias: g,
    broadcasts=True,
    notes="the matrix is formed some rows at a time, and in full for its scales and zero points",
)
