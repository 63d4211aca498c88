"""Softmax and the normalizations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnxgrad.errors import InputError
from onnxgrad.grad.registry import vjp, vjp_all
from onnxgrad.ir.block import Binding, Var
from onnxgrad.ir.ops import op


def _softmax(g: Var, y: Var, x: Var, axis: int) -> Var:
    if _is_selected(y):
        y = op.Where(op.IsNaN(y), 0.0, y)
    result: Var = y * (g - op.ReduceSum(g * y, [axis], keepdims=1))
    return result


def _is_selected(y: Var) -> bool:
    """Whether a Where picks from `y`: a row of -inf alone is NaN, and Attention's body puts zeros in its place."""
    seen = list(y.users)
    while seen:
        user = seen.pop()
        if user.op in ("Where", "IsNaN"):
            return True
        if user.op in ("Cast", "CastLike", "Identity"):
            seen.extend(user.out.users)
    return False


vjp("Softmax", _softmax, notes="rows that are NaN and replaced by a Where pass nothing")
vjp("LogSoftmax", lambda g, y, x, axis: g - op.Exp(y) * op.ReduceSum(g, [axis], keepdims=1))

# ---- LayerNormalization: its own Mean and InvStdDev are read, adjoints of these outputs included ----------------


def _as(v: Var, like: Var) -> Var:
    """Statistics may be float32 where the data are float16: calculate there, the engine casts back."""
    return v if v.dtype == like.dtype else op.Cast(v, to=like.dtype)


def _normalized(y: Sequence[Var], x: Var) -> Var:
    return (_as(x, y[1]) - y[1]) * y[2]


def _layer_norm_axes(x: Var, axis: int, binding: Binding) -> list[int]:
    if x.rank is None:
        if axis < 0:
            return list(range(axis, 0))
        raise InputError(
            f"the gradient of '{binding}' needs the rank of its input, which shape inference does not know"
        )
    return list(range(axis % x.rank, x.rank))


def _layer_norm_x(
    g: Sequence[Var | None], y: Sequence[Var], x: Var, scale: Var, bias: Var | None, axis: int, binding: Binding
) -> Var:
    axes = _layer_norm_axes(x, axis, binding)
    hat, inverse = _normalized(y, x), y[2]
    total: Var | None = None
    if g[0] is not None:
        h = _as(g[0], inverse) * _as(scale, inverse)
        along = hat * op.ReduceMean(h * hat, axes, keepdims=1)
        total = (h - op.ReduceMean(h, axes, keepdims=1) - along) * inverse
    if len(g) > 1 and g[1] is not None:  # of the mean
        part = g[1] * op.ReduceMean(op.Sign(hat) * 0.0 + 1.0, axes, keepdims=1)
        total = _plus(total, _spread(part, hat, axes))
    if len(g) > 2 and g[2] is not None:  # of 1 / sqrt(var + eps): d = -inverse^2 hat / n
        part = -(g[2] * inverse * inverse)
        total = _plus(total, _spread(part, hat, axes) * hat)
    if total is None:
        raise InputError(f"no adjoint arrived at '{binding}'")
    return total


def _plus(a: Var | None, b: Var) -> Var:
    return b if a is None else a + b


def _spread(part: Var, like: Var, axes: Sequence[int]) -> Var:
    """`part` divided evenly over the elements along `axes`."""
    ones = op.Sign(op.Abs(like) + 1.0)
    return part * (ones / op.ReduceSum(ones, list(axes), keepdims=1))


vjp(
    "LayerNormalization",
    _layer_norm_x,
    lambda g, y, x, scale, bias: None if g[0] is None else _as(g[0], y[2]) * _normalized(y, x),
    lambda g, y, x, scale, bias: g[0],
    broadcasts=True,
)


# ---- BatchNormalization: running statistics, or those of the batch -------------------------------------------------


def _per_channel(v: Var, rank: int) -> Var:
    """(C,) as (C, 1, ...), to broadcast against (N, C, ...)."""
    return op.Unsqueeze(v, list(range(1, rank - 1))) if rank > 2 else v


def _rank(x: Var, binding: Binding) -> int:
    if x.rank is None:
        raise InputError(
            f"the gradient of '{binding}' needs the rank of its input, which shape inference does not know"
        )
    return x.rank


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
    rank = _rank(x, binding)
    axes = [0, *range(2, rank)]
    g0 = _as(g[0], variance)
    inverse = 1.0 / op.Sqrt(variance + epsilon)
    slope = _as(scale, inverse) * inverse
    total = op.ReduceSum(g0, axes, keepdims=0) if wanted[2] or wanted[3] else None
    if wanted[1] or wanted[4]:
        along = op.ReduceSum(g0 * (_as(x, mean) - _per_channel(mean, rank)), axes, keepdims=0)
    return [
        g0 * _per_channel(slope, rank) if wanted[0] else None,
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
    """Batch statistics are calculated again (they are no outputs); the running ones receive momentum's share."""
    x, scale, _, mean_in, variance_in = xs
    rank = _rank(x, binding)
    axes = [0, *range(2, rank)]
    up = _as(x, mean_in)
    centred = up - op.ReduceMean(up, axes, keepdims=1)
    inverse = op.Reciprocal(op.Sqrt(op.ReduceMean(centred * centred, axes, keepdims=1) + epsilon))
    hat = centred * inverse
    g0 = None if g[0] is None else _as(g[0], mean_in)
    result: list[Any] = [None] * len(xs)
    if g0 is not None:
        if wanted[0]:
            slope = _per_channel(_as(scale, inverse), rank) * inverse
            flat = g0 - op.ReduceMean(g0, axes, keepdims=1)
            result[0] = (flat - hat * op.ReduceMean(g0 * hat, axes, keepdims=1)) * slope
        result[1] = op.ReduceSum(g0 * hat, axes, keepdims=0) if wanted[1] else None
        result[2] = op.ReduceSum(g0, axes, keepdims=0) if wanted[2] else None
    for i, running in enumerate((mean_in, variance_in), 1):
        arrived = g[i] if len(g) > i else None
        if arrived is None:
            continue
        result[2 + i] = arrived * momentum if wanted[2 + i] else None
        if wanted[0]:
            part = op.ReduceMean(
                op.Expand(_per_channel(arrived, rank), op.Shape(x)) * (1.0 - momentum), axes, keepdims=1
            )
            count = op.Cast(op.Div(op.Size(x), op.Size(running)), to=running.dtype)
            part = part / count if i == 1 else centred * (part * 2.0 / count)
            result[0] = op.Expand(part, op.Shape(x)) if result[0] is None else result[0] + part
    return result


vjp_all("BatchNormalization", _batch_norm)

# ---- InstanceNormalization ------------------------------------------------------------------------------------------


def _instance_parts(x: Var, epsilon: float, axes: Sequence[int]) -> tuple[Var, Var]:
    """The normalized input and 1 / sqrt(var + eps) of each instance and channel."""
    centred = x - op.ReduceMean(x, axes, keepdims=1)
    inverse = op.Reciprocal(op.Sqrt(op.ReduceMean(centred * centred, axes, keepdims=1) + epsilon))
    return centred * inverse, inverse


def _instance_norm_x(g: Var, y: Var, x: Var, scale: Var, bias: Var, epsilon: float, binding: Binding) -> Var:
    rank = _rank(x, binding)
    axes = list(range(2, rank))
    hat, inverse = _instance_parts(x, epsilon, axes)
    flat = g - op.ReduceMean(g, axes, keepdims=1)
    return (flat - hat * op.ReduceMean(g * hat, axes, keepdims=1)) * (_per_channel(scale, rank) * inverse)


def _instance_norm_scale(g: Var, y: Var, x: Var, scale: Var, bias: Var, epsilon: float, binding: Binding) -> Var:
    rank = _rank(x, binding)
    hat, _ = _instance_parts(x, epsilon, list(range(2, rank)))
    return op.ReduceSum(g * hat, [0, *range(2, rank)], keepdims=0)


vjp(
    "InstanceNormalization",
    _instance_norm_x,
    _instance_norm_scale,
    lambda g, y, x, scale, bias, binding: op.ReduceSum(g, [0, *range(2, _rank(x, binding))], keepdims=0),
)
