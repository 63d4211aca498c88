"""Metrics of class scores: shares of labels, and counts of right and wrong predictions."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np

from onnxgrad.errors import InputError
from onnxgrad.ir.types import Array
from onnxgrad.options import Count
from onnxgrad.train.losses.weighting import is_counted
from onnxgrad.train.metrics.base import Arrays, Score
from onnxgrad.wording import shape_text

_THRESHOLD = ": one score per label needs threshold, 0 for logits or 0.5 for probabilities"
_SEVERAL = "set threshold (0 for logits, 0.5 for probabilities), or use a function as the metric"


@dataclass(frozen=True)
class _OfClasses(Score):
    """Metrics of class scores. The labels are indices in the scores' shape without `axis` or with
    size 1 there. They may also be distributions over the classes, of which the highest class
    counts.
    """

    axis: int = 1
    ignore_index: int = -100

    def is_single(self, shape: Sequence[Any]) -> bool:
        """Whether scores of this shape have one score for each label, not several along `axis`."""
        return not -len(shape) <= self.axis < len(shape) or shape[self.axis] == 1

    def _indices(self, scores: Array, labels: Array) -> tuple[Array, Array]:
        """Returns the labels as indices, without the axis of classes, and which of them count."""
        if self.is_single(scores.shape):
            more = _THRESHOLD if isinstance(self, WithThreshold) else ""
            raise InputError(
                f"{self.name}: {self.output or 'the output'} has shape {shape_text(scores.shape)}, "
                f"and must have scores of several classes along axis {self.axis}{more}"
            )
        best: Array = scores.argmax(self.axis)
        if labels.shape == np.expand_dims(best, self.axis).shape:
            labels = labels.squeeze(self.axis)
        elif labels.shape == scores.shape:
            if (np.abs(labels.astype(np.float64).sum(self.axis) - 1) > 1e-3).any():
                raise InputError(
                    f"{self.name}: '{self.answers}' marks several classes of one example, or none: "
                    f"{_SEVERAL}"
                )
            labels = np.asarray(labels.argmax(self.axis))
        elif labels.shape != best.shape:
            last = scores.shape[:-1] == labels.shape and ": the classes are along axis=-1"
            raise InputError(
                f"{self.name}: '{self.answers}' has shape {shape_text(labels.shape)}, the scores "
                f"{shape_text(scores.shape)}{last or ''}"
            )
        return labels, is_counted(labels, self.ignore_index)

    def _found(self, scores: Any, labels: Any) -> tuple[Array, Array, int]:
        """Returns the label and the predicted class of each label that counts, and the number of
        classes.
        """
        labels, counted = self._indices(scores, labels)
        count, found = scores.shape[self.axis], scores.argmax(self.axis)[counted]
        right = labels[counted].astype(np.int64)
        if right.size and not 0 <= right.min() <= right.max() < count:
            raise InputError(
                f"{self.name}: '{self.answers}' has labels from {right.min()} to {right.max()}, "
                f"but the classes are 0 to {count - 1}"
            )
        return right, found, count


@dataclass(frozen=True)
class WithThreshold(_OfClasses):
    """threshold: if None, the class with the highest score is predicted. If a number, every class
    with a higher score is predicted, and the labels are 0 and 1 in the scores' shape; 0 suits
    logits, 0.5 probabilities. For one score per label, as of `bce_with_logits`, it is needed, and
    defaults to 0 if that is the loss of the output.
    """

    threshold: float | None = field(default=None, kw_only=True)

    def _above(self, scores: Any, labels: Any) -> tuple[Any, Any, Any]:
        """Returns which labels count, which are 1, and which scores are above the threshold."""
        if labels.size != scores.size or not np.isin(labels, (0, 1, self.ignore_index)).all():
            raise InputError(
                f"{self.name}: with a threshold '{self.answers}' must be 0 and 1 in the scores' "
                f"shape {shape_text(scores.shape)}, not {shape_text(labels.shape)}"
            )
        labels = labels.reshape(scores.shape)
        return is_counted(labels, self.ignore_index), labels == 1, scores > self.threshold


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
class Accuracy(_Share, WithThreshold):
    """The share of labels with the highest score along `axis`; with a threshold, of labels 1 above
    and 0 below it.
    """

    name: ClassVar[str] = "accuracy"

    def sums(self, scores: Array, labels: Array) -> Array:
        if self.threshold is not None:
            counted, yes, above = self._above(scores, labels)
            return np.array([((above == yes) & counted).sum(), counted.sum()], np.float64)
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
class _OfCounts(WithThreshold):
    """Metrics of true positives, false positives and false negatives, counted for each class; with
    one score per label, for the labels 1.

    average: "macro" is the mean over the classes that occur as a label or a prediction, "weighted"
    weights them by their labels, "micro" adds the counts of all classes up first.
    """

    average: Literal["macro", "micro", "weighted"] = "macro"

    def sums(self, scores: Any, labels: Any) -> Array:
        if self.threshold is None:
            table = counted_pairs(*self._found(scores, labels))
            hits = np.diagonal(table)
            return np.stack([hits, table.sum(0) - hits, table.sum(1) - hits]).astype(np.float64)
        counted, yes, above = self._above(scores, labels)
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


@dataclass(frozen=True)
class Precision(_OfCounts):
    """TP / (TP + FP); 0 for a class that occurs, but is never predicted."""

    name: ClassVar[str] = "precision"

    def _of(self, hits: Any, extra: Any, missed: Any) -> Array:
        return np.asarray(hits / np.maximum(hits + extra, 1))


@dataclass(frozen=True)
class Recall(_OfCounts):
    """TP / (TP + FN); 0 for a class that is predicted, but never occurs."""

    name: ClassVar[str] = "recall"

    def _of(self, hits: Any, extra: Any, missed: Any) -> Array:
        return np.asarray(hits / np.maximum(hits + missed, 1))


@dataclass(frozen=True)
class Confusion(WithThreshold):
    """The number of labels of each class (rows) by the predicted class (columns), as a table: `fit`
    reports it for the trained weights. With a threshold, the classes are 0 and 1.
    """

    name: ClassVar[str] = "confusion"

    def sums(self, scores: Any, labels: Any) -> Array:
        if self.threshold is None:
            return counted_pairs(*self._found(scores, labels))
        if not self.is_single(scores.shape):
            raise InputError(
                f"confusion: {self.output or 'the output'} has several scores per label: leave "
                "threshold out"
            )
        counted, yes, above = self._above(scores, labels)
        return counted_pairs(yes[counted].astype(np.int64), above[counted].astype(np.int64), 2)

    def value(self, sums: Array) -> float:
        raise InputError(
            "confusion is a table, not a number: `fit` reports it, and in Python "
            "metrics.Confusion().of(trainer.predict(data), data) returns it"
        )


def counted_pairs(right: Any, found: Any, count: int) -> Array:
    """Returns how often each class (rows) is found as each class (columns)."""
    both = np.bincount(right * count + found, minlength=count * count)
    return both.reshape(count, count)
