"""Losses in closed form."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import TensorProto

from onnxgrad.grad.registry import vjp
from onnxgrad.grad.rules._common import as_count, counting, divided
from onnxgrad.grad.rules.scatter import scatter_elements
from onnxgrad.ir.emission.emit import constant
from onnxgrad.ir.emission.fill_and_reshape import zeros_like
from onnxgrad.ir.ops import op
from onnxgrad.ir.types import element_count, is_static, numpy_dtype
from onnxgrad.ir.var import Var

# larger constants would take too much space in the file
_KEPT = 4096
_NORMALISED = (TensorProto.FLOAT, TensorProto.DOUBLE)
_NOTES = "0 where the label is ignored, even if all are ignored and the mean itself is NaN"


def _cross_entropy(
    g: Sequence[Var | None],
    y: Sequence[Var],
    scores: Var,
    labels: Var,
    weights: Var | None,
    reduction: str,
    ignore_index: int | None,
) -> Var | None:
    """Returns (softmax - onehot) times each sample's share.

    An adjoint of log_prob adds the gradient of LogSoftmax.
    """
    probability = op.Exp(y[1])
    total: Var | None = None
    if g[0] is not None:
        share, places = sample_share(g[0], scores, labels, weights, reduction, ignore_index)
        if is_static(places.shape) and (element_count(places.shape) or 0) <= _KEPT:
            minus_one = np.full(
                [d for d in places.shape or () if isinstance(d, int)],
                -1.0,
                numpy_dtype(scores.dtype),
            )
            total = (
                scatter_elements(probability, places, constant(minus_one), axis=1, reduction="add")
                * share
            )
        else:
            total = scatter_elements(probability * share, places, -share, axis=1, reduction="add")
    if len(g) > 1 and g[1] is not None:
        part = g[1] - probability * op.ReduceSum(g[1], [1], keepdims=1)
        total = part if total is None else total + part
    return total


def safe_places(labels: Var, ignore_index: int | None, scores: Var) -> tuple[Var, Var | None]:
    """Returns the labels as (N, 1, d1, ...), safe as indices of classes, and the mask of ignored
    labels.
    """
    places = op.Unsqueeze(labels, [1])
    if ignore_index is None:
        return places, None
    ignored = op.Equal(places, labels_literal(ignore_index, labels))
    classes = scores.shape[1] if scores.shape else None
    if isinstance(classes, int) and -classes <= ignore_index < classes:
        return places, ignored
    return op.Where(ignored, labels_literal(0, labels), places), ignored


def sample_share(
    g: Var, scores: Var, labels: Var, weights: Var | None, reduction: str, ignore_index: int | None
) -> tuple[Var, Var]:
    """Returns the adjoint of each sample's loss and its label, safe as an index: (N, 1, d1, ...).

    An ignored sample receives 0, even if all are ignored and the mean itself is NaN. Labelled
    samples receive 0/0 if all have weight 0, as in PyTorch.
    """
    places, ignored = safe_places(labels, ignore_index, scores)
    weight = None if weights is None else op.Gather(weights, places)
    if ignored is not None:
        weight = op.Where(
            ignored,
            constant(0.0, scores.dtype),
            constant(1.0, scores.dtype) if weight is None else weight,
        )
    if reduction == "none":
        share = op.Unsqueeze(g, [1])
        return share if weight is None else share * weight, places
    # dtypes for which onnxruntime has LpNormalization of columns
    column = weight is not None and weight.rank == 2 and weight.dtype in _NORMALISED
    if reduction == "mean" and weights is None and column:
        # 1 / the number of counted samples; 0 if there are none, although the mean itself is NaN
        return op.LpNormalization(weight, p=1, axis=0) * g, places
    if reduction == "mean":
        total = (
            as_count(op.Size(labels), scores)
            if weight is None
            else op.ReduceSum(counting(weight), keepdims=0)
        )
        g = divided(g, total)
        if ignored is not None:
            return op.Where(ignored, 0.0, g if weights is None else weight * g), places
    return op.Expand(g, op.Shape(places)) if weight is None else weight * g, places


def _weights(
    g: Var,
    y: Var,
    log_prob: Var,
    labels: Var,
    weights: Var,
    reduction: str,
    ignore_index: int | None,
) -> Var:
    """Returns each class's sum of its samples' -log p.

    For a mean, the loss itself is subtracted and the result is divided by the total weight.
    """
    places, ignored = safe_places(labels, ignore_index, log_prob)
    part = -op.GatherElements(log_prob, places, axis=1)
    if reduction == "mean":
        weight = op.Gather(weights, places)
        if ignored is not None:
            weight = op.Where(ignored, 0.0, weight)
        part = (part - y) * divided(g, op.ReduceSum(counting(weight), keepdims=0))
    else:
        part = part * (op.Unsqueeze(g, [1]) if reduction == "none" else g)
    if ignored is not None:
        part = op.Where(ignored, 0.0, part)
    flat = op.Reshape(places, [-1])
    return scatter_elements(
        zeros_like(weights), flat, op.Reshape(part, [-1]), axis=0, reduction="add"
    )


def _likelihood(
    g: Var,
    y: Var,
    log_prob: Var,
    labels: Var,
    weights: Var | None,
    reduction: str,
    ignore_index: int | None,
) -> Var:
    """Puts each sample's negative share at its label."""
    share, places = sample_share(g, log_prob, labels, weights, reduction, ignore_index)
    return op.ScatterElements(zeros_like(log_prob), places, -share, axis=1)


def labels_literal(value: int, labels: Var) -> np.generic:
    """Returns an integer as a scalar of the labels' dtype."""
    return np.int32(value) if labels.dtype == 6 else np.int64(value)


vjp(
    "SoftmaxCrossEntropyLoss",
    _cross_entropy,
    None,
    lambda g, y, scores, labels, weights, reduction, ignore_index: (
        None
        if g[0] is None
        else _weights(g[0], y[0], y[1], labels, weights, reduction, ignore_index)
    ),
    notes=_NOTES,
)
vjp(
    "NegativeLogLikelihoodLoss",
    _likelihood,
    None,
    _weights,
    notes=_NOTES,
)
