"""Gelu, HardSigmoid, HardSwish and Softmax from the chains that exporters write."""

from __future__ import annotations

import math
from typing import Any

from onnx import TensorProto

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var
from onnxgrad.laws.composites.conditions import last_axes, near, require, scalar, unchanged
from onnxgrad.rewrite.pattern import Either, P, Pattern, capture
from onnxgrad.rewrite.trace import decline_if
from onnxgrad.rewrite.worklist import count, rewrite

x, y, low, high, axes = capture("x y low high axes")

_FLOAT = frozenset({TensorProto.FLOAT})
_GELU, _SOFTMAX = ("Gelu", 20), ("Softmax", 13)
_HARD_SIGMOID, _HARD_SWISH = ("HardSigmoid", 6), ("HardSwish", 14)


def _of_three(a: Pattern, b: Pattern, c: Pattern) -> Either:
    """a b c, multiplied in any order."""
    orders: Either = (
        P.Mul(a, P.Mul(b, c).only) | P.Mul(b, P.Mul(a, c).only) | P.Mul(c, P.Mul(a, b).only)
    )
    return orders


_HALF = near(0.5, "half")
_ERF = P.Erf(
    P.Div(x, near(math.sqrt(2), "root")).only | P.Mul(x, near(math.sqrt(0.5), "root")).only
).only
_PHI = P.Add(_ERF, near(1.0, "one")).only


@rewrite(_of_three(x, _HALF, _PHI), shrinks=count(), needs=_GELU)
def gelu(x: Var, root: Binding) -> Any:
    """x (1 + erf(x / sqrt 2)) / 2 = Gelu(x)"""
    require(root, _GELU, x, _FLOAT)
    return op.Gelu(x) if unchanged(x, root.out) else None


_CUBE = P.Pow(x, 3.0).only | P.Mul(x, P.Mul(x, x).only).only | P.Mul(x, P.Pow(x, 2.0).only).only
_BENT = P.Add(x, P.Mul(_CUBE, near(0.044715, "third")).only).only
# some exporters write x (1 + 0.044715 x x)
_FACTORED = P.Mul(
    x,
    P.Add(P.Mul(P.Mul(x, x).only | P.Pow(x, 2.0).only, near(0.044715, "third")).only, 1.0).only,
).only
_TANH = P.Tanh(P.Mul(_BENT | _FACTORED, near(math.sqrt(2 / math.pi), "slope")).only).only


@rewrite(_of_three(x, _HALF, P.Add(_TANH, near(1.0, "one")).only), shrinks=count(), needs=_GELU)
def gelu_by_tanh(x: Var, root: Binding) -> Any:
    """x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2 = Gelu(x, approximate=tanh)"""
    require(root, _GELU, x, _FLOAT)
    return op.Gelu(x, approximate="tanh") if unchanged(x, root.out) else None


_MOVED = P.Add(x, near(3.0, "three")).only
# before opset 11 the bounds are attributes
_CLIPPED = P.Clip(_MOVED, low, high).only | P.Clip(_MOVED, min=0.0, max=6.0).only


def _from_0_to_6(low: Var | None, high: Var | None) -> bool:
    return (low is None and high is None) or (scalar(low) == 0 and scalar(high) == 6)


@rewrite(P.Div(_CLIPPED, near(6.0, "six")) | P.Mul(_CLIPPED, near(1 / 6, "sixth")), shrinks=count())
def hard_sigmoid(x: Var, root: Binding, low: Var | None = None, high: Var | None = None) -> Any:
    """Clip(x + 3, 0, 6) / 6 = HardSigmoid(x, alpha=1/6, beta=1/2)"""
    require(root, _HARD_SIGMOID, x, _FLOAT)
    if not _from_0_to_6(low, high) or not unchanged(x, root.out):
        return None
    return op.HardSigmoid(x, alpha=1 / 6, beta=0.5)


_HARD = P.HardSigmoid(y, alpha=capture("alpha"), beta=0.5).only
_WEIGHED = P.Mul(x, _CLIPPED).only
_SIXTH_OF_WEIGHED = P.Div(_WEIGHED, near(6.0, "six")) | P.Mul(_WEIGHED, near(1 / 6, "sixth"))


@rewrite(_SIXTH_OF_WEIGHED, shrinks=count())
def hard_swish_by_hard_sigmoid(
    x: Var, root: Binding, low: Var | None = None, high: Var | None = None
) -> Any:
    """x Clip(x + 3, 0, 6) / 6 = x HardSigmoid(x, alpha=1/6, beta=1/2), below the opset of
    HardSwish
    """
    if root.version >= _HARD_SWISH[1] or not _from_0_to_6(low, high):
        return None
    require(root, _HARD_SIGMOID, x, _FLOAT)
    return x * op.HardSigmoid(x, alpha=1 / 6, beta=0.5) if unchanged(x, root.out) else None


@rewrite(P.Mul(x, _HARD) | _SIXTH_OF_WEIGHED, shrinks=count())
def hard_swish(
    x: Var,
    root: Binding,
    y: Var | None = None,
    alpha: float = 1 / 6,
    low: Var | None = None,
    high: Var | None = None,
) -> Any:
    """x HardSigmoid(x, alpha=1/6, beta=1/2) = HardSwish(x)"""
    if y is not None and (y is not x or not math.isclose(alpha, 1 / 6, rel_tol=1e-6)):
        return None
    if not _from_0_to_6(low, high):
        return None
    require(root, _HARD_SWISH, x, _FLOAT)
    return op.HardSwish(x) if unchanged(x, root.out) else None


_EXP = P.Exp(P.Sub(x, P.ReduceMax(x, axes.maybe).only.named("largest")).only.named("shifted"))


@rewrite(P.Div(y & _EXP, P.ReduceSum(y, capture("over").maybe).only.named("sum")), shrinks=count())
def softmax(x: Var, y: Var, largest: Binding, sum: Binding, root: Binding) -> Any:
    """exp(x - max x) / sum exp(x - max x) = Softmax(x)"""
    require(root, _SOFTMAX, x, _FLOAT)
    decline_if(y.use_count > 2, "its exponential has other readers and would stay")
    axis = last_axes(sum, x.rank)
    decline_if(
        x.rank is None or axis != x.rank - 1 or last_axes(largest, x.rank) != axis,
        "it is not over the last axis, kept as one",
    )
    return op.Softmax(x, axis=-1)


ACTIVATIONS = (
    gelu, gelu_by_tanh, hard_sigmoid, hard_swish_by_hard_sigmoid, hard_swish, softmax
)  # fmt: skip
