"""Resize: the transposed interpolation, axis by axis.

Resize is linear and separable: along each resized axis it multiplies by a matrix of weights. Resize
of the identity returns this matrix, so the gradient graph runs the same operator on the identity,
with the same attributes. All modes and coordinate transformations therefore agree exactly with the
runtime's forward result, also for sizes that are known at run time only.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto

from onnxgrad.errors import InputError
from onnxgrad.grad.registry import vjp
from onnxgrad.ir.binding import Binding
from onnxgrad.ir.emission.arithmetic import from_front, rank_of
from onnxgrad.ir.ops import op
from onnxgrad.ir.type_inference.window_shapes import floats_of
from onnxgrad.ir.types import same_dim
from onnxgrad.ir.var import Var

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


def _resize(g: Var, y: Var, x: Var, binding: Binding) -> Var:
    """Multiplies each resized axis of g by the transposed weights."""
    rank = rank_of(x, binding)
    for v in binding.inputs[1:]:
        # onnxruntime flattens these operands, whatever their shape
        if v is not None and v.rank not in (None, 1):
            raise InputError(f"'{v.name}' of '{binding}' is {v.type}, and no vector")
    axes = [from_front(a, rank) for a in binding.attr("axes") or range(rank)]
    for position, axis in enumerate(axes):
        if not _is_untouched(binding, position, axis, x, y):
            g = _along(g, axis, _weights(binding, position, axis, x, y), rank)
    return g


def _is_untouched(binding: Binding, position: int, axis: int, x: Var, y: Var) -> bool:
    if binding.attr("coordinate_transformation_mode") == "tf_crop_and_resize":
        return False
    scales, sizes = binding.operand(2), binding.operand(3)
    if sizes is None:
        known = None if scales is None else floats_of(scales)
        return bool(known and known[position] == 1)
    same = x.shape is not None and y.shape is not None and same_dim(x.shape[axis], y.shape[axis])
    return same and binding.attr("keep_aspect_ratio_policy", "stretch") == "stretch"


def _weights(binding: Binding, position: int, axis: int, x: Var, y: Var) -> Var:
    """Returns the weights along one axis, (size of x, size of y): Resize of the identity, laid out
    as one image of in x in x 1.
    """
    roi, scales, sizes = (binding.operand(i) for i in (1, 2, 3))
    n = op.Shape(x, start=axis, end=axis + 1)
    identity = op.CastLike(op.EyeLike(op.ConstantOfShape(op.Concat(n, n, axis=0))), x)
    transformation = binding.attr("coordinate_transformation_mode")
    corners = None
    if transformation == "tf_crop_and_resize" and roi is not None:
        begin, end = (
            _at(roi, position),
            _at(roi, position + len(binding.attr("axes") or range(x.rank or 0))),
        )
        low, high = (op.CastLike(v, roi) for v in _ZERO_TO_ONE)
        corners = op.Concat(low, low, begin, low, high, high, end, high, axis=0)
    if sizes is None:
        return _resized(binding, identity, corners, scale=_at(scales, position))
    if binding.attr("keep_aspect_ratio_policy", "stretch") == "stretch":
        return _resized(binding, identity, corners, size=_at(sizes, position))
    length = op.Shape(y, start=axis, end=axis + 1)
    if transformation in ("align_corners", "tf_crop_and_resize"):  # these depend on lengths only
        return _resized(binding, identity, corners, size=length)
    return _with_one_scale(binding, identity, x, sizes, length)


def _resized(
    binding: Binding, image: Var, corners: Var | None, *, scale: Any = None, size: Any = None
) -> Var:
    """Resizes the last axis of (in, in or more) by a scale or to a size."""
    one = np.array([1], np.int64)
    columns = op.Shape(image, start=0, end=1)
    rows = op.Shape(image, start=1, end=2)
    laid_out = op.Reshape(image, op.Concat(one, columns, rows, one, axis=0))
    attributes = {name: binding.attrs[name] for name in _PASSED if name in binding.attrs}
    scales = None if scale is None else op.Concat(_ONE, _ONE, scale, _ONE, axis=0)
    sizes = None if size is None else op.Concat(one, columns, size, one, axis=0)
    return op.Squeeze(op.Resize(laid_out, corners, scales, sizes, **attributes), [0, 3])


def _with_one_scale(binding: Binding, identity: Var, x: Var, sizes: Var, length: Var) -> Var:
    """Returns the weights if all axes share one scale, the smallest or largest of sizes to operand.

    Resize then rounds the sizes of its result, but takes their floor if given scales. The gradient
    therefore resizes a longer image, continued by its last pixel, and keeps the first `length`
    elements. Positions beyond an image read the last pixel in any case.
    """
    transformation = binding.attr("coordinate_transformation_mode")
    for name, known in (
        (
            "coordinate_transformation_mode half_pixel_symmetric",
            transformation != "half_pixel_symmetric",
        ),
        ("antialias", not binding.attr("antialias", 0)),
        ("exclude_outside", not binding.attr("exclude_outside")),
    ):
        if not known:
            policy = binding.attr("keep_aspect_ratio_policy")
            raise InputError(
                f"the gradient of '{binding}' is not supported for keep_aspect_ratio_policy "
                f"{policy} with {name}: give scales"
            )
    rank = x.rank or 0
    axes = np.array([from_front(a, rank) for a in binding.attr("axes") or range(rank)], np.int64)
    before = op.Cast(op.Gather(op.Shape(x), axes, axis=0), to=TensorProto.FLOAT)
    ratios = op.Cast(sizes, to=TensorProto.FLOAT) / before
    smallest = binding.attr("keep_aspect_ratio_policy") == "not_larger"
    scale = (op.ReduceMin if smallest else op.ReduceMax)(ratios, [0], keepdims=1)
    more = op.Cast(op.Ceil(1.0 / scale), to=TensorProto.INT64) + np.array([1], np.int64)
    longer = op.Pad(
        identity, op.Concat(np.array([0], np.int64), more, axis=0), None, [1], mode="edge"
    )
    weights = op.Slice(_resized(binding, longer, None, scale=scale), [0], length, [1])
    if transformation == "pytorch_half_pixel":  # an output of one pixel reads the first pixel
        weights = op.Where(
            op.Equal(length, np.array([1], np.int64)), op.Slice(identity, [0], [1], [1]), weights
        )
    return weights


def _at(v: Var | None, position: int) -> Any:
    """Returns an element of a vector, as a vector: a number of known scales, which decide sizes."""
    known = floats_of(v) if v is not None and v.dtype == TensorProto.FLOAT else None
    if known is not None:
        return np.array(known[position : position + 1], np.float32)
    return op.Slice(v, [position], [position + 1], [0])


def _along(g: Var, axis: int, weights: Var, rank: int) -> Var:
    """Sums over the resized axis: the values of g times the weights of each source element."""
    if axis == rank - 1:
        return g @ weights.mT
    if axis == rank - 2:
        return weights @ g
    perm = [*(i for i in range(rank) if i != axis), axis]
    back = [int(i) for i in np.argsort(perm)]
    return op.Transpose(op.Transpose(g, perm=perm) @ weights.mT, perm=back)


vjp(
    "Resize",
    _resize,
    notes="nearest: the selected source; scales and roi receive nothing, and raise an error if "
    "requested by name",
)
