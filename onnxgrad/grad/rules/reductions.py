"""Reductions. Axes are an operand: constant, known at run time, or absent (all axes)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from onnxgrad.frozen import frozen
from onnxgrad.grad.registry import Convention, vjp, zero
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
)
from onnxgrad.ir.emission.arithmetic import in_dtype_of
from onnxgrad.ir.emission.fill_and_reshape import expand_like
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var

if TYPE_CHECKING:
    from typing_extensions import Unpack


@frozen
class _Reduction:
    """The attributes of a reduction, and its axes."""

    axes: Axes
    keepdims: int
    noop: int

    def back(self, v: Var) -> Var:
        """Restores the reduced axes with size 1, so that `v` broadcasts against the operand."""
        is_empty = not isinstance(self.axes, Var) and not self.axes
        if self.keepdims or v.shape == () or is_empty:
            return v  # no axis was dropped, or all were and a scalar broadcasts
        return op.Unsqueeze(v, axes_operand(self.axes))

    def again(self, reduce: Any, v: Var) -> Var:
        """Applies another reduction over the same axes."""
        axes, noop = axes_operand(self.axes), self.noop or None
        result: Var = reduce(v, axes, keepdims=self.keepdims, noop_with_empty_axes=noop)
        return result


def _reduction(
    name: str,
    formula: Callable[[Var, Var, Var, _Reduction], Var],
    untouched: Callable[[Var, Var], Var] = lambda g, x: g,
    **options: Unpack[Convention],
) -> None:
    """Registers a formula of the adjoint, the result, the operand and the attributes.

    `untouched` is the formula if empty axes mean that no axis is reduced.
    """

    def partial(
        g: Var, y: Var, x: Var, axes: Axes, keepdims: int, noop_with_empty_axes: int
    ) -> Var:
        if noop_with_empty_axes and not isinstance(axes, Var) and not axes:
            return untouched(g, x)
        return formula(g, y, x, _Reduction(axes, keepdims, noop_with_empty_axes))

    vjp(name, partial, **options)


def _extremum(g: Var, y: Var, x: Var, r: _Reduction) -> Var:
    mask = op.Equal(x, r.back(y))
    count = r.again(op.ReduceSum, counting(as_number(mask, x)))
    return op.Where(mask, r.back(divided(g, count)), 0.0)


def _prod(g: Var, y: Var, x: Var, r: _Reduction) -> Var:
    """g times the product of the others: y / x, or the product of the rest where x is 0."""
    is_zero = op.Equal(x, 0.0)
    nonzero = op.Where(is_zero, 1.0, x)
    product = g * r.again(op.ReduceProd, nonzero)
    # without keepdims: onnxruntime takes ten times as long for a column and a number
    *reduced, d = beside_zeros(product, x, lambda v: r.again(op.ReduceSum, v))
    p, w, h = map(r.back, reduced)
    return op.Where(is_zero, in_dtype_of(p * (d * (d + w) + h), x), r.back(g * y) / nonzero)


def _l2(g: Var, y: Var, x: Var, r: _Reduction) -> Var:
    """x / |x|, and 0 where the norm is 0."""
    at_zero = op.Equal(y, 0.0)
    return x * r.back(op.Where(at_zero, 0.0, g / op.Where(at_zero, 1.0, y)))


_TIES = "equal {} share the adjoint evenly"
_reduction("ReduceSum", lambda g, y, x, r: expand_like(r.back(g), x))
_reduction(
    "ReduceMean",
    lambda g, y, x, r: expand_like(r.back(mean_share(g, reduced_count(x, y, r.axes))), x),
)
_reduction("ReduceMax", _extremum, notes=_TIES.format("maxima"), compares=True)
_reduction("ReduceMin", _extremum, notes=_TIES.format("minima"), compares=True)
_reduction("ReduceProd", _prod, notes=ZEROS)
_reduction(
    "ReduceL1",
    lambda g, y, x, r: op.Sign(x) * r.back(g),
    lambda g, x: op.Sign(x) * g,
    notes="0 at 0",
)
_reduction("ReduceL2", _l2, lambda g, x: g * op.Sign(x), notes="0 where the norm is 0")
_reduction("ReduceSumSquare", lambda g, y, x, r: x * r.back(g * 2.0), lambda g, x: x * (g * 2.0))
_reduction(
    "ReduceLogSum", lambda g, y, x, r: expand_like(r.back(g / op.Exp(y)), x), lambda g, x: g / x
)
_reduction("ReduceLogSumExp", lambda g, y, x, r: op.Exp(x - r.back(y)) * r.back(g))
zero("ArgMax", "ArgMin")
