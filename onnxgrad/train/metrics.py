"""What evaluation counts beside the loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np

from onnxgrad.errors import InputError
from onnxgrad.ir.types import Array

# of a model's outputs and a batch: the mean over the batch, and how many examples that is of
Metric: TypeAlias = "Callable[[Mapping[str, Array], Mapping[str, Array]], tuple[float, int]]"


def accuracy(
    output: str = "logits", target: str = "labels", *, axis: int = 1, ignore_index: int = -100
) -> Metric:
    """The share of labels that the highest score along `axis` names."""

    def measure(outputs: Mapping[str, Array], batch: Mapping[str, Array]) -> tuple[float, int]:
        scores, labels = _named(outputs, output), _named(batch, target)
        counted = labels != ignore_index
        right = (scores.argmax(axis) == labels) & counted
        return float(right.sum()) / max(int(counted.sum()), 1), int(counted.sum())

    return measure


def _named(values: Mapping[str, Array], name: str) -> Array:
    if name not in values:
        raise InputError(
            f"the metric reads '{name}', and there are {', '.join(values) or 'no values'}"
        )
    return np.asarray(values[name])


def perplexity(loss: float) -> float:
    """e^loss of a mean cross entropy."""
    return float(np.exp(loss))
