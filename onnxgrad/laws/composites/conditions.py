"""Conditions of the laws of this folder: whether an operator may stand in a place, which number a
constant holds, which axes are reduced.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxgrad.ir.attributes import RefAttr
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.types import dtype_name, same_shape
from onnxgrad.ir.var import Var
from onnxgrad.rewrite.pattern import Capture, capture
from onnxgrad.rewrite.trace import decline, decline_if

# how far a constant that a file writes in float32 may be from the number meant
_NEAR = 1e-6


def require(root: Binding, needed: tuple[str, int], x: Var, dtypes: frozenset[int]) -> None:
    """Raises Decline unless the operator may stand in the place of `root`, and onnxruntime has it
    for the dtype of `x`, rounding as the chain does.
    """
    op, opset = needed
    decline_if(
        root.version < opset,
        f"{op} needs opset {opset}, the model has {root.version}: raise it with "
        f"--target-opset {opset}",
    )
    if x.dtype not in dtypes:
        dtype = dtype_name(x.dtype) if x.dtype else "unknown dtypes"
        raise decline(f"onnxruntime has no {op} for {dtype}, or one that rounds otherwise")


def scalar(v: Var | None) -> float | None:
    """The one number that a constant holds, whatever its rank; None for anything else."""
    if v is None or not v.is_constant or v.shape is None or any(d != 1 for d in v.shape):
        return None
    array = v.const
    return None if array is None or array.size != 1 else float(array.reshape(())[()])


def near(number: float, name: str) -> Capture:
    """A capture of a constant that is this number as a file may round it."""

    def is_near(v: Any) -> bool:
        found = scalar(v) if isinstance(v, Var) else None
        return found is not None and bool(np.isclose(found, number, rtol=_NEAR, atol=0.0))

    made: Capture = capture(name)
    return made.where(is_near)


def last_axes(b: Binding, rank: int | None) -> int | None:
    """The first of the last axes that a reduction reduces, all from there on, and keeps as ones;
    None when it is another reduction.
    """
    if not rank or not b.attr("keepdims", 1):
        return None
    axes = b.attrs.get("axes")
    if axes is None and (given := b.operand(1)) is not None:
        axes = given.ints
    if axes is None or isinstance(axes, RefAttr) or not len(axes):
        return None
    found = sorted({int(a) % rank for a in axes})
    first = rank - len(found)
    return first if found == list(range(first, rank)) else None


def normalises(x: Var, axis: int, weight: Var) -> bool:
    """Whether `weight` has the shape of the axes of `x` from `axis` on."""
    return x.shape is not None and same_shape(weight.shape, x.shape[axis:])


def unchanged(x: Var, out: Var) -> bool:
    """Whether the result has the shape of the operand: nothing that was added widened it."""
    return same_shape(x.shape, out.shape)
