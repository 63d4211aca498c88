"""LayerNormalization: its own Mean and InvStdDev are read, adjoints of these outputs included."""

from __future__ import annotations

from collections.abc import Sequence

from onnx import TensorProto

from onnxgrad.errors import InputError
from onnxgrad.grad.registry import vjp
from onnxgrad.grad.rules.normalization._statistics import _plus, as_dtype_of, spread
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
    total: Var | None = None
    if g[0] is not None and _by_products(x, scale, y, axes):
        total = _from_products(g[0], y, x, scale)
    elif g[0] is not None:
        hat, inverse = _normalized(y, x), y[2]
        h = as_dtype_of(g[0], inverse) * as_dtype_of(scale, inverse)
        along = hat * op.ReduceMean(h * hat, axes, keepdims=1)
        total = (h - op.ReduceMean(h, axes, keepdims=1) - along) * inverse
    if len(g) > 1 and g[1] is not None:  # of the mean
        hat = _normalized(y, x)
        part = g[1] * op.ReduceMean(op.Sign(hat) * 0.0 + 1.0, axes, keepdims=1)
        total = _plus(total, spread(part, hat, axes))
    if len(g) > 2 and g[2] is not None:  # of 1 / sqrt(var + eps): d = -inverse^2 hat / n
        hat, inverse = _normalized(y, x), y[2]
        part = -(g[2] * inverse * inverse)
        total = _plus(total, spread(part, hat, axes) * hat)
    if total is None:
        raise InputError(f"no adjoint arrived at '{binding}'")
    return total


def _by_products(x: Var, scale: Var, y: Sequence[Var], axes: list[int]) -> bool:
    """Whether the sums are products with a vector: over the last axis, in a dtype with products
    of its own.
    """
    alike = x.dtype == scale.dtype == y[2].dtype and x.dtype in _WITH_PRODUCTS
    return alike and len(axes) == 1 and _last(x) > 0 and scale.shape == (_last(x),)


_WITH_PRODUCTS = (TensorProto.FLOAT, TensorProto.DOUBLE)


def _last(x: Var) -> int:
    """The size of the last axis; 0 where it is not known."""
    size = x.shape[-1] if x.shape else None
    return size if isinstance(size, int) else 0


def _from_products(g: Var, y: Sequence[Var], x: Var, scale: Var) -> Var:
    """r (g s - mean(g s) - c r^2 mean(g s c)) with c = x - mean(x) and r = 1 / sqrt(var + eps): the
    means are products with s / n, and g c serves the scale as well. 0.83 to 0.98 of the time, with
    the forward part, that it takes with normalized values (`scripts/bench_forms.py`).
    """
    centred, inverse = x - y[1], y[2]
    over = op.Reshape(scale * (1.0 / _last(x)), [-1, 1])
    along = centred * (((g * centred) @ over) * (inverse * inverse))
    return (g * scale - g @ over - along) * inverse


def _layer_norm_scale(
    g: Sequence[Var | None], y: Sequence[Var], x: Var, scale: Var, axis: int, binding: Binding
) -> Var | None:
    if g[0] is None:
        return None
    if not _by_products(x, scale, y, _layer_norm_axes(x, axis, binding)):
        return as_dtype_of(g[0], y[2]) * _normalized(y, x)
    rows = op.Reshape(g[0] * (x - y[1]), [-1, _last(x)])
    return op.MatMul(op.Reshape(y[2], [-1]), rows)


vjp(
    "LayerNormalization",
    _layer_norm_x,
    _layer_norm_scale,
    lambda g, y, x, scale, bias: g[0],
    broadcasts=True,
)
