"""com.microsoft operators that ONNX has as well, by ONNX's; inverses of matrices, and distances."""

from __future__ import annotations

from onnx import TensorProto

from onnxgrad.errors import InputError
from onnxgrad.grad.registry import Formula, body, vjp
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission.emitter import emitter
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var

_DOMAIN = "com.microsoft"
# the opset that renamed bilinear interpolation to linear
_LINEAR = 20


def _grid_sample(x: Var, grid: Var, *, binding: Binding) -> Var:
    mode = binding.attr("mode", "bilinear")
    if emitter().block.opsets.get("", 0) >= _LINEAR:
        mode = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    others = {"align_corners": 0, "padding_mode": "zeros"}
    given = {name: binding.attr(name, value) for name, value in others.items()}
    result: Var = op.GridSample(x, grid, mode=mode, **given)
    return result


def _expand_dims(x: Var, axis: Var) -> Var:
    return op.Unsqueeze(x, op.Reshape(op.Cast(axis, to=TensorProto.INT64), [1]))


_BODIES: dict[str, Formula] = {
    "Trilu": lambda x, k, *, upper=1: op.Trilu(x, k, upper=upper),
    "Pad": lambda x, by, value, *, mode="constant": op.Pad(
        x, op.Reshape(by, [-1]), None if value is None else op.Reshape(value, []), mode=mode
    ),
    "GatherND": lambda x, indices: op.GatherND(x, op.Cast(indices, to=TensorProto.INT64)),
    "ExpandDims": _expand_dims,
    "GridSample": _grid_sample,
}

for _name, _builder in _BODIES.items():
    body(f"{_DOMAIN}::{_name}", _builder, notes="by ONNX's operator")

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
