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
    """Returns a loss in which weight=balanced has become the weights for the labels of that
    name.
    """
    if isinstance(loss, Sum):
        return Sum(tuple((weight, balanced(term, labels)) for weight, term in loss.terms))
    given: Any = loss
    if not is_balanced(given):
        return loss
    counts = _counted(labels(given.target), given.ignore_index)
    made: Loss = replace(given, weight=counts)
    return made


def is_balanced(loss: Loss) -> bool:
    """Whether the loss, or a term of it, has weight=balanced."""
    if isinstance(loss, Sum):
        return any(is_balanced(term) for _, term in loss.terms)
    weight = getattr(loss, "weight", None)
    return isinstance(weight, str) and weight == BALANCED


def in_file(arrays: Mapping[str, Array], where: str) -> Callable[[str], Array]:
    """Returns the reader of labels by name. It raises InputError for a name that is not there."""

    def read(name: str) -> Array:
        if name not in arrays:
            raise InputError(f"{where}: weight=balanced counts '{name}', which is not there")
        return arrays[name]

    return read
