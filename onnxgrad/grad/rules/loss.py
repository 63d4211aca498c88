"""Losses in closed form."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onnxgrad.grad.registry import vjp
from onnxgrad.ir.block import Var
from onnxgrad.ir.ops import op


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
        total = op.ScatterElements(probability * share, places, -share, axis=1, reduction="add")
    if len(g) > 1 and g[1] is not None:
        part = g[1] - probability * op.ReduceSum(g[1], [1], keepdims=1)
        total = part if total is None else total + part
    return total


def sample_share(
    g: Var, scores: Var, labels: Var, weights: Var | None, reduction: str, ignore_index: int | None
) -> tuple[Var, Var]:
    """What each sample's loss receives, (N, 1, d1, ...) of the scores' dtype, and its label, safe to index with."""
    ignored = None if ignore_index is None else op.Equal(labels, labels_literal(ignore_index, labels))
    safe = labels if ignored is None else op.Where(ignored, labels_literal(0, labels), labels)
    weight = None if weights is None else op.Gather(weights, safe)
    if ignored is not None:
        weight = op.Where(ignored, 0.0, weight) if weight is not None else op.Cast(op.Not(ignored), to=scores.dtype)
    places = op.Unsqueeze(safe, [1])
    if reduction == "mean":
        if weight is None:
            count = op.Cast(op.Size(labels), to=scores.dtype)
            share = op.Expand(g / count, op.Shape(labels))
        else:
            share = weight * (g / op.ReduceSum(weight, keepdims=0))
    elif weight is not None:
        share = weight * g
    else:
        share = g if reduction == "none" else op.Expand(g, op.Shape(labels))
    return op.Unsqueeze(share, [1]), places


def labels_literal(value: int, labels: Var) -> np.generic:
    """An integer of the labels' dtype."""
    return np.int32(value) if labels.dtype == 6 else np.int64(value)


vjp("SoftmaxCrossEntropyLoss", _cross_entropy, notes="a weighted mean is not differentiated w.r.t. the weights")
