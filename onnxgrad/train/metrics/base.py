"""Metrics of held-out data, computed from sums over batches.

A metric reads an output of the model and an array of the batch. Most metrics are not means over
batches: the F1 of a data set is not the mean of the batches' F1. So each adds up sums, and computes
its value from them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np

from onnxgrad.errors import InputError
from onnxgrad.ir.types import Array
from onnxgrad.options import Declared, check_fields

Arrays: TypeAlias = "Mapping[str, Array]"
# accepts a model's outputs and a batch; returns the mean over the batch and its examples
Metric: TypeAlias = "Callable[[Arrays, Arrays], tuple[float, int]]"


@dataclass(frozen=True)
class Score(metaclass=Declared):
    """A metric over all batches. Raises InputError for an option of another type or out of range.

    output: the output of the model. Defaults to its only floating-point output with an axis.
    target: the array of the batch with the right answers. Defaults to that of the loss; the loss
    need not read it.
    """

    name: ClassVar[str] = ""
    usual: ClassVar[str] = "labels"  # the target of a metric without a loss
    undefined: ClassVar[str] = "no held-out label counts"  # why the value is NaN

    output: str | None = None
    target: str | None = None

    def __post_init__(self) -> None:
        check_fields(self, self.name)

    @property
    def answers(self) -> str:
        """The name of the array with the right answers."""
        return self.target or self.usual

    @abstractmethod
    def sums(self, scores: Array, labels: Array) -> Array:
        """Returns what one batch adds. Raises InputError for arrays that do not fit."""

    def added(self, a: Any, b: Any) -> Array:
        """Returns the sums over two parts of the data."""
        return np.asarray(a + b)

    @abstractmethod
    def value(self, sums: Array) -> float:
        """Returns the metric from the sums over all data; NaN without data."""

    def of(self, outputs: Arrays, batch: Arrays) -> Array:
        """Returns the sums of a batch. Raises InputError if an array is missing."""
        labels, name = named(batch, self.answers), self.output
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
        return self.value(self.of(outputs, batch)), len(named(batch, self.answers))


def named(values: Arrays, name: str) -> Array:
    """Returns the array of that name. Raises InputError if there is none."""
    if name not in values:
        raise InputError(
            f"the metric reads '{name}', but the values are {', '.join(values) or 'none'}"
        )
    return np.asarray(values[name])
