"""What is divided by its root mean square: RMSNormalization without its weight, and the second half
of LayerNormalization.
"""

from __future__ import annotations

from onnxgrad.grad.chains import chain
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var
from onnxgrad.rewrite.pattern import P, capture

x, r, d, eps, axes = capture("x r d eps axes")

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
