"""Metrics of numbers: errors of predictions, and probabilities of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Annotated, Any, ClassVar

import numpy as np

from onnxgrad.errors import InputError
from onnxgrad.ir.types import Array
from onnxgrad.options import Range
from onnxgrad.train.losses.weighting import is_counted
from onnxgrad.train.metrics.base import Score
from onnxgrad.wording import shape_text


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
                f"perplexity: scores {shape_text(scores.shape)} need labels "
                f"{shape_text(scores.shape[:-1])}, and '{self.answers}' has shape "
                f"{shape_text(labels.shape)}"
            )
        length, shift = scores.shape[-2], 1 if self.shift is None else self.shift
        z = scores[..., : max(length - shift, 0), :].astype(np.float64)
        labels = labels[..., shift:]
        counted = is_counted(labels, self.ignore_index)
        place = np.where(counted, labels, 0).astype(np.int64)[..., None]
        if place.size and not 0 <= place.min() <= place.max() < z.shape[-1]:
            raise InputError(
                f"perplexity: '{self.answers}' has labels beyond {z.shape[-1]} classes"
            )
        z = z - z.max(-1, keepdims=True)
        lost = np.log(np.exp(z).sum(-1)) - np.take_along_axis(z, place, -1)[..., 0]
        return np.array([lost[counted].sum(), counted.sum()])

    def value(self, sums: Array) -> float:
        with np.errstate(all="ignore"):
            return float(np.exp(sums[0] / sums[1]))


@dataclass(frozen=True)
class R2(Score):
    """1 - sum (t - y)^2 / sum (t - mean t)^2, the coefficient of determination, averaged over the
    numbers of an example. A target without spread has 1 if every prediction is exact, else 0.
    """

    name: ClassVar[str] = "r2"
    usual: ClassVar[str] = "target"

    def sums(self, scores: Array, labels: Array) -> Array:
        """Returns the count, the mean, the sum of squares around it, and that of the errors."""
        if scores.shape != labels.shape or not scores.ndim:
            raise InputError(
                f"r2: '{self.answers}' has shape {shape_text(labels.shape)}, the output "
                f"{shape_text(scores.shape)}"
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
