"""Weights of classes that come from the data, by how often they occur."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from onnxgrad.errors import InputError
from onnxgrad.ir.types import Array
from onnxgrad.options import known_keywords
from onnxgrad.train.losses.base import Loss, Sum

BALANCED = "balanced"


@dataclass(frozen=True)
class Balanced:
    """Weights n / (C n_c) of C classes, from the number n_c of labels of each in the data; 1 for
    a class that does not occur.
    """

    counts: tuple[int, ...]

    def numbers(self, classes: int | None = None) -> list[float]:
        """Returns the weights, by default of as many classes as there are counts."""
        counts = (*self.counts, *(0,) * ((classes or 0) - len(self.counts)))
        n = sum(counts)
        return [n / (len(counts) * k) if k else 1.0 for k in counts]


@known_keywords
def class_weights(
    labels: Array, classes: int | None = None, *, ignore_index: int = -100
) -> list[float]:
    """Returns a weight for each class, by which all classes that occur count alike: n / (C n_c), as
    scikit-learn's "balanced"; 1 for a class without a label.

    Raises InputError for labels that are not indices of classes.
    """
    return _counted(labels, ignore_index).numbers(classes)


def is_counted(labels: Array, ignore_index: int) -> Array:
    """Returns for each label whether it differs from ignore_index."""
    # numpy 2.0.0 dies where a Python integer lies beyond the labels' dtype
    return np.asarray(labels != np.int64(ignore_index))


def _counted(labels: Array, ignore_index: int) -> Balanced:
    found = np.asarray(labels)
    if found.dtype.kind not in "biu":
        raise InputError(f"class weights need labels that are indices, not {found.dtype}")
    found = found[is_counted(found, ignore_index)].astype(np.int64)
    if not found.size or found.min() < 0:
        raise InputError("class weights need labels that are integers of at least 0")
    return Balanced(tuple(map(int, np.bincount(found.ravel()))))


def balanced(loss: Loss, labels: Callable[[str], Array]) -> Loss:
    """Returns a loss in which weight=balanced, or pos_weight=balanced, has become the weights for
    the labels of that name.
    """
    if isinstance(loss, Sum):
        return Sum(tuple((weight, balanced(term, labels)) for weight, term in loss.terms))
    given: Any = loss
    if _is_word(given, "pos_weight"):
        rarer: Loss = replace(given, pos_weight=_ratio(labels(given.target)))
        return rarer
    if not is_balanced(given):
        return loss
    counts = _counted(labels(given.target), given.ignore_index)
    made: Loss = replace(given, weight=counts)
    return made


def is_balanced(loss: Loss) -> bool:
    """Whether the loss, or a term of it, has weight=balanced or pos_weight=balanced."""
    if isinstance(loss, Sum):
        return any(is_balanced(term) for _, term in loss.terms)
    return _is_word(loss, "weight") or _is_word(loss, "pos_weight")


def _is_word(loss: Loss, option: str) -> bool:
    value = getattr(loss, option, None)
    return isinstance(value, str) and value == BALANCED


def _ratio(labels: Any) -> Any:
    """Returns the sum of 1 - t over that of t, by which labels 1 and 0 count alike; for labels
    (N, C, ...) one number per index along axis 1, of shape (C, 1, ...). 1 for labels of one kind.
    Raises InputError for labels that are not from 0 to 1.
    """
    if labels.dtype.kind not in "biuf" or not ((labels >= 0) & (labels <= 1)).all():
        raise InputError("pos_weight=balanced needs labels from 0 to 1")
    each = np.atleast_1d(labels)
    axes = tuple(i for i in range(each.ndim) if i != 1)
    ones = each.sum(axes, np.float64)
    zeros = each.size / max(ones.size, 1) - ones
    ratio = np.where((ones > 0) & (zeros > 0), zeros / np.where(ones > 0, ones, 1), 1.0)
    short = np.vectorize(lambda x: float(f"{x:.7g}"), otypes=[float])(ratio)  # as `fit` prints it
    return short.reshape(ratio.shape + (1,) * max(labels.ndim - 2, 0)).tolist()


def in_file(arrays: Mapping[str, Array], where: str) -> Callable[[str], Array]:
    """Returns the reader of labels by name. It raises InputError for a name that is not there."""

    def read(name: str) -> Array:
        if name not in arrays:
            raise InputError(f"{where}: balanced weights count '{name}', which is not there")
        return arrays[name]

    return read
