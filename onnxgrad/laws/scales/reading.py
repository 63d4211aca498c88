"""How the scale that a Mul or Div applies is read off it: from a constant, or known only at run
time.
"""

from __future__ import annotations

import numpy as np

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.types import FLOAT_DTYPES, Array, same_dim
from onnxgrad.ir.var import Var
from onnxgrad.laws.scales.run_time import RunTimeScale
from onnxgrad.laws.scales.scale import Scale, fixed
from onnxgrad.rewrite.pattern import capture
from onnxgrad.rewrite.trace import decline


def _has_one_axis(v: Var) -> bool:
    """At most one axis of more than one element, as far as that is known."""
    return v.shape is None or len(v.shape) - v.shape.count(1) <= 1


# what may be a scale, at a glance
per_channel = capture("s").where(_has_one_axis)


def channel_vector(c: Var, y: Var) -> tuple[Array, int | None] | None:
    """A constant operand beside `y` as (values, axis of y): (C,) along one axis that y has in full,
    or () and None.

    None when it is something else: not constant, several axes, or it would widen `y`.
    """
    array = c.const
    if (
        array is None
        or y.shape is None
        or c.dtype not in FLOAT_DTYPES
        or array.ndim > len(y.shape)
        or not array.size
    ):
        return None
    offset = len(y.shape) - array.ndim
    axes = [i for i, d in enumerate(array.shape) if d != 1]
    if len(axes) > 1 or (axes and y.shape[axes[0] + offset] != array.shape[axes[0]]):
        return None
    if not axes:
        # (1, 1, 1) beside (N, 1, H, W) is the vector of its one channel; anything shorter is a
        # scalar
        single = array.ndim >= 2 and y.shape[offset] == 1
        return (array.reshape(-1), offset) if single else (array.reshape(()), None)
    return array.reshape(-1), axes[0] + offset


def _at_run_time(root: Binding, y: Var, s: Var, scalars: bool, runtime: bool) -> Scale | None:
    """The scale of an `s` that is not constant and has one axis of more than one element, which
    `y` has as well.
    """
    known = s.shape is not None and y.shape is not None and s.dtype in FLOAT_DTYPES
    if (
        s.is_constant
        or s.shape is None
        or y.shape is None
        or not known
        or not len(s.shape) <= len(y.shape) > 1
    ):
        return None
    axes = [i for i, d in enumerate(s.shape) if d != 1]
    if not axes and scalars and runtime and root.op == "Mul":
        return RunTimeScale.one(s)
    if len(axes) != 1 or not same_dim(s.shape[axes[0]], y.shape[axes[0] - len(s.shape)]):
        return None
    n = s.shape[axes[0]]
    if not runtime:
        raise decline(
            f"{s.name} is computed at run time: without runtime=true only what the file fixes moves"
        )
    if root.op == "Div":
        raise decline(
            f"{s.name} is computed at run time and may be zero, so nothing is divided by "
            "it beforehand"
        )
    if not isinstance(n, int):
        raise decline(f"{s.name} is computed at run time and has an unknown number of channels")
    return RunTimeScale.of(s, n, axes[0] - len(s.shape) + len(y.shape))


def read_scale(root: Binding, y: Var, s: Var, scalars: bool, runtime: bool) -> Scale | None:
    """The scale that `root` (a Mul or Div) applies to `y`; None when `s` is no per-channel factor.

    Declines where a factor is not finite, and for one factor per channel that is computed at run
    time, unless `runtime` asks for those too.
    """
    found = channel_vector(s, y)
    if found is None and not fixed(y):
        return _at_run_time(root, y, s, scalars, runtime)
    if found is None or fixed(y):
        return None
    factors, axis = found
    if axis is None and not scalars:
        return None
    divide = root.op == "Div"
    if not np.isfinite(factors).all() or (divide and not factors.all()):
        raise decline("a factor is not finite")
    return Scale(factors, axis, divide)
