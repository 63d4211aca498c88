"""RMSNormalization and LayerNormalization from the chains that exporters write, and the chain that
onnxruntime fuses itself.
"""

from __future__ import annotations

from typing import Any

from onnx import TensorProto

from onnxgrad.ir.binding import Binding
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var
from onnxgrad.laws.composites.conditions import last_axes, normalises, require, scalar
from onnxgrad.rewrite.pattern import Call, Either, P, Pattern, capture
from onnxgrad.rewrite.trace import decline, decline_if
from onnxgrad.rewrite.worklist import count, rewrite

x, w, b, d, eps, axes, over, to, wide, a, e = capture("x w b d eps axes over to wide a e")

# the operators compute in float32 for every dtype of their input
_FLOATS = frozenset({TensorProto.FLOAT})
_HALF = frozenset({TensorProto.FLOAT16})
_RMS, _LAYER = ("RMSNormalization", 23), ("LayerNormalization", 17)


def _over_root(a: Pattern, mean: str) -> Either:
    """a / sqrt(mean(a a) + eps) in all its spellings; `mean` labels the reduction."""
    square = P.Pow(a, 2.0) | P.Mul(a, a)
    moment = P.Add(P.ReduceMean(square, axes.maybe).named(mean).only, eps).only
    root = P.Sqrt(moment).only
    inverse = P.Reciprocal(root).only | P.Div(1.0, root).only | P.Pow(moment, -0.5).only
    divided: Call = P.Div(a, root).only
    either: Either = divided | P.Mul(a, inverse).only
    return either


@rewrite(P.Mul(w, _over_root(x, "mean")), shrinks=count(), needs=_RMS)
def rms_normalization(x: Var, w: Var, eps: Var, mean: Binding, root: Binding) -> Any:
    """x / sqrt(mean(x x) + eps) w = RMSNormalization(x, w)"""
    return _rms(x, w, eps, mean, root)


@rewrite(P.Mul(w, P.Cast(_over_root(wide, "mean"), to=to).only), shrinks=count(), needs=_RMS)
def rms_normalization_in_float(wide: Var, w: Var, eps: Var, mean: Binding, root: Binding) -> Any:
    """Cast(u / sqrt(mean(u u) + eps)) w = RMSNormalization(x, w), where u is x in float32"""
    cast = wide.definition
    half = None if cast is None or not cast.is_op("Cast") else cast.inputs[0]
    if half is None or half.dtype not in _HALF or wide.dtype != TensorProto.FLOAT:
        return decline("it computes in float32, but its operand is not float16")
    return _rms(half, w, eps, mean, root) if w.dtype == half.dtype else None


def _rms(x: Var, w: Var, eps: Var, mean: Binding, root: Binding) -> Any:
    require(root, _RMS, x, _HALF if mean.out.dtype != x.dtype else _FLOATS)
    axis, epsilon = _measured(x, eps, mean)
    decline_if(
        not normalises(x, axis, w), f"its weight {w.name} is not a vector over the normalised axes"
    )
    return _widened(op.RMSNormalization(x, w, axis=axis - (x.rank or 0), epsilon=epsilon), eps)


_CENTRED = d & P.Sub(x, P.ReduceMean(x, over.maybe).named("first"))


@rewrite(P.Mul(w, _over_root(_CENTRED, "mean")), shrinks=count(), needs=_LAYER)
def layer_normalization(
    x: Var, w: Var, eps: Var, mean: Binding, first: Binding, root: Binding
) -> Any:
    """d / sqrt(mean(d d) + eps) w = LayerNormalization(x, w), where d = x - mean(x)"""
    require(root, _LAYER, x, _FLOATS)
    axis, epsilon = _measured(x, eps, mean)
    decline_if(last_axes(first, x.rank) != axis, "its two means are over different axes")
    decline_if(
        not normalises(x, axis, w), f"its weight {w.name} is not a vector over the normalised axes"
    )
    return _widened(op.LayerNormalization(x, w, axis=axis - (x.rank or 0), epsilon=epsilon), eps)


def _widened(y: Var, eps: Var) -> Var:
    """Returns the value with the axes that an epsilon of higher rank than the input adds in front.
    onnxruntime, which fuses such a chain, drops them.
    """
    missing = (eps.rank or 0) - (y.rank or 0)
    return op.Unsqueeze(y, list(range(missing))) if missing > 0 else y


_WITHOUT_BIAS = P.LayerNormalization(x, w).only.named("norm")


@rewrite(P.Add(_WITHOUT_BIAS, b), shrinks=count())
def bias_of_layer_normalization(x: Var, w: Var, b: Var, norm: Binding) -> Any:
    """LayerNormalization(x, w) + b = LayerNormalization(x, w, b)"""
    axis = int(norm.attr("axis"))
    if norm.has_refs or not x.rank or b.dtype != w.dtype or norm.result(1) or norm.result(2):
        return None
    decline_if(
        not normalises(x, axis % x.rank, b),
        f"its bias {b.name} is not a vector over the normalised axes",
    )
    return op.LayerNormalization(x, w, b, **norm.attrs)


def _measured(x: Var, eps: Var, mean: Binding) -> tuple[int, float]:
    """Returns the first normalised axis and epsilon. Raises Decline."""
    axis = last_axes(mean, x.rank)
    if axis is None:
        raise decline("its mean is not over the last axes, kept as ones")
    epsilon = scalar(eps)
    if epsilon is None or epsilon < 0:
        raise decline("its epsilon is not a constant number")
    return axis, epsilon


_MEAN_SQUARE = P.ReduceMean(P.Pow(x, 2.0).only, a.maybe).only.named("mean")
_OVER_ROOT = P.Sqrt(P.Add(_MEAN_SQUARE, e).only).only.named("rms")


@rewrite(
    P.Mul(x, P.Reciprocal(_OVER_ROOT).only | P.Div(1.0, _OVER_ROOT).only), shrinks=count("Mul")
)
def over_root_mean_square(x: Var, mean: Binding, rms: Binding, root: Binding) -> Any:
    """x (1 / sqrt(mean(x^2) + e)) = x / sqrt(mean(x^2) + e), if a scale follows

    The result rounds once less, and onnxruntime's CPU and CUDA providers fuse it into
    SimplifiedLayerNormalization: a Llama runs in 0.90 and a T5 in 0.80 of the time (version 1.31,
    one thread).
    """
    scale, axes = root.out.sole_user(), mean.operand(1)
    if scale is None or not scale.is_op("Mul"):
        return decline("no scale follows, so onnxruntime would not know it")
    over = mean.attr("axes") if axes is None else axes.ints
    if not mean.attr("keepdims", 1) or over is None or not x.rank:
        return decline("the mean is not over the last axis")
    decline_if(
        [i % x.rank for i in over] != [x.rank - 1] or x.shape != root.out.shape,
        "the mean is not over the last axis",
    )
    return op.Div(x, rms.out)
