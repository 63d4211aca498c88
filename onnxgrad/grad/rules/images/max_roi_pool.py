"""MaxRoiPool: each bin's first maximum receives its adjoint."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto

from onnxgrad.grad.registry import vjp
from onnxgrad.grad.rules._common import as_number, size_along
from onnxgrad.grad.rules.images._roi_max import Candidates
from onnxgrad.grad.rules.images._roi_samples import as_type_of, counting
from onnxgrad.grad.rules.images._sampling import as_type, product, reshaped
from onnxgrad.ir.emission.constant import constant
from onnxgrad.ir.like import reshape_like
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var


def _max_roi_pool(
    g: Var, y: Var, x: Var, rois: Var, pooled_shape: Any, spatial_scale: float
) -> Var:
    """Each bin's first maximum receives its adjoint. Bins' ends are rounded as onnxruntime's
    float32 does.
    """
    dtype = TensorProto.FLOAT
    rois, x_ = as_type(rois, dtype), as_type(x, dtype)
    h, w = size_along(x_, 2), size_along(x_, 3)
    batch = op.Cast(op.Gather(rois, np.array([0], np.int64), axis=1), to=TensorProto.INT64)
    rows, columns = (
        _windows(rois, axis, (h, w)[axis], pooled_shape[axis], spatial_scale) for axis in range(2)
    )
    (ys, y_in, y_count), (xs, x_in, x_count) = rows, columns
    down, across = [2, 4], [1, 3]
    within = op.Add(op.Mul(op.Unsqueeze(ys, down), w), op.Unsqueeze(xs, across))
    inside = op.And(op.Unsqueeze(y_in, down), op.Unsqueeze(x_in, across))
    flat = [
        size_along(rois, 0),
        np.array([int(np.prod(pooled_shape))], np.int64),
        product([y_count, x_count]),
    ]
    image = op.Unsqueeze(op.Mul(batch, op.Mul(h, w)), [2])
    taken = reshaped(as_number(inside, x_), flat)
    chosen = Candidates.among(x_, op.Add(reshaped(within, flat), image), taken, None)
    return reshape_like(chosen.spread(chosen.columns(as_type(g, dtype)) * chosen.of(taken)), x)


def _windows(rois: Var, axis: int, size: Any, bins: int, scale: float) -> tuple[Var, Var, Any]:
    """The pixels of each region's bins along one axis, (R, bins, K), whether each belongs to it,
    and K.
    """
    ends = (
        op.Gather(rois, np.array([column], np.int64), axis=1) * float(scale)
        for column in (2 - axis, 4 - axis)
    )
    first, last = (op.Sign(v) * op.Floor(op.Abs(v) + 0.5) for v in ends)
    extent = op.Max(last - first + 1.0, 1.0) / float(bins)
    number = constant(np.arange(bins), rois.dtype)
    limit = as_type_of(size, rois)
    begin, end = op.Floor(number * extent) + first, op.Ceil((number + 1.0) * extent) + first
    begin, end = (op.Min(op.Max(v, 0.0), limit) for v in (begin, end))
    widest = op.ReduceMax(op.Concat(op.Reshape(end - begin, [-1]), [1.0], axis=0), keepdims=1)
    count = op.Cast(widest, to=TensorProto.INT64)
    place = op.Unsqueeze(begin, [2]) + counting(count, rois.dtype)
    inside = op.Less(place, op.Unsqueeze(end, [2]))
    return op.Cast(op.Min(place, op.Sub(limit, 1.0)), to=TensorProto.INT64), inside, count


vjp(
    "MaxRoiPool",
    _max_roi_pool,
    notes="equal maxima: the first; regions are rounded to pixels and receive nothing",
)
