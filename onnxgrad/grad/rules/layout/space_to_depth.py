"""SpaceToDepth and DepthToSpace, each the other's adjoint."""

from __future__ import annotations

import numpy as np

from onnxgrad.grad.registry import vjp
from onnxgrad.ir.like import reshape_like
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var

vjp(
    "SpaceToDepth",
    lambda g, y, x, blocksize, mode="DCR": op.DepthToSpace(g, blocksize=blocksize, mode=mode),
)


def _depth_to_space(g: Var, y: Var, x: Var, blocksize: int, mode: str) -> Var:
    """DCR: SpaceToDepth; CRD: the blocks' axes come after the channels."""
    packed = op.SpaceToDepth(g, blocksize=blocksize)
    if mode == "DCR":
        return packed
    # packed channels are (block row, block column, channel), CRD wants (channel, block row, block
    # column)
    n, h, w = (op.Shape(packed, start=i, end=i + 1) for i in (0, 2, 3))
    split = op.Reshape(
        packed, op.Concat(n, np.array([blocksize * blocksize, -1], np.int64), h, w, axis=0)
    )
    return reshape_like(op.Transpose(split, perm=[0, 2, 1, 3, 4]), x)


vjp("DepthToSpace", _depth_to_space)
