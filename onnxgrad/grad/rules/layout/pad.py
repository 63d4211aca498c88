"""Pad: a crop by as much where it fills, sums of what was copied where it copies."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto

from onnxgrad.grad.registry import vjp
from onnxgrad.grad.rules._common import narrowed, pad, where, widened
from onnxgrad.grad.rules.indexing._scatter import scatter_elements
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.like import fill, reshape_like, shape_of, zeros_like
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var


def _pad(
    g: Var, y: Var, x: Var, pads: Any, value: Var | None, axes: Any, mode: str, binding: Binding
) -> Var:
    """constant: Pad(g, -pads), negative pads being crops; the others copy elements, so their
    adjoints are summed.
    """
    if mode == "constant":
        opposite = op.Neg(pads) if isinstance(pads, Var) else [-p for p in pads]
        return pad(g, opposite, _axes(binding))
    # pad the elements' numbers like the elements: each part of g then knows where it came from
    numbers = op.Reshape(op.Range(np.int64(0), op.Size(x), np.int64(1)), op.Shape(x))
    source = op.Pad(numbers, binding.inputs[1], None, _axes(binding), mode=mode)
    flat = op.Reshape(zeros_like(x), [-1])
    added = scatter_elements(
        flat, op.Reshape(source, [-1]), op.Reshape(g, [-1]), axis=0, reduction="add"
    )
    return reshape_like(added, x)


def _pad_value(
    g: Var, y: Var, x: Var, pads: Any, value: Var, axes: Any, mode: str, binding: Binding
) -> Any:
    """The sum of g over what was padded."""
    if mode != "constant":
        return None
    inside = pad(fill(shape_of(x), 1.0, TensorProto.FLOAT), binding.inputs[1], _axes(binding))
    outside = where(op.Equal(inside, 0.0), widened(g), 0.0)
    total = narrowed(op.ReduceSum(outside, keepdims=0), value)
    return total if value.rank == 0 else reshape_like(total, value)


def _axes(binding: Binding) -> Var | None:
    return binding.operand(3)


vjp("Pad", _pad, None, _pad_value)
