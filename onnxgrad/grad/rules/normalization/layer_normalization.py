"""LayerNormalization: its own Mean and InvStdDev are read, adjoints of these outputs included."""

from __future__ import annotations

from collections.abc import Sequence

from onnxgrad.errors import InputError
from onnxgrad.grad.registry import vjp
from onnxgrad.grad.rules.normalization._statistics import as_dtype_of, plus, spread
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var


def _normalized(y: Sequence[Var], x: Var) -> Var:
    return (as_dtype_of(x, y[1]) - y[1]) * y[2]


def _layer_norm_axes(x: Var, axis: int, binding: Binding) -> list[int]:
    if x.rank is None:
        if axis < 0:
            return list(range(axis, 0))
        raise InputError(
            f"the gradient of '{binding}' needs the rank of its input, which shape inference does "
            "not know"
        )
    return list(range(axis % x.rank, x.rank))


def _layer_norm_x(
    g: Sequence[Var | None],
    y: Sequence[Var],
    x: Var,
    scale: Var,
    bias: Var | None,
    axis: int,
    binding: Binding,
) -> Var:
    axes = _layer_norm_axes(x, axis, binding)
    hat, inverse = _normalized(y, x), y[2]
    total: Var | None = None
    if g[0] is not None:
        h = as_dtype_of(g[0], inverse) * as_dtype_of(scale, inverse)
        along = hat * op.ReduceMean(h * hat, axes, keepdims=1)
        total = (h - op.ReduceMean(h, axes, keepdims=1) - along) * inverse
    if len(g) > 1 and g[1] is not None:  # of the mean
        part = g[1] * op.ReduceMean(op.Sign(hat) * 0.0 + 1.0, axes, keepdims=1)
        total = plus(total, spread(part, hat, axes))
    if len(g) > 2 and g[2] is not None:  # of 1 / sqrt(var + eps): d = -inverse^2 hat / n
        part = -(g[2] * inverse * inverse)
        total = plus(total, spread(part, hat, axes) * hat)
    if total is None:
        raise InputError(f"no adjoint arrived at '{binding}'")
    return total


vjp(
    "LayerNormalization",
    _layer_norm_x,
    lambda g, y, x, scale, bias: (
        None if g[0] is None else as_dtype_of(g[0], y[2]) * _normalized(y, x)
    ),
    lambda g, y, x, scale, bias: g[0],
    broadcasts=True,
)
