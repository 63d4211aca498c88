"""Chains of nodes that exporters write for one function, each with its derivative in closed form:
Gelu by tanh, SiLU, the logarithm of a sigmoid or a softmax, an angle, and a division by the root
mean square.
"""

from __future__ import annotations

import math

from onnxgrad.grad.chains import chain
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var
from onnxgrad.laws.composites.conditions import near, scalar
from onnxgrad.rewrite.pattern import Either, P, Pattern, capture

x, z, t, h, s, q, w, r, d, c, eps, axes = capture("x z t h s q w r d c eps axes")

_CUBE = P.Pow(x, 3.0) | P.Mul(x, P.Mul(x, x)) | P.Mul(x, P.Pow(x, 2.0))
_BENT = P.Add(x, q & P.Mul(_CUBE, near(0.044715, "third")))
_TANH = t & P.Tanh(w & P.Mul(_BENT, near(math.sqrt(2 / math.pi), "slope")))


def _of_three(a: Pattern, b: Pattern | float, c: Pattern) -> Either:
    """Matches the product a b c in any order of multiplication."""
    orders: Either = P.Mul(a, P.Mul(b, c)) | P.Mul(b, P.Mul(a, c)) | P.Mul(c, P.Mul(a, b))
    return orders


@chain(_of_three(x, 0.5, h & P.Add(_TANH, 1.0)))
def gelu_by_tanh(g: Var, y: Var, t: Var, h: Var, q: Var, w: Var, slope: Var) -> Var:
    """y = x h / 2, h = 1 + t, t = tanh w, w = k (x + q), q = c x^3, with k and c from the model:
    since x w' = k (x + 3 q) = w + 2 k q, y' = h (1 + (1 - t) (w + 2 k q)) / 2
    """
    bend = w + q * (2.0 * (scalar(slope) or 0.0))
    return (g * 0.5) * (h * ((1.0 - t) * bend + 1.0))  # a product that makes g halves it at no cost


@chain(P.Mul(x, s & P.Sigmoid(x)))
def silu(g: Var, y: Var, s: Var) -> Var:
    """y = x s, s = sigmoid x: y' = s + y (1 - s)"""
    return g * (y * (1.0 - s) + s)


@chain(P.Log(P.Sigmoid(x)))
def log_sigmoid(g: Var, y: Var, x: Var) -> Var:
    """y = log(sigmoid x): y' = sigmoid(-x), which holds even if the sigmoid underflows to 0"""
    return g * op.Sigmoid(-x)


@chain(P.Log(P.Softmax(x).named("p")))
def log_softmax(g: Var, y: Var, p: Binding) -> Var:
    """y = log p, p = softmax x: dx = g - p sum(g), which holds even if an element of p underflows
    to 0
    """
    return g - p.out * op.ReduceSum(g, [p.attr("axis")], keepdims=1)


@chain(P.Atan(P.Div(z, x)))
def angle(g: Var, y: Var, x: Var, z: Var) -> tuple[Var, Var]:
    """y = atan(z / x), the middle of atan2: -z and x, each divided by x x + z z; 0 at the origin"""
    square = x * x + z * z
    share = g / op.Where(op.Equal(square, 0.0), 1.0, square)
    return -(share * z), share * x


@chain(P.Where(c & P.Greater(x, q.const), x, P.Softplus(x)))
def softplus_up_to(g: Var, y: Var, c: Var, x: Var) -> Var:
    """y = x if c, x > q, as PyTorch writes softplus, else softplus x: y' = 1, or sigmoid x"""
    return op.Where(c, g, g * op.Sigmoid(x))


# RMSNormalization without its weight, and the second half of LayerNormalization
_MEAN = P.ReduceMean(
    P.Pow(x, 2.0) | P.Mul(x, x), axes.const, keepdims=1, noop_with_empty_axes=0
).named("mean")
_MOMENT = P.Add(_MEAN, eps.const)
_ROOT = P.Sqrt(_MOMENT)


def _centred(g: Var, y: Var, mean: Binding) -> Var:
    return g - y * op.ReduceMean(g * y, mean.inputs[1], keepdims=1)


@chain(P.Mul(x, r & (P.Reciprocal(_ROOT) | P.Div(1.0, _ROOT) | P.Pow(_MOMENT, -0.5))))
def over_root_mean_square(g: Var, y: Var, r: Var, mean: Binding) -> Var:
    """y = x r, r = 1 / sqrt(mean(x x) + eps): dx = r (g - y mean(g y))"""
    return _centred(g, y, mean) * r


@chain(P.Div(x, d & _ROOT))
def divided_by_root_mean_square(g: Var, y: Var, d: Var, mean: Binding) -> Var:
    """y = x / d, d = sqrt(mean(x x) + eps): dx = (g - y mean(g y)) / d"""
    return _centred(g, y, mean) / d
