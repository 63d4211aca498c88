"""Activations, Softmax, LogSoftmax and Hardmax."""

from __future__ import annotations

import math

from onnxgrad.grad.registry import Formula, vjp, zero
from onnxgrad.grad.rules._common import widened
from onnxgrad.ir.emission.arithmetic import in_dtype_of, scaled
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var


def _celu(g: Var, y: Var, x: Var, alpha: float) -> Var:
    like = x
    g, y, x = widened(g), widened(y), widened(x)
    return in_dtype_of(op.Where(op.Greater(x, 0.0), g, g * (y / alpha + 1.0)), like)


def _hard_swish(g: Var, y: Var, x: Var) -> Var:
    middle = op.Where(op.Less(x, 3.0), g * (x * (1.0 / 3.0) + 0.5), g)
    return op.Where(op.Greater(x, -3.0), middle, 0.0)


def _gelu(g: Var, y: Var, x: Var, approximate: str) -> Var:
    if approximate == "tanh":
        k = math.sqrt(2.0 / math.pi)
        x2 = x * x
        t = op.Tanh(x * (x2 * (0.044715 * k) + k))
        inner = x2 * (3 * 0.044715 * k) + k
        return g * (0.5 * (t + 1.0) + 0.5 * x * ((1.0 - t * t) * inner))
    # with u = x / sqrt(2), y' = (1 + erf u + u (2 / sqrt(pi)) exp(-u^2)) / 2
    u = x * math.sqrt(0.5)
    bell = op.Exp(math.log(2.0 / math.sqrt(math.pi)) - u * u)
    return (g * 0.5) * (op.Erf(u) + u * bell + 1.0)  # a product that makes g halves it at no cost


def _mish(g: Var, y: Var, x: Var) -> Var:
    t = op.Tanh(op.Softplus(x))
    return g * (t + x * ((1.0 - t * t) * op.Sigmoid(x)))


def _swish(g: Var, y: Var, x: Var, alpha: float) -> Var:
    s = op.Sigmoid(scaled(x, alpha))
    return g * (s + scaled(y * (1.0 - s), alpha))


_ACTIVATIONS: dict[str, Formula] = {
    "Celu": _celu,
    "Elu": lambda g, y, x, alpha: op.Where(op.Greater(x, 0.0), g, g * (y + alpha)),
    "Gelu": _gelu,
    "HardSigmoid": lambda g, y, x, alpha: op.Where(
        op.And(op.Greater(y, 0.0), op.Less(y, 1.0)), g * alpha, 0.0
    ),
    "HardSwish": _hard_swish,
    "LeakyRelu": lambda g, y, x, alpha: op.Where(op.Greater(x, 0.0), g, g * alpha),
    "LogSoftmax": lambda g, y, x, axis: g - op.Exp(y) * op.ReduceSum(g, [axis], keepdims=1),
    "Mish": _mish,
    "Relu": lambda g, y, x: op.Where(op.Greater(y, 0.0), g, 0.0),
    "Selu": lambda g, y, x, alpha, gamma: op.Where(
        op.Greater(x, 0.0), g * gamma, g * (y + gamma * alpha)
    ),
    "Shrink": lambda g, y, x, lambd: op.Where(op.Greater(op.Abs(x), lambd), g, 0.0),
    "Sigmoid": lambda g, y, x: g * (y * (1.0 - y)),
    "Softplus": lambda g, y, x: g * op.Sigmoid(x),
    "Softsign": lambda g, y, x: g / ((op.Abs(x) + 1.0) * (op.Abs(x) + 1.0)),
    "Swish": _swish,
    "ThresholdedRelu": lambda g, y, x, alpha: op.Where(op.Greater(x, alpha), g, 0.0),
}
# the value at a kink
_KINKS = {
    "Elu": "alpha at 0",
    "HardSigmoid": "0 at both ends",
    "HardSwish": "0 at -3, 1 at 3",
    "LeakyRelu": "alpha at 0",
    "Relu": "0 at 0",
    "Selu": "alpha gamma at 0",
    "Shrink": "0 at +-lambd",
    "ThresholdedRelu": "0 at alpha",
}
for _name, _formula in _ACTIVATIONS.items():
    vjp(_name, _formula, notes=_KINKS.get(_name, ""))

vjp(
    "PRelu",
    lambda g, y, x, slope: op.Where(op.Greater(x, 0.0), g, g * slope),
    lambda g, y, x, slope: op.Where(op.Greater(x, 0.0), 0.0, g * x),
    notes="slope at 0",
)


def _softmax(g: Var, y: Var, x: Var, axis: int) -> Var:
    if _is_selected(y):
        y = op.Where(op.IsNaN(y), 0.0, y)
    return y * (g - op.ReduceSum(g * y, [axis], keepdims=1))


def _is_selected(y: Var) -> bool:
    """Whether a Where selects from `y`.

    A row with only -inf is NaN, and the body of Attention replaces it by zeros.
    """
    return any(
        user.op in ("Where", "IsNaN")
        or (user.op in ("Cast", "CastLike", "Identity") and _is_selected(user.out))
        for user in y.users
    )


vjp("Softmax", _softmax, notes="0 for NaN rows that a Where replaces")

zero("Hardmax", notes="one-hot: constant almost everywhere")
