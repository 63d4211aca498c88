"""AffineGrid: every point of the grid is theta times a fixed homogeneous point."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from onnxgrad.errors import InputError
from onnxgrad.grad.registry import vjp
from onnxgrad.grad.rules._common import pad
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission.constant import constant
from onnxgrad.ir.like import with_type_of
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import Dim
from onnxgrad.ir.var import Var


def _affine_grid(
    g: Var, y: Var, theta: Var, size: tuple[int, ...] | Var, align_corners: int, binding: Binding
) -> Var:
    """grid[n, p] = theta[n] (p, 1), so theta_grad[n] = sum_p g[n, p] (p, 1)^T; the p are the
    identity's own grid.
    """
    if isinstance(size, Var):
        rank: Dim = size.shape[0] if size.shape else None
        single = op.Concat(
            constant(np.array([1])), op.Slice(size, [1], [np.iinfo(np.int64).max]), axis=0
        )
    else:
        rank, single = len(size), constant(np.array([1, *size[1:]]))
    if not isinstance(rank, int):
        raise InputError(
            f"the gradient of '{binding}' needs to know how many axes the grid has: "
            "declare size's shape"
        )
    d = rank - 2
    # in a type that onnxruntime has a kernel for: where it opens the body for another it fails on a
    # constant operand
    dtype = np.float64 if theta.dtype == TensorProto.DOUBLE else np.float32
    grid = op.AffineGrid(
        constant(np.eye(d, d + 1, dtype=dtype)[None]), single, align_corners=align_corners
    )
    points = op.Reshape(op.CastLike(grid, theta), [-1, d])
    homogeneous = pad(points, [0, 1], [1], 1.0)
    cotangents = op.Reshape(g, [0, -1, d])
    found = op.MatMul(op.Transpose(cotangents, perm=[0, 2, 1]), homogeneous)
    return with_type_of(found, theta)


vjp("AffineGrid", _affine_grid)
