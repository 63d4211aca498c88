"""Operators that keep the elements: Reshape, Squeeze, Transpose, Expand and their kin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from onnxgrad.grad.registry import vjp, zero
from onnxgrad.ir.like import reshape_like
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var

zero("Shape", "Size", "ConstantOfShape", "Constant", "NonZero", "EyeLike")

vjp("Reshape", lambda g, y, x: reshape_like(g, x))
vjp("Flatten", lambda g, y, x: reshape_like(g, x))


def _squeeze(g: Var, y: Var, x: Var, axes: Any) -> Var:
    if axes is None:
        return reshape_like(g, x)
    return op.Unsqueeze(g, axes if isinstance(axes, Var) else list(axes))


vjp("Squeeze", _squeeze)
vjp("Unsqueeze", lambda g, y, x, axes: op.Squeeze(g, axes if isinstance(axes, Var) else list(axes)))


def _transpose(g: Var, y: Var, x: Var, perm: Sequence[int] | None) -> Var:
    if perm is None:
        return op.Transpose(g)
    return op.Transpose(g, perm=[int(i) for i in np.argsort(perm)])


vjp("Transpose", _transpose)
# the engine sums over what was broadcast
vjp("Expand", lambda g, y, x: g, broadcasts=True)
