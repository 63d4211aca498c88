"""Batches: from arrays that are shuffled and cut, from files of them, or from any iterable of
dicts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from onnxgrad.errors import InputError
from onnxgrad.ir.storage.numpy_files import read_arrays
from onnxgrad.ir.types import Array

Batch: TypeAlias = "Mapping[str, Array]"
Given: TypeAlias = (
    "Mapping[str, Array] | str | PathLike[str] | Iterable[Batch] | Callable[[], Iterable[Batch]]"
)


class Data(ABC):
    """Epochs of batches: an epoch of one number is the same each time."""

    @abstractmethod
    def epoch(self, number: int) -> Iterator[Batch]:
        """The batches of epoch `number`, from 0 on."""


@dataclass(frozen=True)
class Arrays(Data):
    """Arrays with one first axis of examples, cut into batches; shuffled anew in each epoch where
    there is a seed.

    whole: leave out the examples at the end of an epoch that fill no batch.
    """

    arrays: Mapping[str, Array]
    size: int
    seed: int | None = None
    whole: bool = False

    def __post_init__(self) -> None:
        counts = {name: len(a) if a.ndim else -1 for name, a in self.arrays.items()}
        if not counts or len(set(counts.values())) > 1 or min(counts.values()) < 0:
            listed = ", ".join(f"{name}: {n}" for name, n in counts.items()) or "none"
            raise InputError(
                "the arrays of the data need one number of examples on their first "
                f"axis, not {listed}"
            )
        if self.size < 1:
            raise InputError(f"the batch size must be at least 1, not {self.size}")
        if self.examples == 0 or (self.whole and self.examples < self.size):
            raise InputError(
                f"the data has {self.examples} examples, not enough for a batch of {self.size}"
            )

    @property
    def examples(self) -> int:
        """How many examples there are."""
        return len(next(iter(self.arrays.values())))

    def epoch(self, number: int) -> Iterator[Batch]:
        """The batches; their order depends on the seed and the epoch alone."""
        order = np.arange(self.examples)
        if self.seed is not None:
            order = np.random.default_rng([self.seed, number]).permutation(self.examples)
        end = self.examples - self.examples % self.size if self.whole else self.examples
        for start in range(0, end, self.size):
            chosen = order[start : min(start + self.size, end)]
            yield {name: a[chosen] for name, a in self.arrays.items()}


@dataclass(frozen=True)
class Repeated(Data):
    """Batches of the user: a list, or a function that starts anew in each epoch."""

    make: Callable[[], Iterable[Batch]]

    def epoch(self, number: int) -> Iterator[Batch]:
        """Yields the function's batches. Raises InputError for anything else."""
        for batch in self.make():
            if not isinstance(batch, Mapping):
                raise InputError(
                    "a batch is a dict of arrays by the names of the inputs, not "
                    f"{type(batch).__name__}"
                )
            yield batch


def as_data(given: Given | Data, size: int, seed: int | None, *, whole: bool = False) -> Data:
    """Returns the data that `fit` accepts as `Data`. Raises InputError for anything else, and for a
    file that cannot be read.
    """
    if isinstance(given, Data):
        return given
    if isinstance(given, (str, PathLike)):
        given = read_npz(Path(given))
    if isinstance(given, Mapping):
        return Arrays({name: np.asarray(a) for name, a in given.items()}, size, seed, whole)
    if callable(given):
        return Repeated(given)
    if not isinstance(given, Iterable):
        raise InputError(
            "data is arrays by name, an .npz of them, a list of batches, or a function that makes "
            f"them, not {type(given).__name__}"
        )
    if isinstance(given, Iterator):
        raise InputError(
            "an iterator ends with its first epoch: pass a list, or a function that returns one"
        )
    batches: Any = given
    return Repeated(lambda: batches)


def read_npz(path: Path) -> dict[str, Array]:
    """The arrays of an .npz file. Raises InputError for a file that is missing or none."""
    stored = read_arrays(path)
    if isinstance(stored, np.ndarray):
        raise InputError(
            f"{path}: one array without a name; the data is an .npz with one array per input"
        )
    return stored
