"""Metrics of held-out data, computed from sums over batches.

A metric reads an output of the model and an array of the batch. Most metrics are not means over
batches: the F1 of a data set is not the mean of the batches' F1. So each adds up sums, and computes
its value from them.
"""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import numpy as np

from onnxgrad.errors import InputError
from onnxgrad.ir.types import Array
from onnxgrad.named_options import declared, read
from onnxgrad.options import Count, Declared, Range, check_fields, known_keywords
from onnxgrad.train.manifest import Fed

Arrays: TypeAlias = "Mapping[str, Array]"
# accepts a model's outputs and a batch; returns the mean over the batch and its examples
Metric: TypeAlias = "Callable[[Arrays, Arrays], tuple[float, int]]"


@dataclass(frozen=True)
class Score(metaclass=Declared):
    """A metric over all batches. Raises InputError for an option of another type or out of range.

    output: the output of the model. Defaults to its only floating-point output with an axis.
    target: the array of the batch with the right answers; the loss need not read it.
    """

    name: ClassVar[str] = ""

    output: str | None = None
    target: str = "labels"

    def __post_init__(self) -> None:
        check_fields(self, self.name)

    @abstractmethod
    def sums(self, scores: Array, labels: Array) -> Array:
        """Returns what one batch adds, in a shape that is the same for all batches. Raises
        InputError for arrays that do not fit.
        """

    def added(self, a: Any, b: Any) -> Array:
        """Returns the sums over two parts of the data."""
        return np.asarray(a + b)

    @abstractmethod
    def value(self, sums: Array) -> float:
        """Returns the metric from the sums over all data; NaN without data."""

    def of(self, outputs: Arrays, batch: Arrays) -> Array:
        """Returns the sums of a batch. Raises InputError if an array is missing."""
        labels, name = named(batch, self.target), self.output
        if name is None:
            floats = [n for n, a in outputs.items() if a.dtype.kind not in "biuOSU" and a.ndim]
            if len(floats) != 1:
                raise InputError(
                    f"{self.name} needs output=: the model has {', '.join(floats) or 'none'}"
                )
            (name,) = floats
        with np.errstate(all="ignore"):
            return self.sums(named(outputs, name), labels)

    def __call__(self, outputs: Arrays, batch: Arrays) -> tuple[float, int]:
        """Returns the value of one batch and the number of its examples."""
        return self.value(self.of(outputs, batch)), len(named(batch, self.target))


def named(values: Arrays, name: str) -> Array:
    """Returns the array of that name. Raises InputError if there is none."""
    if name not in values:
        raise InputError(
            f"the metric reads '{name}', but the values are {', '.join(values) or 'none'}"
        )
    return np.asarray(values[name])


# ---- classes -------------------------------------------------------------------------------------


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


@dataclass(frozen=True)
class Perplexity(Score):
    """exp of the mean of -log softmax(z)_t over the labels t that are not ignore_index.

    The scores have shape (..., S, V) and the labels (..., S). As in `sequence_cross_entropy`, the
    scores at position i belong to the label at position i + shift. None: as the loss of these
    labels, by default 1.
    """

    name: ClassVar[str] = "perplexity"
    shift: Annotated[int, Range(0, (1 << 31) - 1)] | None = None
    ignore_index: int = -100

    def sums(self, scores: Array, labels: Array) -> Array:
        if scores.ndim < 2 or labels.shape != scores.shape[:-1]:
            raise InputError(
                f"perplexity: scores {list(scores.shape)} need labels {list(scores.shape[:-1])}, "
                f"and '{self.target}' has shape {list(labels.shape)}"
            )
        length, shift = scores.shape[-2], 1 if self.shift is None else self.shift
        z = scores[..., : max(length - shift, 0), :].astype(np.float64)
        labels = labels[..., shift:]
        counted = labels != self.ignore_index
        place = np.where(counted, labels, 0).astype(np.int64)[..., None]
        if place.size and not 0 <= place.min() <= place.max() < z.shape[-1]:
            raise InputError(f"perplexity: '{self.target}' has labels beyond {z.shape[-1]} classes")
        z = z - z.max(-1, keepdims=True)
        lost = np.log(np.exp(z).sum(-1)) - np.take_along_axis(z, place, -1)[..., 0]
        return np.array([lost[counted].sum(), counted.sum()])

    def value(self, sums: Array) -> float:
        with np.errstate(all="ignore"):
            return float(np.exp(sums[0] / sums[1]))


# ---- numbers -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class R2(Score):
    """1 - sum (t - y)^2 / sum (t - mean t)^2, the coefficient of determination, averaged over the
    numbers of an example. A target without spread has 1 if every prediction is exact, else 0.
    """

    name: ClassVar[str] = "r2"
    target: str = "target"

    def sums(self, scores: Array, labels: Array) -> Array:
        """Returns the count, the mean, the sum of squares around it, and that of the errors."""
        if scores.shape != labels.shape or not scores.ndim:
            raise InputError(
                f"r2: '{self.target}' has shape {list(labels.shape)}, the output "
                f"{list(scores.shape)}"
            )
        flat = (len(labels), prod(labels.shape[1:]))
        t: Any = labels.reshape(flat).astype(np.float64)
        off = t - scores.reshape(flat)
        mean = t.mean(0) if len(t) else np.zeros(t.shape[1])
        count = np.full(t.shape[1], float(len(t)))
        return np.stack([count, mean, ((t - mean) ** 2).sum(0), (off**2).sum(0)])

    def added(self, a: Any, b: Any) -> Array:
        """Returns the sums around the common mean. Source: Chan, Golub and LeVeque, "Updating
        Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979.
        """
        count = np.maximum(a[0] + b[0], 1)
        apart = b[1] - a[1]
        mean = a[1] + apart * b[0] / count
        return np.stack(
            [a[0] + b[0], mean, a[2] + b[2] + apart**2 * a[0] * b[0] / count, a[3] + b[3]]
        )

    def value(self, sums: Array) -> float:
        spread, errors = sums[2], sums[3]
        with np.errstate(all="ignore"):
            each = np.where(spread > 0, 1 - errors / spread, np.where(errors > 0, 0.0, 1.0))
        return float(each.mean()) if sums[0].any() else float("nan")


METRICS: dict[str, type[Score]] = {
    cls.name: cls for cls in declared(sys.modules[__name__], Score) if cls.name
}


@known_keywords
def accuracy(
    output: str = "logits", target: str = "labels", *, axis: int = 1, ignore_index: int = -100
) -> Metric:
    """Returns a metric: the share of labels with the highest score along `axis`.

    output: the output of the model with the scores.
    target: the array of the batch with the labels; the loss need not read it. Labels are indices in
    the scores' shape without `axis` or with size 1 there, or distributions over the classes, of
    which the highest class counts.

    The metric raises InputError for other labels, and for scores of one class.
    """
    return Accuracy(output, target, axis, ignore_index)


def metrics_from(
    given: Mapping[str, Metric | str] | Sequence[str] | str | None, of_loss: Sequence[Fed] = ()
) -> dict[str, Metric]:
    """Returns metrics by name, from a mapping to metrics or texts `NAME{option=value}`, or from
    texts alone, which are then the names. of_loss: the batch, of which labels have the shift of the
    loss. Raises InputError for anything else.
    """
    shifts = {fed.name: fed.unread or 0 for fed in of_loss if fed.ignored is not None}
    texts = (given,) if isinstance(given, str) else given or ()
    by_name = texts if isinstance(texts, Mapping) else {text: text for text in texts}
    found: dict[str, Metric] = {}
    for name, metric in by_name.items():
        found[name] = read(metric, METRICS, "metric") if isinstance(metric, str) else metric
        if not callable(found[name]):
            raise InputError(f"metric '{name}' must be a function or text, not {metric!r:.80}")
    for name, own in found.items():
        if isinstance(own, Perplexity) and own.shift is None:
            found[name] = replace(own, shift=shifts.get(own.target))
    return found
