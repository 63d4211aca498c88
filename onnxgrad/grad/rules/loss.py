"""Losses in closed form."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onnxgrad.grad.registry import vjp
from onnxgrad.ir.block import Var
from onnxgrad.ir.ops import constant, op
from onnxgrad.ir.types import is_static, numpy_dtype


def _cross_entropy(
    g: Sequence[Var | None],
    y: Sequence[Var],
    scores: Var,
    labels: Var,
    weights: Var | None,
    reduction: str,
    ignore_index: int | None,
) -> Var | None:
    """(softmax - onehot) times each sample's share; the adjoint of log_prob, when there is one, as for LogSoftmax."""
    log_prob = y[1]
    probability = op.Exp(log_prob)
    total: Var | None = None
    if g[0] is not None:
        share, places = sample_share(g[0], scores, labels, weights, reduction, ignore_index)
        if is_static(places.shape):
            one_less = np.full([d for d in places.shape or () if isinstance(d, int)], -1.0, numpy_dtype(scores.dtype))
            total = op.ScatterElements(probability, places, one_less, axis=1, reduction="add") * share
        else:
            total = op.ScatterElements(probability * share, places, -share, axis=1, reduction="add")
    if len(g) > 1 and g[1] is not None:
        part = g[1] - probability * op.ReduceSum(g[1], [1], keepdims=1)
        total = part if total is None else total + part
    return total


def sample_share(
    g: Var, scores: Var, labels: Var, weights: Var | None, reduction: str, ignore_index: int | None
) -> tuple[Var, Var]:
    """What each sample's loss receives and its label, safe to index with: both (N, 1, d1, ...)."""
    places = op.Unsqueeze(labels, [1])  # (N, 1, d1, ...): samples broadcast against scores from here on
    ignored = None if ignore_index is None else op.Equal(places, labels_literal(ignore_index, labels))
    if ignored is not None:
        places = op.Where(ignored, labels_literal(0, labels), places)
    weight = None if weights is None else op.Gather(weights, places)
    if ignored is not None:
        weight = op.Where(
            ignored, constant(0.0, scores.dtype), constant(1.0, scores.dtype) if weight is None else weight
        )
    if reduction == "none":
        share = op.Unsqueeze(g, [1])
        return share if weight is None else share * weight, places
    if reduction == "mean":
        total = op.Cast(op.Size(labels), to=scores.dtype) if weight is None else op.ReduceSum(weight, keepdims=0)
        g = g / total
    return op.Expand(g, op.Shape(places)) if weight is None else weight * g, places


def labels_literal(value: int, labels: Var) -> np.generic:
    """An integer of the labels' dtype."""
    return np.int32(value) if labels.dtype == 6 else np.int64(value)


vjp("SoftmaxCrossEntropyLoss", _cross_entropy, notes="a weighted mean is not differentiated w.r.t. the weights")
