"""Resize: the transposed interpolation, axis by axis.

Resize is linear and separable: along each resized axis it multiplies by a matrix of weights. That matrix is what Resize
makes of the identity, so the gradient graph asks the same operator, with the same attributes, for it: every mode and
coordinate transformation comes out exactly as the runtime's own forward has it, for sizes known at run time only too.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxgrad.errors import InputError
from onnxgrad.grad.registry import vjp
from onnxgrad.grad.rules._common import from_front
from onnxgrad.ir.block import Binding, Var
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import same_dim

_PASSED = (
    "antialias",
    "coordinate_transformation_mode",
    "cubic_coeff_a",
    "exclude_outside",
    "mode",
    "nearest_mode",
)
_ONE = np.array([1.0], np.float32)
_ZERO_TO_ONE = (np.array([0.0], np.float32), np.array([1.0], np.float32))


def _resize(g: Var, y: Var, x: Var, binding: Binding) -> Any:
    """Multiply each resized axis of g by the transposed weights."""
    if x.rank is None:
        raise InputError(f"the gradient of '{binding}' needs an operand of known rank")
    axes = [from_front(a, x.rank) for a in binding.attr("axes") or range(x.rank)]
    for position, axis in enumerate(axes):
        if not _is_untouched(binding, position, axis, x, y):
            g = _along(g, axis, _weights(binding, position, axis, x, y), x.rank)
    return g


def _is_untouched(binding: Binding, position: int, axis: int, x: Var, y: Var) -> bool:
    scales, sizes = binding.operand(2), binding.operand(3)
    if sizes is None and scales is not None and scales.const is not None and scales.const.size:
        return (
            bool(scales.const[position] == 1) and binding.attr("coordinate_transformation_mode") != "tf_crop_and_resize"
        )
    if binding.attr("coordinate_transformation_mode") == "tf_crop_and_resize":
        return False
    same = x.shape is not None and y.shape is not None and same_dim(x.shape[axis], y.shape[axis])
    return same and sizes is not None and binding.attr("keep_aspect_ratio_policy", "stretch") == "stretch"


def _weights(binding: Binding, position: int, axis: int, x: Var, y: Var) -> Var:
    """(size of x, size of y) along one axis: Resize of the identity, laid out as one image of in x in x 1."""
    roi, scales, sizes = (binding.operand(i) for i in (1, 2, 3))
    policy = binding.attr("keep_aspect_ratio_policy", "stretch")
    if sizes is not None and policy != "stretch":
        raise InputError(
            f"the gradient of '{binding}' with keep_aspect_ratio_policy '{policy}' is not supported: give scales"
        )
    n = op.Shape(x, start=axis, end=axis + 1)
    one = np.array([1], np.int64)
    identity = op.CastLike(op.EyeLike(op.ConstantOfShape(op.Concat(n, n, axis=0))), x)
    image = op.Reshape(identity, op.Concat(one, n, n, one, axis=0))
    corners = None
    if binding.attr("coordinate_transformation_mode") == "tf_crop_and_resize" and roi is not None:
        begin, end = _at(roi, position), _at(roi, position + len(binding.attr("axes") or range(x.rank or 0)))
        low, high = (op.CastLike(v, roi) for v in _ZERO_TO_ONE)
        corners = op.Concat(low, low, begin, low, high, high, end, high, axis=0)
    attributes = {name: binding.attrs[name] for name in _PASSED if name in binding.attrs}
    if sizes is not None:
        made = op.Resize(image, corners, None, op.Concat(one, n, _at(sizes, position), one, axis=0), **attributes)
    else:
        made = op.Resize(image, corners, op.Concat(_ONE, _ONE, _at(scales, position), _ONE, axis=0), None, **attributes)
    result: Var = op.Squeeze(made, [0, 3])
    return result


def _at(v: Var | None, position: int) -> Any:
    return op.Slice(v, [position], [position + 1], [0])


def _along(g: Var, axis: int, weights: Var, rank: int) -> Var:
    """Sum over the resized axis: g's values times each source's weights."""
    perm = [*(i for i in range(rank) if i != axis), axis]
    back = [int(i) for i in np.argsort(perm)]
    if axis == rank - 1:
        return g @ weights.mT
    if axis == rank - 2:
        return weights @ g
    moved: Var = op.Transpose(op.Transpose(g, perm=perm) @ weights.mT, perm=back)
    return moved


vjp("Resize", _resize, notes="nearest: the selected source; scales, sizes and roi receive nothing")
