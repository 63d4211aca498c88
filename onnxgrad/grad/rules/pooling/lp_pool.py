"""LpPool and GlobalLpPool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from onnxgrad.grad.registry import vjp
from onnxgrad.grad.rules._common import where
from onnxgrad.grad.rules._geometry import geometry, onto_long, spatial
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission.constant import constant
from onnxgrad.ir.like import reshape_like
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import numpy_dtype
from onnxgrad.ir.var import Var


def _lp_slope(share: Var, y: Var, x: Var, p: int) -> Var:
    """share sign(x) |x|^(p-1), where share is g y^(1-p) brought to x."""
    if p == 1:
        return share * op.Sign(x)
    return share * x if p == 2 else share * op.Sign(x) * op.Pow(op.Abs(x), float(p - 1))


def _lp_share(g: Var, y: Var, p: int) -> Var:
    """g y^(1-p), and 0 where the norm is 0."""
    if p == 1:
        return g
    empty = op.Equal(y, 0.0)
    return where(empty, 0.0, g / op.Pow(where(empty, 1.0, y), float(p - 1)))


def _global_lp(g: Var, y: Var, x: Var, p: int) -> Var:
    return _lp_slope(_lp_share(g, y, p), y, x, p)


vjp("GlobalLpPool", _global_lp, notes="0 where the norm is 0")


def _lp_pool(g: Var, y: Var, x: Var, kernel_shape: Sequence[int], p: int, binding: Binding) -> Var:
    """Each window's share goes to all its elements, each channel an image of its own."""
    geo = geometry(binding, kernel_shape, x, y)
    share = _lp_share(g, y, p)
    sizes = spatial(y)
    one_channel = np.array([-1, 1], np.int64)
    images: Any = (
        [-1, 1, *sizes]
        if sizes is not None
        else op.Concat(one_channel, op.Shape(y, start=2), axis=0)
    )
    ones = constant(np.ones((1, 1, *kernel_shape), numpy_dtype(x.dtype)))
    spread = reshape_like(onto_long(op.Reshape(share, images), ones, x, geo, 1), x)
    return _lp_slope(spread, y, x, p)


vjp("LpPool", _lp_pool, notes="0 where the norm is 0")
