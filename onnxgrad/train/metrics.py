"""What evaluation counts beside the loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np

from onnxgrad.errors import InputError
from onnxgrad.ir.types import Array
from onnxgrad.options import known_keywords

# of a model's outputs and a batch: the mean over the batch, and how many examples that is of
Metric: TypeAlias = "Callable[[Mapping[str, Array], Mapping[str, Array]], tuple[float, int]]"


@known_keywords
def accuracy(
    output: str = "logits", target: str = "labels", *, axis: int = 1, ignore_index: int = -100
) -> Metric:
    """The share of labels that the highest score along `axis` names.

    The labels are an array of the batch, whether the loss takes it or not: indices, of the scores'
    shape without that axis or with 1 there, or one distribution over the classes for each of them,
    whose highest counts. The metric raises InputError for others, and for scores of one class.
    """

    def measure(outputs: Mapping[str, Array], batch: Mapping[str, Array]) -> tuple[float, int]:
        scores = _named(outputs, output)
        if not -scores.ndim <= axis < scores.ndim or scores.shape[axis] == 1:
            raise InputError(
                f"accuracy of '{output}', {list(scores.shape)}: it needs scores of several classes "
                f"along axis {axis}"
            )
        labels = _indices(_named(batch, target), target, scores, axis)
        counted = labels != ignore_index
        right = (scores.argmax(axis) == labels) & counted
        return float(right.sum()) / max(int(counted.sum()), 1), int(counted.sum())

    return measure


def _indices(labels: Array, name: str, scores: Array, axis: int) -> Array:
    """Labels as indices, of the scores' shape without the axis."""
    best: Array = scores.argmax(axis)
    if labels.shape == best.shape:
        return labels
    if labels.shape == np.expand_dims(best, axis).shape:
        return labels.squeeze(axis)
    if labels.shape != scores.shape:
        raise InputError(
            f"accuracy: '{name}' has shape {list(labels.shape)}, the scores {list(scores.shape)}"
        )
    if (np.abs(labels.astype(np.float64).sum(axis) - 1) > 1e-3).any():
        raise InputError(
            f"accuracy: '{name}' names several classes at once, or none: measure what you mean by "
            "a metric of your own"
        )
    found: Array = labels.argmax(axis)
    return found


def _named(values: Mapping[str, Array], name: str) -> Array:
    if name not in values:
        raise InputError(
            f"the metric reads '{name}', and there are {', '.join(values) or 'no values'}"
        )
    return np.asarray(values[name])


def perplexity(loss: float) -> float:
    """e^loss of a mean cross entropy."""
    return float(np.exp(loss))
