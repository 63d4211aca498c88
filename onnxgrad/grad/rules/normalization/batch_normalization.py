"""BatchNormalization: by running statistics, or by those of the batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnxgrad.grad.registry import vjp_all
from onnxgrad.grad.rules._common import as_count, divided
from onnxgrad.grad.rules.normalization._statistics import _rank_of, as_dtype_of, per_channel
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import element_count
from onnxgrad.ir.var import Var


def _batch_norm(
    g: Sequence[Var | None],
    y: Sequence[Var],
    xs: Sequence[Var],
    epsilon: float,
    momentum: float,
    training_mode: int,
    binding: Binding,
    wanted: Sequence[bool],
) -> list[Any]:
    if training_mode:
        return _batch_norm_training(g, xs, epsilon, momentum, binding, wanted)
    if g[0] is None:
        return [None] * len(xs)
    x, scale, _, mean, variance = xs
    rank = _rank_of(x, binding)
    axes = [0, *range(2, rank)]
    g0 = as_dtype_of(g[0], variance)
    inverse = 1.0 / op.Sqrt(variance + epsilon)
    slope = as_dtype_of(scale, inverse) * inverse
    total = op.ReduceSum(g0, axes, keepdims=0) if wanted[2] or wanted[3] else None
    if wanted[1] or wanted[4]:
        along = op.ReduceSum(
            g0 * (as_dtype_of(x, mean) - per_channel(mean, rank)), axes, keepdims=0
        )
    return [
        g0 * per_channel(slope, rank) if wanted[0] else None,
        along * inverse if wanted[1] else None,
        total if wanted[2] else None,
        -(total * slope) if wanted[3] and total is not None else None,
        along * slope * inverse * inverse * -0.5 if wanted[4] else None,
    ]


def _batch_norm_training(
    g: Sequence[Var | None],
    xs: Sequence[Var],
    epsilon: float,
    momentum: float,
    binding: Binding,
    wanted: Sequence[bool],
) -> list[Any]:
    """Of c = x - mean and r = 1 / sqrt(var + epsilon), n elements per channel:

        x: scale r (g - sum(g) / n - c r^2 sum(g c) / n),  scale: r sum(g c),  bias: sum(g)

    Batch statistics are calculated again (they are no outputs); the running ones receive momentum's
    share. Source: Ioffe and Szegedy, 2015.
    """
    x, scale, _, mean_in, _ = xs
    rank = _rank_of(x, binding)
    axes = [0, *range(2, rank)]
    up = as_dtype_of(x, mean_in)
    count = _count(up, mean_in, axes)
    centred = up - op.ReduceMean(up, axes, keepdims=1)
    variance = divided(op.ReduceSum(centred * centred, axes, keepdims=0), count)
    inverse = op.Reciprocal(op.Sqrt(variance + epsilon))
    g0 = None if g[0] is None else as_dtype_of(g[0], mean_in)
    result: list[Any] = [None] * len(xs)
    if g0 is not None:
        total = op.ReduceSum(g0, axes, keepdims=0)
        along = op.ReduceSum(g0 * centred, axes, keepdims=0)
        if wanted[0]:
            # the numbers of a channel are brought together first: four passes over all elements
            slope = as_dtype_of(scale, inverse) * inverse
            mean = divided(slope * total, count)
            tilt = divided(slope * inverse * inverse * along, count)
            moved = centred * per_channel(tilt, rank) + per_channel(mean, rank)
            result[0] = g0 * per_channel(slope, rank) - moved
        result[1] = along * inverse if wanted[1] else None
        result[2] = total if wanted[2] else None
    for i in (1, 2):
        arrived = g[i] if len(g) > i else None
        if arrived is None:
            continue
        result[2 + i] = arrived * momentum if wanted[2 + i] else None
        if wanted[0]:
            part = op.ReduceMean(
                op.Expand(per_channel(arrived, rank), op.Shape(x)) * (1.0 - momentum),
                axes,
                keepdims=1,
            )
            part = divided(part, count) if i == 1 else centred * divided(part * 2.0, count)
            result[0] = op.Expand(part, op.Shape(x)) if result[0] is None else result[0] + part
    return result


def _count(x: Var, statistic: Var, axes: Sequence[int]) -> Var | float:
    """How many elements a channel has."""
    count = element_count(tuple((x.shape or ())[i] for i in axes))
    if count is not None:
        return float(count)
    return as_count(op.Div(op.Size(x), op.Size(statistic)), x)


vjp_all("BatchNormalization", _batch_norm)
