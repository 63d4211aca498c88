"""Matrix products: onnx.reference multiplies batches of small ones one by one, and integers
without BLAS.
"""

from __future__ import annotations

import numpy as np

from onnxgrad.verify.reference.kernels.registry import Array, Call, kernel


@kernel("MatMul", why="speed")
def matmul(call: Call, a: Array, b: Array) -> Array:
    if b.ndim == 2 and a.ndim > 2:  # one large product is faster than a batch of small ones
        return (a.reshape(-1, a.shape[-1]) @ b).reshape(*a.shape[:-1], b.shape[1])
    return np.asarray(a @ b)


@kernel("Gemm", why="opset")
def gemm(call: Call, a: Array, b: Array, c: Array | None = None) -> Array:
    product = (a.T if call["transA"] else a) @ (b.T if call["transB"] else b)
    alpha = 1.0 if call["alpha"] is None else call["alpha"]
    beta = 1.0 if call["beta"] is None else call["beta"]
    if alpha != 1:
        product = alpha * product
    return np.asarray(
        product if c is None or beta == 0 else product + (c if beta == 1 else beta * c)
    )


@kernel("MatMulInteger", why="speed")
def matmul_integer(
    call: Call, a: Array, b: Array, a_zero: Array | None = None, b_zero: Array | None = None
) -> Array:
    """Zero points: a scalar, one per row of a, or one per column of b. Exact in float64 while
    sums stay below 2**53.
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
    return np.asarray(left @ right).astype(np.int32)
