"""Batches: from arrays that are shuffled and cut, from files of them, or from any iterable of
dicts.
"""

from __future__ import annotations

import hashlib
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from onnxgrad.errors import InputError, RunWarning
from onnxgrad.ir.storage.atomic_files import regular
from onnxgrad.ir.storage.numpy_files import read_arrays
from onnxgrad.ir.types import Array

Batch: TypeAlias = "Mapping[str, Array]"
Given: TypeAlias = (
    "Mapping[str, Array] | str | PathLike[str] | Iterable[Batch] | Callable[[], Iterable[Batch]]"
)

# of the examples that a digest is made of
_ROWS, _BYTES = 256, 1 << 22


class Data(ABC):
    """Epochs of batches: an epoch of one number is the same each time."""

    @abstractmethod
    def epoch(self, number: int) -> Iterator[Batch]:
        """The batches of epoch `number`, from 0 on."""

    def facts(self, number: int, first: Batch) -> dict[str, Any]:
        """Returns how the data is known again, in JSON's types; `first`: the first batch of epoch
        `number`.
        """
        arrays = {name: np.asarray(a) for name, a in first.items()}
        seen = f"samples of epoch {number + 1}"
        return {"kind": "batches", "arrays": _types(arrays), seen: sampled(arrays)}


class Rows(dict[str, Array]):
    """A batch that knows the rows of the data that it holds."""

    def __init__(self, arrays: Mapping[str, Array], rows: Array) -> None:
        super().__init__(arrays)
        self.rows = rows


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

    def facts(self, number: int, first: Batch) -> dict[str, Any]:
        """The types of the arrays, how many examples there are, and a digest of some of them."""
        order = "none" if self.seed is None else self.seed
        return {
            "kind": "arrays", "batch_size": self.size, "order": order, "examples": self.examples,
            "arrays": _types(self.arrays), "samples": sampled(self.arrays),
        }  # fmt: skip

    def epoch(self, number: int) -> Iterator[Batch]:
        """The batches; their order depends on the seed and the epoch alone."""
        order = np.arange(self.examples)
        if self.seed is not None:
            order = np.random.default_rng([self.seed, number]).permutation(self.examples)
        end = self.examples - self.examples % self.size if self.whole else self.examples
        for start in range(0, end, self.size):
            chosen = order[start : min(start + self.size, end)]
            yield Rows({name: a[chosen] for name, a in self.arrays.items()}, chosen)


@dataclass(frozen=True)
class Repeated(Data):
    """Batches of the user: a list, the same in each epoch, or a function that starts anew."""

    make: Callable[[], Iterable[Batch]]
    same: bool = False

    def facts(self, number: int, first: Batch) -> dict[str, Any]:
        """The types of the arrays, and a digest of some examples of the first batch."""
        found = super().facts(number, first)
        return {k.split(" of ")[0]: v for k, v in found.items()} if self.same else found

    def epoch(self, number: int) -> Iterator[Batch]:
        """Yields the function's batches. Raises InputError for anything else."""
        for batch in self.make():
            if not isinstance(batch, Mapping):
                raise InputError(
                    "a batch is a dict of arrays by the names of the inputs, not "
                    f"{type(batch).__name__}"
                )
            yield batch


def _types(arrays: Mapping[str, Array]) -> list[str]:
    """Names, dtypes and the sizes of an example."""
    return [f"{name} {a.dtype}{list(a.shape[1:])}" for name, a in sorted(arrays.items())]


def sampled(arrays: Mapping[str, Array]) -> str:
    """A digest of some examples, evenly spread, the first and the last among them."""
    found = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        found.update(f"{name} {array.dtype} {array.shape}".encode())
        rows = array.reshape(1) if not array.ndim else array
        most = max(2, _BYTES // max(1, rows[:1].nbytes))
        chosen = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), _ROWS, most), dtype=int))
        part = np.ascontiguousarray(rows[chosen])
        found.update(repr(part.tolist()).encode() if part.dtype.hasobject else part.tobytes())
    return found.hexdigest()[:16]


def as_data(
    given: Given | Data,
    size: int,
    seed: int | None,
    *,
    whole: bool = False,
    read: Collection[str] | None = None,
) -> Data:
    """Returns the data that `fit` accepts as `Data`; of a file the arrays that are `read`. Raises
    InputError for an iterator, and for a file that cannot be read.
    """
    if isinstance(given, Data):
        return given
    if isinstance(given, (str, PathLike)):
        arrays = read_npz(Path(given))
        given = arrays if read is None else without_unread(arrays, read, str(given))
    if isinstance(given, Mapping):
        return Arrays({name: np.asarray(a) for name, a in given.items()}, size, seed, whole)
    if callable(given):
        return Repeated(given)
    if isinstance(given, Iterator):
        raise InputError(
            "an iterator ends with its first epoch: pass a list, or a function that returns one"
        )
    batches: Any = given
    return Repeated(lambda: batches, same=True)


def without_unread(
    arrays: Mapping[str, Array],
    inputs: Collection[str],
    where: str,
    *,
    beside: Collection[str] = (),
    leads: bool = True,
) -> dict[str, Array]:
    """Returns the arrays of a file that are inputs, or read `beside` them by metrics; a RunWarning
    names the others. All of them if an input is missing, so that the error shows a misspelled name.
    """
    extra = [name for name in arrays if name not in inputs and name not in beside]
    if not extra or not arrays.keys() >= set(inputs):
        return dict(arrays)
    if leads:
        names = ", ".join(f"'{name}'" for name in extra)
        read = ", ".join(inputs)
        words = f"{where}: nothing reads {names}; the step reads {read}"
        warnings.warn(words, RunWarning, stacklevel=2)
    return {name: array for name, array in arrays.items() if name not in extra}


def read_npz(path: Path) -> dict[str, Array]:
    """The arrays of an .npz file, or of a folder with a file NAME.npy for each, which are mapped
    into memory. Raises InputError for a file that is missing or none.
    """
    if path.is_dir():
        return {file.stem: _mapped(file) for file in sorted(path.glob("*.npy"))}
    stored = read_arrays(path)
    if isinstance(stored, np.ndarray):
        raise InputError(
            f"{path}: one array without a name; the data is an .npz with one array per input"
        )
    return stored


def _mapped(path: Path) -> Array:
    try:
        return np.asarray(np.load(regular(path), mmap_mode="r", allow_pickle=False))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from None
