"""Operators of com.microsoft, and onnxruntime's additions to the default domain: most by their
bodies in `laws.bodies`.
"""

from __future__ import annotations

from onnxgrad.errors import InputError
from onnxgrad.grad.registry import gradient_body, vjp, zero
from onnxgrad.grad.straight_through import along
from onnxgrad.grad.unbroadcast import sum_by_scale
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.domains import full_name
from onnxgrad.ir.emission.arithmetic import rank_of
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var
from onnxgrad.laws.bodies.table import BODIES

_DOMAIN = "com.microsoft"

_RULES = {"MatMulNBits"}  # in `quantized_products`

for _key, (_builder, _notes) in list(BODIES.items()):
    if _key[1] not in _RULES:
        gradient_body(full_name(*_key), _builder, notes=_notes)


def _to_scale(g: Var, y: Var, x: Var, scale: Var, zero_point: Var | None, binding: Binding) -> Var:
    """y = (x - zero point) scale: sums g (x - zero point) over the elements of each scale."""
    axis, q = binding.attr("axis", 1), op.Cast(x, to=g.dtype)
    rank_of(scale, binding)
    if zero_point is not None:
        q = q - along(op.Cast(zero_point, to=g.dtype), x, axis)
    return sum_by_scale(g * q, scale, axis, rank_of(x, binding))


vjp(f"{_DOMAIN}::DequantizeLinear", None, _to_scale, None, notes="the scale")
zero(f"{_DOMAIN}::QuantizeLinear", notes="rounding: zero unless --ste is given")

vjp(f"{_DOMAIN}::Inverse", lambda g, y, x: op.Neg(y.mT @ g @ y.mT))


def _weights(g: Var, y: Var, binding: Binding) -> Var:
    """Returns the adjoint of half the squared distance."""
    metric = binding.attr("metric", "sqeuclidean")
    if metric not in ("sqeuclidean", "euclidean"):
        raise InputError(
            f"no gradient of CDist at '{binding}': its metric '{metric}' is neither euclidean nor "
            "sqeuclidean"
        )
    if metric == "sqeuclidean":
        return g * 2.0
    apart = op.Greater(y, 0.0)
    return op.Where(apart, g / op.Where(apart, y, 1.0), 0.0)


def _by_first(g: Var, y: Var, a: Var, b: Var, binding: Binding) -> Var:
    """y[m, k] = |a[m] - b[k]|^2 or its root: the sum over k of w[m, k] (a[m] - b[k])"""
    w = _weights(g, y, binding)
    return op.ReduceSum(w, [1], keepdims=1) * a - w @ b


def _by_second(g: Var, y: Var, a: Var, b: Var, binding: Binding) -> Var:
    w = _weights(g, y, binding)
    return op.ReduceSum(w.mT, [1], keepdims=1) * b - w.mT @ a


vjp(f"{_DOMAIN}::CDist", _by_first, _by_second, notes="0 where the distance is 0")
