"""Det: the matrix of cofactors, of each matrix of the batch, singular ones included.

Jacobi's formula: d det(A) = sum of cofactor(A)_ij dA_ij. `det * inverse^T` is the same only where A
is invertible; here every cofactor is the determinant of a minor, all in one batched Det. n^4
numbers for n x n.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from onnxgrad.errors import InputError
from onnxgrad.grad.registry import vjp
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission.constant import constant
from onnxgrad.ir.like import expand_like
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var


def _det(g: Var, y: Var, x: Var, binding: Binding) -> Var:
    if x.rank is None:
        raise InputError(
            f"the gradient of '{binding}' needs the rank of its input, which shape inference does "
            "not know"
        )
    lead = x.rank - 2
    adjoint = op.Unsqueeze(g, [-2, -1])
    n = x.shape[-1] if x.shape is not None and isinstance(x.shape[-1], int) else None
    if n == 1:
        return expand_like(adjoint, x)
    rows, signs = _minor_indices(x, n)
    minors = op.Gather(op.Gather(x, rows, axis=lead), rows, axis=lead + 2)
    batch = list(range(lead))
    minors = op.Transpose(minors, perm=[*batch, lead, lead + 2, lead + 1, lead + 3])
    return adjoint * (op.Det(minors) * signs)


def _minor_indices(x: Var, n: int | None) -> tuple[Var, Var]:
    """(n, n - 1): the rows left when row i goes; (n, n): the checkerboard of signs."""
    if n is not None:
        i, k = np.arange(n)[:, None], np.arange(n - 1)[None, :]
        signs = np.where((np.arange(n)[:, None] + np.arange(n)) % 2, -1.0, 1.0)
        return constant((k + (k >= i)).astype(np.int64)), constant(signs, x.dtype)
    size = op.Squeeze(op.Shape(x, start=-1), [0])
    zero, one = constant(np.int64(0)), constant(np.int64(1))
    row = op.Unsqueeze(op.Range(zero, size, one), [1])
    column = op.Unsqueeze(op.Range(zero, op.Sub(size, one), one), [0])
    left = op.Add(column, op.Cast(op.GreaterOrEqual(column, row), to=TensorProto.INT64))
    odd = op.Mod(op.Add(row, op.Transpose(row, perm=[1, 0])), constant(np.int64(2)))
    return left, 1.0 - 2.0 * op.Cast(odd, to=x.dtype)


vjp("Det", _det, notes="the cofactors, so singular matrices too")
