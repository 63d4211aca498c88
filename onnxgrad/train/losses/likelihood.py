"""The negative log-likelihood of labels under scores, by ONNX's own operator where it says all.

SoftmaxCrossEntropyLoss has a gradient in closed form (softmax - onehot), the cheapest that there
is, and it takes the maximum off before it exponentiates. Smoothing needs the log-probabilities,
which are its second result.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from onnxgrad.ir.emission.constant import constant
from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var
from onnxgrad.train.losses.base import size


def negative_log_likelihood(
    z: Var,
    labels: Var,
    weight: Var | None,
    *,
    ignore_index: int,
    label_smoothing: float,
    reduction: str,
) -> Var:
    """-w_t log softmax(z)_t over all labels t that are not ignored: scores (N, C, ...), labels (N,
    ...).

    The mean divides by the sum of w_t. NaN where a label is no class: onnxruntime would count
    negative ones from the end, and other runtimes read what lies beside.
    """
    labels, wrong = _checked(z, labels, ignore_index)
    wanted = 2 if label_smoothing else 1
    loss, *more = op.SoftmaxCrossEntropyLoss(
        z, labels, weight, ignore_index=ignore_index, reduction=reduction, outputs=wanted
    )
    if more:
        kept = op.Not(op.Equal(labels, ignore_index))
        uniform = _uniform(more[0], weight, kept)
        if reduction == "mean":
            uniform = uniform / _share(labels, weight, kept, z.dtype)
        loss = (1.0 - label_smoothing) * loss + (label_smoothing / size(z, 1)) * uniform
    return op.Where(wrong, constant(np.nan, z.dtype), loss)


def _checked(z: Var, labels: Var, ignore_index: int) -> tuple[Var, Var]:
    """The labels, those that are no class as ignored ones, and whether there is such a one."""
    classes = None if z.shape is None else z.shape[1]
    count = (
        classes
        if isinstance(classes, int)
        else op.Cast(op.Gather(op.Shape(z), np.int64(1)), to=labels.dtype)
    )
    outside = op.Or(op.Less(labels, 0), op.GreaterOrEqual(labels, count))
    wrong = op.And(outside, op.Not(op.Equal(labels, ignore_index)))
    some = op.Greater(op.ReduceSum(op.Cast(wrong, to=TensorProto.INT32), keepdims=0), 0)
    return op.Where(wrong, ignore_index, labels), some


def _uniform(log_p: Var, weight: Var | None, kept: Var) -> Var:
    """-sum w_c log p_c over all classes and the samples that count."""
    if weight is not None:
        log_p = log_p * op.Reshape(weight, [-1, *[1] * ((log_p.rank or 2) - 2)])
    return op.ReduceSum(op.Where(kept, -op.ReduceSum(log_p, [1], keepdims=0), 0.0), keepdims=0)


def _share(labels: Var, weight: Var | None, kept: Var, dtype: int) -> Var:
    """What a mean divides by: how many labels count, or what they weigh."""
    if weight is None:
        return op.ReduceSum(op.Cast(kept, to=dtype), keepdims=0)
    class_ = op.Where(kept, labels, 0)
    return op.ReduceSum(op.Where(kept, op.Gather(weight, class_), 0.0), keepdims=0)
