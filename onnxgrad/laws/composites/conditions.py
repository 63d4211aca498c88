"""Conditions that the rules of this folder share: dtypes and opsets, constants, reduced axes."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxgrad.ir.attributes import RefAttr
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.types import dtype_name, same_shape
from onnxgrad.ir.var import Var
from onnxgrad.rewrite.pattern import Capture, capture
from onnxgrad.rewrite.trace import decline, decline_if

# relative error of a constant that a file stores in float32
_NEAR = 1e-6


def require(root: Binding, needed: tuple[str, int], x: Var, dtypes: frozenset[int]) -> None:
    """Raises Decline unless the operator exists at the opset of `root`, and onnxruntime has it for
    the dtype and the sizes of `x` and rounds as the chain does.
    """
    op, opset = needed
    decline_if(
        root.version < opset,
        f"{op} needs opset {opset}, the model has {root.version}: raise it with "
        f"--target-opset {opset}",
    )
    if x.dtype not in dtypes:
        dtype = dtype_name(x.dtype) if x.dtype else "unknown dtypes"
        raise decline(f"onnxruntime has no {op} for {dtype}, or its kernel rounds differently")
    require_elements(op, x)


def require_elements(op: str, *values: Var) -> None:
    """Raises Decline if a value is known to be empty: kernels of composites refuse such values."""
    for v in values:
        decline_if(0 in (v.shape or ()), f"onnxruntime has no {op} of {v.name}, which is empty")


def scalar(v: Var | None) -> float | None:
    """Returns the one number of a constant of any rank; None for anything else."""
    if v is None or not v.is_constant or v.shape is None or any(d != 1 for d in v.shape):
        return None
    array = v.const
    return None if array is None or array.size != 1 else float(array.reshape(())[()])


def near(number: float, name: str) -> Capture:
    """Returns a capture of a constant equal to this number, as a file may round it."""

    def is_near(v: Any) -> bool:
        found = scalar(v) if isinstance(v, Var) else None
        return found is not None and bool(np.isclose(found, number, rtol=_NEAR, atol=0.0))

    made: Capture = capture(name)
    return made.where(is_near)


def last_axes(b: Binding, rank: int | None) -> int | None:
    """Returns the first reduced axis if a reduction reduces all axes from there on and keeps them
    as ones; None for another reduction.
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
    """Whether the result has the shape of the operand: no added value widened it."""
    return same_shape(x.shape, out.shape)
