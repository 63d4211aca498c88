"""InstanceNormalization."""

from __future__ import annotations

from collections.abc import Sequence

from onnxgrad.grad.registry import vjp
from onnxgrad.grad.rules.normalization._statistics import per_channel, rank_of
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var


def _instance_parts(x: Var, epsilon: float, axes: Sequence[int]) -> tuple[Var, Var]:
    """The normalized input and 1 / sqrt(var + eps) of each instance and channel."""
    centred = x - op.ReduceMean(x, axes, keepdims=1)
    inverse = op.Reciprocal(op.Sqrt(op.ReduceMean(centred * centred, axes, keepdims=1) + epsilon))
    return centred * inverse, inverse


def _instance_norm_x(
    g: Var, y: Var, x: Var, scale: Var, bias: Var, epsilon: float, binding: Binding
) -> Var:
    rank = rank_of(x, binding)
    axes = list(range(2, rank))
    hat, inverse = _instance_parts(x, epsilon, axes)
    flat = g - op.ReduceMean(g, axes, keepdims=1)
    return (flat - hat * op.ReduceMean(g * hat, axes, keepdims=1)) * (
        per_channel(scale, rank) * inverse
    )


def _instance_norm_scale(
    g: Var, y: Var, x: Var, scale: Var, bias: Var, epsilon: float, binding: Binding
) -> Var:
    rank = rank_of(x, binding)
    hat, _ = _instance_parts(x, epsilon, list(range(2, rank)))
    return op.ReduceSum(g * hat, [0, *range(2, rank)], keepdims=0)


vjp(
    "InstanceNormalization",
    _instance_norm_x,
    _instance_norm_scale,
    lambda g, y, x, scale, bias, binding: op.ReduceSum(
        g, [0, *range(2, rank_of(x, binding))], keepdims=0
    ),
)
