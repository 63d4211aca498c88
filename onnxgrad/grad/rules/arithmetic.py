"""Arithmetic by element, CumSum, CumProd and Range."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np

from onnxgrad.grad.registry import Formula, vjp, vjp_all, zero
from onnxgrad.grad.rules._common import ZEROS, as_number, beside_zeros, sum_like
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission.arithmetic import in_dtype_of
from onnxgrad.ir.emission.emit import constant
from onnxgrad.ir.emission.fill_and_reshape import zeros_like
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var

# ---- arithmetic ----------------------------------------------------------------------------------

vjp("Add", lambda g, y, a, b: g, lambda g, y, a, b: g)
vjp("Sub", lambda g, y, a, b: g, lambda g, y, a, b: -g)
vjp("Mul", lambda g, y, a, b: g * b, lambda g, y, a, b: g * a)
vjp("Div", lambda g, y, a, b: g / b, lambda g, y, a, b: -(g / b * y))
vjp("Neg", lambda g, y, x: -g)
vjp("Reciprocal", lambda g, y, x: -(g * (y * y)))
vjp("Identity", lambda g, y, x: g)
# the engine casts a partial to its operand's dtype
vjp("Cast", lambda g, y, x: g)
vjp("CastLike", lambda g, y, x, t: g)


def _pow_base(g: Var, y: Var, x: Var, e: Var) -> Var:
    """Returns e x^(e-1), without a Pow for common constant exponents.

    The result is 0 where e is 0, even if x is 0, infinite or NaN.
    """
    value = e.const
    if value is not None and value.size == 1:
        p = float(value.reshape(-1)[0])
        closed: dict[float, Callable[[], Var]] = {
            0.0: lambda: zeros_like(x),
            1.0: lambda: g,
            2.0: lambda: g * (x + x),
            0.5: lambda: g * (0.5 / y),
            -1.0: lambda: -(g * (y * y)),
        }
        return closed[p]() if p in closed else g * (op.Pow(x, p - 1.0) * p)
    exponent = op.CastLike(e, x) if e.dtype != x.dtype else e
    less = exponent - 1.0
    if value is None:
        # 0 x^-1 is 0 at any x, so a base of 0 or NaN becomes 1
        x = op.Where(op.Greater(op.Abs(x), 0.0), x, op.Where(op.Equal(exponent, 0.0), 1.0, x))
    elif (value == 0).any():
        less = constant(np.where(value == 0, 0.0, value.astype(np.float64) - 1.0), x.dtype)
    return g * (exponent * op.Pow(x, less))


vjp(
    "Pow",
    _pow_base,
    # y ln(x), and 0 where x is 0 and the exponent is not negative
    lambda g, y, x, e: (
        g * (y * op.Log(op.Where(op.And(op.Equal(x, 0.0), op.GreaterOrEqual(e, 0.0)), 1.0, x)))
    ),
    notes="0 w.r.t. the base where the exponent is 0; NaN w.r.t. the exponent for a negative base",
)


vjp(
    "Mod",
    lambda g, y, a, b: g,
    # the quotient, truncated (fmod) or rounded down
    lambda g, y, a, b, fmod: (
        -(g * (op.Sign(a / b) * op.Floor(op.Abs(a / b)) if fmod else op.Floor(a / b)))
    ),
    notes="jumps at multiples of the divisor are ignored",
)


def _extremum(g: Var, y: Var, xs: Sequence[Var], wanted: Sequence[bool]) -> list[Any]:
    if len(xs) == 1:
        return [g]
    masks = [op.Equal(x, y) for x in xs]
    share = g / op.Sum(*(as_number(m, y) for m in masks))
    return [op.Where(m, share, 0.0) if needed else None for m, needed in zip(masks, wanted)]


vjp_all("Max", _extremum, notes="equal operands share the adjoint evenly", compares=True)
vjp_all("Min", _extremum, notes="equal operands share the adjoint evenly", compares=True)
vjp_all("Sum", lambda g, y, xs: [g] * len(xs))
vjp_all("Mean", lambda g, y, xs: [g / float(len(xs))] * len(xs))
vjp(
    "Where",
    None,
    lambda g, y, c, a, b: op.Where(c, g, 0.0),
    lambda g, y, c, a, b: op.Where(c, 0.0, g),
)


def _clip(g: Var, y: Var, x: Var, low: Var | None, high: Var | None) -> Var:
    bounds = [v.const for v in (low, high) if v is not None]
    known = [float(v.reshape(-1)[0]) for v in bounds if v is not None and v.size == 1]
    if len(known) == 2 and known[0] <= known[1]:
        return op.Where(op.Equal(x, y), g, 0.0)  # clipped elements differ from x, unless NaN
    masks = [] if low is None else [op.GreaterOrEqual(x, low)]
    masks += [] if high is None else [op.LessOrEqual(x, high)]
    return op.Where(reduce(op.And, masks), g, 0.0) if masks else g


def _clip_low(g: Var, y: Var, x: Var, low: Var, high: Var | None) -> Var:
    below = op.Less(x, low)
    if high is not None:
        below = op.And(below, op.LessOrEqual(low, high))  # if low > high, every result is high
    return sum_like(op.Where(below, g, 0.0), low)


def _clip_high(g: Var, y: Var, x: Var, low: Var | None, high: Var) -> Var:
    above = op.Greater(x, high)
    if low is not None:
        above = op.Or(above, op.Greater(low, high))
    return sum_like(op.Where(above, g, 0.0), high)


vjp(
    "Clip",
    _clip,
    _clip_low,
    _clip_high,
    notes="at a bound the adjoint goes to the input",
    compares=True,
)

# ---- functions -----------------------------------------------------------------------------------

_FUNCTIONS: dict[str, Formula] = {
    "Abs": lambda g, y, x: g * op.Sign(x),
    "Sqrt": lambda g, y, x: g * (0.5 / y),
    "Exp": lambda g, y, x: g * y,
    "Log": lambda g, y, x: g / x,
    "Sin": lambda g, y, x: g * op.Cos(x),
    "Cos": lambda g, y, x: -(g * op.Sin(x)),
    "Tan": lambda g, y, x: g * (1.0 + y * y),
    "Asin": lambda g, y, x: g / op.Sqrt(1.0 - x * x),
    "Acos": lambda g, y, x: -(g / op.Sqrt(1.0 - x * x)),
    "Atan": lambda g, y, x: g / (1.0 + x * x),
    "Sinh": lambda g, y, x: g * op.Cosh(x),
    "Cosh": lambda g, y, x: g * op.Sinh(x),
    "Tanh": lambda g, y, x: g * (1.0 - y * y),
    "Asinh": lambda g, y, x: g / op.Sqrt(x * x + 1.0),
    "Acosh": lambda g, y, x: g / (op.Sqrt(x - 1.0) * op.Sqrt(x + 1.0)),
    "Atanh": lambda g, y, x: g / (1.0 - x * x),
    "Erf": lambda g, y, x: g * (op.Exp(-(x * x)) * (2.0 / math.sqrt(math.pi))),
}
for _name, _formula in _FUNCTIONS.items():
    vjp(_name, _formula, notes={"Abs": "0 at 0", "Sqrt": "infinite at 0"}.get(_name, ""))

zero("Floor", "Ceil", "Round", "Sign", notes="steps")
zero(
    "And",
    "Or",
    "Xor",
    "Not",
    "Equal",
    "Less",
    "Greater",
    "LessOrEqual",
    "GreaterOrEqual",
    "IsNaN",
    "IsInf",
)
zero("BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot", "BitCast", notes="integers")


vjp(
    "CumSum",
    lambda g, y, x, axis, exclusive, reverse, binding: op.CumSum(
        g, binding.inputs[1], exclusive=exclusive, reverse=1 - reverse
    ),
)


def _cum_prod(
    g: Var, y: Var, x: Var, axis: Any, exclusive: int, reverse: int, binding: Binding
) -> Var:
    """Returns dx_j: the sum over the products with x_j of g_i times the product of the others.

    That product is y_i / x_j, and the product of the remaining factors if x_j is 0.
    """
    along = binding.inputs[1]
    is_zero = op.Equal(x, 0.0)
    nonzero = op.Where(is_zero, 1.0, x)
    products = op.CumProd(nonzero, along, exclusive=exclusive, reverse=reverse)

    def before(v: Var) -> Var:
        return op.CumSum(v, along, exclusive=exclusive, reverse=reverse)

    def gathered(v: Var) -> Var:
        return op.CumSum(v, along, exclusive=exclusive, reverse=1 - reverse)

    p, w, h, d = beside_zeros(g * products, x, before)
    others = gathered(p * h) + d * (gathered(p * w) + d * gathered(p))
    return op.Where(is_zero, in_dtype_of(others, x), gathered(g * y) / nonzero)


vjp("CumProd", _cum_prod, notes=ZEROS)


# y_i = start + i delta
vjp(
    "Range",
    lambda g, y, start, limit, delta: op.ReduceSum(g, keepdims=0),
    None,
    lambda g, y, start, limit, delta: op.ReduceSum(
        g * op.Cast(op.Range(np.int64(0), op.Size(y), np.int64(1)), to=y.dtype), keepdims=0
    ),
)
