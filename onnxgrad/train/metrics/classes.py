"""Metrics of class scores: shares of labels, and counts of right and wrong predictions."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from onnxgrad.errors import InputError
from onnxgrad.ir.types import Array
from onnxgrad.options import Count
from onnxgrad.train.metrics.base import Arrays, Score


@dataclass(frozen=True)
class _OfClasses(Score):
    """Metrics of class scores. The labels are indices in the scores' shape without `axis` or with
    size 1 there. They may also be distributions over the classes, of which the highest class
    counts.
    """

    axis: int = 1
    ignore_index: int = -100

    def _indices(self, scores: Array, labels: Array) -> tuple[Array, Array]:
        """Returns the labels as indices, without the axis of classes, and which of them count."""
        if not -scores.ndim <= self.axis < scores.ndim or scores.shape[self.axis] == 1:
            raise InputError(
                f"{self.name}: {self.output or 'the output'} has shape {list(scores.shape)}, and "
                f"must have scores of several classes along axis {self.axis}"
            )
        best: Array = scores.argmax(self.axis)
        if labels.shape == np.expand_dims(best, self.axis).shape:
            labels = labels.squeeze(self.axis)
        elif labels.shape == scores.shape:
            if (np.abs(labels.astype(np.float64).sum(self.axis) - 1) > 1e-3).any():
                raise InputError(
                    f"{self.name}: '{self.target}' marks several classes of one example, or none: "
                    "use a function as the metric"
                )
            labels = np.asarray(labels.argmax(self.axis))
        elif labels.shape != best.shape:
            raise InputError(
                f"{self.name}: '{self.target}' has shape {list(labels.shape)}, the scores "
                f"{list(scores.shape)}"
            )
        return labels, labels != self.ignore_index


@dataclass(frozen=True)
class _Share(_OfClasses):
    """A metric that is a share of the labels that count."""

    def value(self, sums: Array) -> float:
        return float(sums[0] / max(sums[1], 1))

    def __call__(self, outputs: Arrays, batch: Arrays) -> tuple[float, int]:
        """Returns the share in one batch and the number of labels that count."""
        sums = self.of(outputs, batch)
        return self.value(sums), int(sums[1])


@dataclass(frozen=True)
class Accuracy(_Share):
    """The share of labels with the highest score along `axis`."""

    name: ClassVar[str] = "accuracy"

    def sums(self, scores: Array, labels: Array) -> Array:
        labels, counted = self._indices(scores, labels)
        right = (scores.argmax(self.axis) == labels) & counted
        return np.array([right.sum(), counted.sum()], np.float64)


@dataclass(frozen=True)
class TopK(_Share):
    """The share of labels for which fewer than k classes have a higher score."""

    name: ClassVar[str] = "top_k"
    k: Count = 5

    def sums(self, scores: Any, labels: Any) -> Array:
        labels, counted = self._indices(scores, labels)
        classes = scores.shape[self.axis]
        if self.k > classes:
            raise InputError(f"top_k: k is {self.k}, but there are only {classes} classes")
        place = np.where(counted & (labels >= 0) & (labels < classes), labels, 0).astype(np.int64)
        own = np.take_along_axis(scores, np.expand_dims(place, self.axis), self.axis)
        higher = (scores > own).sum(self.axis)
        right = counted & (place == labels) & (higher < self.k) & ~np.isnan(own).squeeze(self.axis)
        return np.array([right.sum(), counted.sum()], np.float64)


@dataclass(frozen=True)
class _OfCounts(_OfClasses):
    """Metrics of true positives, false positives and false negatives, counted for each class.

    threshold: if None, the class with the highest score is predicted. If a number, every class with
    a higher score is predicted, and the labels are 0 and 1 in the scores' shape; 0 suits logits,
    0.5 probabilities.
    average: "macro" is the mean over the classes that occur as a label or a prediction, "weighted"
    weights them by their labels, "micro" adds the counts of all classes up first.
    """

    threshold: float | None = None
    average: Literal["macro", "micro", "weighted"] = "macro"

    def sums(self, scores: Any, labels: Any) -> Array:
        if self.threshold is None:
            labels, counted = self._indices(scores, labels)
            count, found = scores.shape[self.axis], scores.argmax(self.axis)[counted]
            right = labels[counted].astype(np.int64)
            if right.size and not 0 <= right.min() <= right.max() < count:
                raise InputError(
                    f"{self.name}: '{self.target}' has labels from {right.min()} to {right.max()}, "
                    f"but the classes are 0 to {count - 1}"
                )
            both = np.bincount(right * count + found, minlength=count * count)
            table = both.reshape(count, count)
            hits = np.diagonal(table)
            return np.stack([hits, table.sum(0) - hits, table.sum(1) - hits]).astype(np.float64)
        if labels.size != scores.size or not np.isin(labels, (0, 1, self.ignore_index)).all():
            raise InputError(
                f"{self.name}: with a threshold '{self.target}' must be 0 and 1 in the scores' "
                f"shape {list(scores.shape)}, not {list(labels.shape)}"
            )
        labels = labels.reshape(scores.shape)
        counted, yes, above = labels != self.ignore_index, labels == 1, scores > self.threshold
        many = scores.ndim > self.axis >= -scores.ndim
        axes = tuple(i for i in range(scores.ndim) if many and i != self.axis % scores.ndim)
        each = [counted & above & yes, counted & above & ~yes, counted & ~above & yes]
        return np.stack([np.atleast_1d(a.sum(axes if many else None)) for a in each]).astype(float)

    def value(self, sums: Array) -> float:
        if self.average == "micro":
            sums = sums.sum(1, keepdims=True)
        hits, extra, missed = sums
        with np.errstate(all="ignore"):
            each = self._of(hits, extra, missed)
        occurs = hits + extra + missed > 0
        weights = hits + missed if self.average == "weighted" else occurs.astype(np.float64)
        return (
            float(np.average(np.where(occurs, each, 0), weights=weights))
            if weights.any()
            else (float("nan"))
        )

    @abstractmethod
    def _of(self, hits: Any, extra: Any, missed: Any) -> Array:
        """Returns the metric of each class; NaN for a class that does not occur."""


@dataclass(frozen=True)
class F1(_OfCounts):
    """2 TP / (2 TP + FP + FN), the harmonic mean of precision and recall."""

    name: ClassVar[str] = "f1"

    def _of(self, hits: Any, extra: Any, missed: Any) -> Array:
        return np.asarray(2 * hits / (2 * hits + extra + missed))


@dataclass(frozen=True)
class IoU(_OfCounts):
    """TP / (TP + FP + FN): the intersection of labels and predictions over their union."""

    name: ClassVar[str] = "iou"

    def _of(self, hits: Any, extra: Any, missed: Any) -> Array:
        return np.asarray(hits / (hits + extra + missed))
