"""com.microsoft operators that ONNX has as well, by ONNX's."""

from __future__ import annotations

from onnx import TensorProto

from onnxgrad.ir.attributes import GRID_MODES
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission.emitter import emitter
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var
from onnxgrad.laws.bodies.calls import Bodies

# the opset that renamed bilinear interpolation to linear
_LINEAR = 20


def _grid_sample(x: Var, grid: Var, *, binding: Binding) -> Var:
    mode = binding.attr("mode", "bilinear")
    if emitter().block.opsets.get("", 0) >= _LINEAR:
        mode = GRID_MODES.get(mode, mode)
    others = {"align_corners": 0, "padding_mode": "zeros"}
    given = {name: binding.attr(name, value) for name, value in others.items()}
    result: Var = op.GridSample(x, grid, mode=mode, **given)
    return result


def _expand_dims(x: Var, axis: Var) -> Var:
    return op.Unsqueeze(x, op.Reshape(op.Cast(axis, to=TensorProto.INT64), [1]))


_NOTE = "by ONNX's operator"
BODIES: Bodies = {
    "Trilu": (lambda x, k, *, upper=1: op.Trilu(x, k, upper=upper), _NOTE),
    "Pad": (
        lambda x, by, value, *, mode="constant": op.Pad(
            x, op.Reshape(by, [-1]), None if value is None else op.Reshape(value, []), mode=mode
        ),
        _NOTE,
    ),
    "GatherND": (
        lambda x, indices: op.GatherND(x, op.Cast(indices, to=TensorProto.INT64)),
        _NOTE,
    ),
    "ExpandDims": (_expand_dims, _NOTE),
    "GridSample": (_grid_sample, _NOTE),
}
