"""Activations, Softmax and its kin among them."""

from __future__ import annotations

import math

from onnxgrad.grad.registry import vjp, zero
from onnxgrad.grad.rules._common import in_dtype_of, scaled, widened
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var

vjp("Sigmoid", lambda g, y, x: g * (y * (1.0 - y)))
vjp("Relu", lambda g, y, x: op.Where(op.Greater(y, 0.0), g, 0.0), notes="0 at 0")
vjp(
    "LeakyRelu",
    lambda g, y, x, alpha: op.Where(op.Greater(x, 0.0), g, g * alpha),
    notes="alpha at 0",
)
vjp(
    "PRelu",
    lambda g, y, x, slope: op.Where(op.Greater(x, 0.0), g, g * slope),
    lambda g, y, x, slope: op.Where(op.Greater(x, 0.0), 0.0, g * x),
    notes="slope at 0",
)
vjp(
    "ThresholdedRelu",
    lambda g, y, x, alpha: op.Where(op.Greater(x, alpha), g, 0.0),
    notes="0 at alpha",
)
vjp(
    "Shrink",
    lambda g, y, x, lambd: op.Where(op.Greater(op.Abs(x), lambd), g, 0.0),
    notes="0 at +-lambd",
)
vjp(
    "Elu",
    lambda g, y, x, alpha: op.Where(op.Greater(x, 0.0), g, g * (y + alpha)),
    notes="alpha at 0",
)


def _celu(g: Var, y: Var, x: Var, alpha: float) -> Var:
    like = x
    g, y, x = widened(g), widened(y), widened(x)
    return in_dtype_of(op.Where(op.Greater(x, 0.0), g, g * (y / alpha + 1.0)), like)


vjp("Celu", _celu)
vjp(
    "Selu",
    lambda g, y, x, alpha, gamma: op.Where(op.Greater(x, 0.0), g * gamma, g * (y + gamma * alpha)),
    notes="alpha gamma at 0",
)
vjp("Softplus", lambda g, y, x: g * op.Sigmoid(x))


def _softsign(g: Var, y: Var, x: Var) -> Var:
    d = op.Abs(x) + 1.0
    return g / (d * d)


vjp("Softsign", _softsign)
vjp(
    "HardSigmoid",
    lambda g, y, x, alpha: op.Where(op.And(op.Greater(y, 0.0), op.Less(y, 1.0)), g * alpha, 0.0),
    notes="0 at both ends",
)


def _hard_swish(g: Var, y: Var, x: Var) -> Var:
    middle = op.Where(op.Less(x, 3.0), g * (x * (1.0 / 3.0) + 0.5), g)
    return op.Where(op.Greater(x, -3.0), middle, 0.0)


vjp("HardSwish", _hard_swish, notes="0 at -3, 1 at 3")


def _gelu(g: Var, y: Var, x: Var, approximate: str) -> Var:
    if approximate == "tanh":
        k = math.sqrt(2.0 / math.pi)
        x2 = x * x
        t = op.Tanh(x * (x2 * (0.044715 * k) + k))
        inner = x2 * (3 * 0.044715 * k) + k
        return g * (0.5 * (t + 1.0) + 0.5 * x * ((1.0 - t * t) * inner))
    cdf = op.Erf(x * math.sqrt(0.5)) * 0.5 + 0.5
    return g * (cdf + x * (op.Exp(x * x * -0.5) * (1.0 / math.sqrt(2.0 * math.pi))))


vjp("Gelu", _gelu)


def _mish(g: Var, y: Var, x: Var) -> Var:
    t = op.Tanh(op.Softplus(x))
    return g * (t + x * ((1.0 - t * t) * op.Sigmoid(x)))


vjp("Mish", _mish)


def _swish(g: Var, y: Var, x: Var, alpha: float) -> Var:
    s = op.Sigmoid(scaled(x, alpha))
    return g * (s + scaled(y * (1.0 - s), alpha))


vjp("Swish", _swish)


def _softmax(g: Var, y: Var, x: Var, axis: int) -> Var:
    if _is_selected(y):
        y = op.Where(op.IsNaN(y), 0.0, y)
    return y * (g - op.ReduceSum(g * y, [axis], keepdims=1))


def _is_selected(y: Var) -> bool:
    """Whether a Where picks from `y`: a row of -inf alone is NaN, and Attention's body puts
    zeros in its place.
    """
    return any(
        user.op in ("Where", "IsNaN")
        or (user.op in ("Cast", "CastLike", "Identity") and _is_selected(user.out))
        for user in y.users
    )


vjp("Softmax", _softmax, notes="rows that are NaN and replaced by a Where pass nothing")


vjp("LogSoftmax", lambda g, y, x, axis: g - op.Exp(y) * op.ReduceSum(g, [axis], keepdims=1))


zero("Hardmax", notes="one-hot: constant almost everywhere")
