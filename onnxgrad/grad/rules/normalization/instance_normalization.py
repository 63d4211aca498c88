"""InstanceNormalization."""

from __future__ import annotations

from collections.abc import Sequence

from onnxgrad.grad.registry import vjp
from onnxgrad.grad.rules._common import multiplied, reduced_count
from onnxgrad.grad.rules.normalization._statistics import _rank_of, per_channel
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var


def _instance_parts(g: Var, x: Var, epsilon: float, axes: Sequence[int]) -> tuple[Var, Var, Var]:
    """x - mean, 1 / sqrt(var + eps), and the mean of g times the normalized input, of each instance
    and channel.
    """
    centred = x - op.ReduceMean(x, axes, keepdims=1)
    inverse = op.Reciprocal(op.Sqrt(op.ReduceMean(centred * centred, axes, keepdims=1) + epsilon))
    return centred, inverse, op.ReduceMean(g * centred, axes, keepdims=1) * inverse


def _instance_norm_x(
    g: Var, y: Var, x: Var, scale: Var, bias: Var, epsilon: float, binding: Binding
) -> Var:
    """(g - mean(g) - hat mean(g hat)) scale / sqrt(var + eps), where hat is the normalized input,
    which is not written out: what multiplies the elements is made of one number per channel.
    """
    rank = _rank_of(x, binding)
    axes = list(range(2, rank))
    centred, inverse, along = _instance_parts(g, x, epsilon, axes)
    flat = g - op.ReduceMean(g, axes, keepdims=1)
    return (flat - centred * (along * inverse)) * (per_channel(scale, rank) * inverse)


def _instance_norm_scale(
    g: Var, y: Var, x: Var, scale: Var, bias: Var, epsilon: float, binding: Binding
) -> Var:
    rank = _rank_of(x, binding)
    axes = list(range(2, rank))
    _, _, along = _instance_parts(g, x, epsilon, axes)
    return multiplied(op.ReduceSum(along, [0, *axes], keepdims=0), reduced_count(x, along, axes))


vjp(
    "InstanceNormalization",
    _instance_norm_x,
    _instance_norm_scale,
    lambda g, y, x, scale, bias, binding: op.ReduceSum(
        g, [0, *range(2, _rank_of(x, binding))], keepdims=0
    ),
)
