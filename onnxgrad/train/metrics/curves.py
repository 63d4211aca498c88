"""Areas under curves over all thresholds: how well scores rank labels 1 above labels 0."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from onnxgrad.errors import InputError
from onnxgrad.ir.types import Array
from onnxgrad.train.losses.weighting import is_counted
from onnxgrad.train.metrics.base import Score
from onnxgrad.wording import shape_text


@dataclass(frozen=True)
class _OfRanks(Score):
    """Metrics of the ranks of scores. The labels are 0 and 1 in the scores' shape, and the metric
    is the mean over the columns; NaN if a column has labels of one kind only.

    Scores of several classes along the last axis also accept indices without that axis. With
    two classes, the difference is the score; with more, each class is compared with the rest by its
    probability (by the softmax, unless the scores are probabilities), and the metric is the mean
    over the classes (macro).

    Keeps the scores of all held-out data in memory.
    """

    undefined: ClassVar[str] = (
        "the held-out labels are of one class only, or lack a class, or scores are NaN"
    )

    ignore_index: int = -100

    def sums(self, scores: Any, labels: Any) -> Array:
        """Returns scores and labels, of shape (2, examples, columns)."""
        classes = scores.shape[-1] if scores.ndim > 1 else 1
        if classes > 1 and labels.size * classes == scores.size and labels.shape != scores.shape:
            scores, labels = self._of_indices(scores, labels, classes)
        elif labels.size != scores.size:
            raise InputError(
                f"{self.name}: '{self.answers}' must be 0 and 1 in the scores' shape "
                f"{shape_text(scores.shape)}, or indices without the last axis, "
                f"not {shape_text(labels.shape)}"
            )
        if not np.isin(labels, (0, 1, self.ignore_index)).all():
            raise InputError(f"{self.name}: '{self.answers}' must be 0 and 1")
        columns = scores.shape[1] if scores.ndim == 2 else 1
        pair = [a.reshape(-1, columns).astype(np.float64) for a in (scores, labels)]
        return np.stack(pair)

    def _of_indices(self, scores: Any, labels: Any, classes: int) -> tuple[Array, Array]:
        """Returns a score for each class, or one for class 1 of two, and whether the label is that
        class.
        """
        wide = scores.astype(np.float64).reshape(-1, classes)
        labels = labels.reshape(-1)
        if classes == 2:
            return wide[:, 1] - wide[:, 0], labels
        if not np.isin(labels, (*range(classes), self.ignore_index)).all():
            raise InputError(f"{self.name}: '{self.answers}' must be indices below {classes}")
        if (wide < 0).any() or (np.abs(wide.sum(1) - 1) > 1e-3).any():
            wide = wide - np.logaddexp.reduce(wide, axis=1, keepdims=True)
        is_class = (labels[:, None] == np.arange(classes)).astype(np.int64)
        counted = is_counted(labels, self.ignore_index)
        return wide, np.where(counted[:, None], is_class, self.ignore_index)

    def added(self, a: Any, b: Any) -> Array:
        """Returns scores and labels of both parts."""
        return np.concatenate([a, b], 1)

    def value(self, sums: Any) -> float:
        each = []
        for scores, labels in zip(sums[0].T, sums[1].T):
            counted = is_counted(labels, self.ignore_index)
            each.append(self._column(scores[counted], labels[counted] == 1))
        return float(np.mean(each))

    def _column(self, scores: Any, yes: Any) -> float:
        if np.isnan(scores).any() or yes.all() or not yes.any():
            return float("nan")
        _, place = np.unique(scores, return_inverse=True)
        ones, zeros = (np.bincount(place, w, place.max() + 1) for w in (yes, ~yes))
        return float(self._area(ones, zeros))

    @abstractmethod
    def _area(self, ones: Any, zeros: Any) -> Any:
        """Returns the area from the numbers of labels 1 and 0 at each score, in rising order."""


@dataclass(frozen=True)
class RocAuc(_OfRanks):
    """The area under the receiver operating characteristic: the share of pairs of a label 1 and a
    label 0 in which the label 1 has the higher score; equal scores count half.
    """

    name: ClassVar[str] = "roc_auc"

    def _area(self, ones: Any, zeros: Any) -> Any:
        below = np.cumsum(zeros) - zeros
        return (ones * (below + zeros / 2)).sum() / (ones.sum() * zeros.sum())


@dataclass(frozen=True)
class PrAuc(_OfRanks):
    """The area under precision over recall, as average precision: the mean, over the labels 1, of
    the precision at their score as the threshold.
    """

    name: ClassVar[str] = "pr_auc"

    def _area(self, ones: Any, zeros: Any) -> Any:
        true, false = (np.cumsum(a[::-1])[::-1] for a in (ones, zeros))
        return (ones * true / (true + false)).sum() / ones.sum()
