"""Relu and Clip in a row. Both hand NaN on and treat a zero in the same way: one of them is bit
for bit the two.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import numpy_dtype
from onnxgrad.ir.var import Var
from onnxgrad.laws.noops import x_or_identity
from onnxgrad.rewrite.pattern import P, capture
from onnxgrad.rewrite.trace import Decline, decline
from onnxgrad.rewrite.worklist import count, rewrite

x, a, b, c, d, y, i, j, p, q, w, v, axes = capture("x a b c d y i j p q w v axes")

# numpy and onnxruntime agree on these
_DTYPES = frozenset({TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16})


@rewrite(P.Relu(P.Relu(x).named("inner")), shrinks=count("Relu"))
def relu_of_relu(x: Var, inner: Binding, root: Binding) -> Any:
    """Relu(Relu(x)) = Relu(x)"""
    return x_or_identity(root, inner.out)


@rewrite(P.Relu(P.Clip(x, a.maybe, b.maybe).only.named("inner")), shrinks=count("Relu"))
def relu_of_clip(x: Var, inner: Binding, root: Binding) -> Any:
    """Relu(Clip(x, a, b)) = Clip(x, max(a, 0), b)"""
    return _clipped(x, inner, _bounds(inner), (0.0, None))


@rewrite(P.Clip(P.Relu(x).only, a.maybe, b.maybe), shrinks=count("Relu"))
def clip_of_relu(x: Var, root: Binding) -> Any:
    """Clip(Relu(x), a, b) = Clip(x, max(a, 0), b)"""
    return _clipped(x, root, (0.0, None), _bounds(root))


@rewrite(
    P.Clip(P.Clip(x, a.maybe, b.maybe).only.named("inner"), c.maybe, d.maybe), shrinks=count("Clip")
)
def clip_of_clip(x: Var, inner: Binding, root: Binding) -> Any:
    """Clip(Clip(x, a, b), c, d) = Clip(x, max(a, c), min(b, d)), for constant bounds whose
    intervals meet
    """
    return _clipped(x, root, _bounds(inner), _bounds(root))


# the lower and the upper bound; None: none is written
_Bounds = tuple[Any, Any]


def _bounds(clip: Binding) -> _Bounds | Decline:
    """The constant bounds of a Clip."""
    if clip.version < 11:
        return clip.attr("min"), clip.attr("max")
    found = []
    for v in (clip.operand(1), clip.operand(2)):
        value = None if v is None or v.shape not in ((), (1,)) else v.const
        if v is not None and value is None:
            return decline("a bound is no constant")
        found.append(None if value is None else value.item())
    return found[0], found[1]


def _clipped(x: Var, clip: Binding, inner: _Bounds | Decline, outer: _Bounds | Decline) -> Any:
    """Clip(x) to both intervals, at the opset of `clip`."""
    for bounds in (inner, outer):
        if isinstance(bounds, Decline):
            return bounds
    if x.dtype not in _DTYPES:
        return decline("not a floating-point type whose Clip and Relu are known to agree")
    lows, highs = ([v for v in pair if v is not None] for pair in zip(inner, outer))  # type: ignore[arg-type]  # checked
    low, high = max(lows, default=None), min(highs, default=None)
    in_order = all(_in_order(bounds, x.dtype) for bounds in (inner, outer, (low, high)))
    if not in_order or _signs(lows) > 1 or _signs(highs) > 1:
        return decline("the intervals do not meet, or zeros of both signs are bounds")
    if clip.version < 11:
        return op.Clip(x, **{name: v for name, v in (("min", low), ("max", high)) if v is not None})
    kind = numpy_dtype(x.dtype)
    return op.Clip(x, *(None if v is None else np.asarray(v, kind) for v in (low, high)))


def _in_order(bounds: Any, dtype: int) -> bool:
    """The bounds are numbers, the lower one below the upper one; one that is not written is the
    dtype's extreme.
    """
    extreme: Any = np.finfo(numpy_dtype(dtype))
    low, high = (
        e if v is None else v for v, e in zip(bounds, (float(extreme.min), float(extreme.max)))
    )
    return bool(low < high)  # false for NaN, too


def _signs(bounds: list[Any]) -> int:
    """How many different zeros there are among the bounds."""
    return len({bool(np.signbit(v)) for v in bounds if v == 0})
