"""Reductions. Axes are an operand: constant, at run time, or absent (all axes)."""

from __future__ import annotations

from typing import Any

from onnxgrad.grad.registry import vjp, zero
from onnxgrad.grad.rules._common import (
    ZEROS,
    Axes,
    as_number,
    axes_operand,
    beside_zeros,
    counting,
    divided,
    mean_share,
    reduced_count,
    restored,
)
from onnxgrad.ir.emission.fill_and_reshape import expand_like
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var


def _noop(axes: Axes, noop_with_empty_axes: int) -> bool:
    return bool(noop_with_empty_axes) and (axes is None or (not isinstance(axes, Var) and not axes))


def _sum(g: Var, y: Var, x: Var, axes: Axes, keepdims: int, noop_with_empty_axes: int) -> Var:
    if _noop(axes, noop_with_empty_axes):
        return g
    return expand_like(restored(g, axes, keepdims), x)


def _mean(g: Var, y: Var, x: Var, axes: Axes, keepdims: int, noop_with_empty_axes: int) -> Var:
    if _noop(axes, noop_with_empty_axes):
        return g
    share = mean_share(g, reduced_count(x, y, axes))
    return expand_like(restored(share, axes, keepdims), x)


def _extremum(g: Var, y: Var, x: Var, axes: Axes, keepdims: int, noop_with_empty_axes: int) -> Var:
    if _noop(axes, noop_with_empty_axes):
        return g
    mask = as_number(op.Equal(x, restored(y, axes, keepdims)), x)
    ties = op.ReduceSum(
        counting(mask),
        axes_operand(axes),
        keepdims=keepdims,
        noop_with_empty_axes=noop_with_empty_axes or None,
    )
    return mask * restored(divided(g, ties), axes, keepdims)


def _prod(g: Var, y: Var, x: Var, axes: Axes, keepdims: int, noop_with_empty_axes: int) -> Var:
    """g times the product of the others: y / x, and at a zero the product of the rest."""
    if _noop(axes, noop_with_empty_axes):
        return g
    options: dict[str, Any] = {
        "keepdims": keepdims,
        "noop_with_empty_axes": noop_with_empty_axes or None,
    }
    is_zero = op.Equal(x, 0.0)
    nonzero = op.Where(is_zero, 1.0, x)
    product = op.ReduceProd(nonzero, axes_operand(axes), **options)
    zeros = op.ReduceSum(nonzero - x, axes_operand(axes), **options)
    a, b = (restored(v, axes, keepdims) for v in beside_zeros(g * product, zeros))
    return op.Where(is_zero, a * (b - x), restored(g * y, axes, keepdims) / nonzero)


def _l1(g: Var, y: Var, x: Var, axes: Axes, keepdims: int, noop_with_empty_axes: int) -> Var:
    return op.Sign(x) * restored(g, axes, keepdims)


def _l2(g: Var, y: Var, x: Var, axes: Axes, keepdims: int, noop_with_empty_axes: int) -> Var:
    """x / |x|, and 0 where the norm is 0."""
    if _noop(axes, noop_with_empty_axes):
        return g * op.Sign(x)
    at_zero = op.Equal(y, 0.0)
    scale = op.Where(at_zero, 0.0, g / op.Where(at_zero, 1.0, y))
    return x * restored(scale, axes, keepdims)


def _sum_square(
    g: Var, y: Var, x: Var, axes: Axes, keepdims: int, noop_with_empty_axes: int
) -> Var:
    return x * restored(g * 2.0, axes, keepdims)


def _log_sum(g: Var, y: Var, x: Var, axes: Axes, keepdims: int, noop_with_empty_axes: int) -> Var:
    if _noop(axes, noop_with_empty_axes):
        return g / x
    return expand_like(restored(g / op.Exp(y), axes, keepdims), x)


def _log_sum_exp(
    g: Var, y: Var, x: Var, axes: Axes, keepdims: int, noop_with_empty_axes: int
) -> Var:
    if _noop(axes, noop_with_empty_axes):
        return g
    return op.Exp(x - restored(y, axes, keepdims)) * restored(g, axes, keepdims)


vjp("ReduceSum", _sum)
vjp("ReduceMean", _mean)
vjp("ReduceMax", _extremum, notes="equal maxima share the adjoint evenly", compares=True)
vjp("ReduceMin", _extremum, notes="equal minima share the adjoint evenly", compares=True)
vjp("ReduceProd", _prod, notes=ZEROS)
vjp("ReduceL1", _l1, notes="0 at 0")
vjp("ReduceL2", _l2, notes="0 where the norm is 0")
vjp("ReduceSumSquare", _sum_square)
vjp("ReduceLogSum", _log_sum)
vjp("ReduceLogSumExp", _log_sum_exp)
zero("ArgMax", "ArgMin")
