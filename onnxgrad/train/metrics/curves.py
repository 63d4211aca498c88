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


@dataclass(frozen=True)
class _OfRanks(Score):
    """Metrics of the ranks of scores. The labels are 0 and 1 in the scores' shape, and the metric
    is the mean over the columns; NaN if a column has labels of one kind only. Scores of two classes
    along the last axis also accept labels without that axis; their difference is the score.

    Keeps the scores of all held-out data in memory.
    """

    ignore_index: int = -100

    def sums(self, scores: Any, labels: Any) -> Array:
        """Returns scores and labels, of shape (2, examples, columns)."""
        if scores.ndim > 1 and scores.shape[-1] == 2 and labels.size * 2 == scores.size:
            scores = scores[..., 1].astype(np.float64) - scores[..., 0]
        elif labels.size != scores.size:
            raise InputError(
                f"{self.name}: '{self.answers}' must be 0 and 1 in the scores' shape "
                f"{list(scores.shape)}, not {list(labels.shape)}"
            )
        if not np.isin(labels, (0, 1, self.ignore_index)).all():
            raise InputError(f"{self.name}: '{self.answers}' must be 0 and 1")
        columns = scores.shape[1] if scores.ndim == 2 else 1
        pair = [a.reshape(-1, columns).astype(np.float64) for a in (scores, labels)]
        return np.stack(pair)

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
