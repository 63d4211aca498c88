"""Batches of training: cut from shuffled arrays or files, or from any iterable of dicts."""

from __future__ import annotations

import hashlib
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from onnxgrad.errors import InputError, RunWarning
from onnxgrad.ir.types import Array
from onnxgrad.train.array_files import as_array, read_npz
from onnxgrad.train.manifest import Fed
from onnxgrad.wording import counted, perhaps, shape_text

Batch: TypeAlias = "Mapping[str, Array]"
Given: TypeAlias = (
    "Mapping[str, Array] | str | PathLike[str] | Iterable[Batch] | Callable[[], Iterable[Batch]]"
)

HELD_OUT = "held-out data"
# the largest part of the examples that a digest reads
_ROWS, _BYTES = 256, 1 << 22


class Data(ABC):
    """Epochs of batches. An epoch of the same number has the same batches each time."""

    @abstractmethod
    def epoch(self, number: int) -> Iterator[Batch]:
        """Yields the batches of epoch `number`, which counts from 0."""

    def facts(self, number: int, first: Batch) -> dict[str, Any]:
        """Returns facts that identify the data, in JSON types; `first` is the first batch of epoch
        `number`.
        """
        arrays = {name: np.asarray(a) for name, a in first.items()}
        seen = f"samples of epoch {number + 1}"
        return {"kind": "batches", "arrays": _types(arrays), seen: sampled(arrays)}


class Rows(dict[str, Array]):
    """A batch that knows which rows of the data it contains."""

    def __init__(self, arrays: Mapping[str, Array], rows: Array) -> None:
        super().__init__(arrays)
        self.rows = rows


@dataclass(frozen=True)
class Arrays(Data):
    """Arrays whose first axis counts examples, cut into batches; with a seed, shuffled again in
    each epoch.

    whole: leave out the last examples of an epoch if they do not fill a batch.
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
                "the arrays of the data need the same number of examples on their first "
                f"axis, not {listed}"
            )
        if self.size < 1:
            raise InputError(f"the batch size must be at least 1, not {self.size}")
        if self.examples == 0:
            raise InputError("the data has no examples")
        if self.whole and self.examples < self.size:
            raise InputError(
                f"the data has {counted(self.examples, 'example')}, not enough for a batch of "
                f"{self.size}"
            )

    @property
    def examples(self) -> int:
        """The number of examples."""
        return len(next(iter(self.arrays.values())))

    def facts(self, number: int, first: Batch) -> dict[str, Any]:
        """Returns the types of the arrays, the number of examples, and digests of some of them."""
        order = "none" if self.seed is None else self.seed
        return {
            "kind": "arrays",
            "batch_size": self.size,
            "order": order,
            "examples": self.examples,
            "arrays": _types(self.arrays),
            "samples": sampled(self.arrays),
        }

    def epoch(self, number: int) -> Iterator[Batch]:
        """Yields the batches; their order depends only on the seed and the epoch."""
        order = np.arange(self.examples)
        if self.seed is not None:
            order = np.random.default_rng([self.seed, number]).permutation(self.examples)
        end = self.examples - self.examples % self.size if self.whole else self.examples
        own = getattr(next(iter(self.arrays.values())), "rows", None)  # of the data, if picked
        for start in range(0, end, self.size):
            chosen = order[start : min(start + self.size, end)]
            batch = {name: a[chosen] for name, a in self.arrays.items()}
            yield Rows(batch, chosen if own is None else own[chosen])


@dataclass(frozen=True)
class Repeated(Data):
    """Batches of the user: a list that repeats in each epoch, or a function that returns new
    batches.
    """

    make: Callable[[], Iterable[Batch]]
    same: bool = False
    names: Sequence[str] | None = None

    def facts(self, number: int, first: Batch) -> dict[str, Any]:
        """Returns the types of the arrays, and digests of some examples of the first batch."""
        found = super().facts(number, first)
        return {k.split(" of ")[0]: v for k, v in found.items()} if self.same else found

    def epoch(self, number: int) -> Iterator[Batch]:
        """Yields the batches. Raises InputError for anything that is not a dict of arrays."""
        for batch in self.make():
            yield batch if isinstance(batch, Mapping) else self._named(batch)

    def _named(self, batch: Any) -> Batch:
        """Returns a tuple of arrays as a batch by their names."""
        listed = isinstance(batch, (tuple, list))
        if self.names is None or not listed:
            how = ", or a tuple of them with names=" if listed else ""
            raise InputError(
                "a batch is a dict of arrays by the names of the inputs"
                f"{how}, not {type(batch).__name__}"
            )
        if len(batch) != len(self.names):
            raise InputError(
                f"a batch has {counted(len(batch), 'array')}, and names= has {len(self.names)}: "
                f"{', '.join(self.names)}"
            )
        return dict(zip(self.names, batch))


@dataclass(frozen=True)
class Scaled(Data):
    """Batches in which integers of some inputs are multiplied by a factor and become floats of the
    input's dtype.
    """

    data: Data
    scale: Mapping[str, tuple[float, np.dtype[Any]]]

    def facts(self, number: int, first: Batch) -> dict[str, Any]:
        """Returns the facts of the data, and the factors."""
        factors = {name: by for name, (by, _) in self.scale.items()}
        return {**self.data.facts(number, first), "scale": factors}

    def epoch(self, number: int) -> Iterator[Batch]:
        """Yields scaled batches. Raises InputError if such an input has no integers."""
        for batch in self.data.epoch(number):
            found = {name: self._scaled(name, a) for name, a in batch.items()}
            yield Rows(found, batch.rows) if isinstance(batch, Rows) else found

    def _scaled(self, name: str, given: Any) -> Any:
        if name not in self.scale:
            return given
        array, (factor, dtype) = np.asarray(given), self.scale[name]
        if array.dtype.kind not in "ui":
            raise InputError(
                f"scale: '{name}' of the data is {array.dtype}; only integers are multiplied: "
                "leave it out"
            )
        wide = np.result_type(dtype, np.float32)
        return np.multiply(array, wide.type(factor), dtype=wide).astype(dtype, copy=False)


@dataclass(frozen=True)
class Beside(Data):
    """Batches to each of which the same constant arrays are added."""

    data: Data
    constants: Mapping[str, Array]

    def facts(self, number: int, first: Batch) -> dict[str, Any]:
        """Returns the facts of the data, and digests of the constants."""
        own = {name: a for name, a in first.items() if name not in self.constants}
        beside = {name: np.asarray(a) for name, a in self.constants.items()}
        return {**self.data.facts(number, own), "constants": sampled(beside)}

    def epoch(self, number: int) -> Iterator[Batch]:
        """Yields the batches. Raises InputError for a constant that the data has, too."""
        for batch in self.data.epoch(number):
            if twice := [name for name in self.constants if name in batch]:
                raise InputError(f"constants: the data has '{twice[0]}' already: leave one out")
            found = {**batch, **self.constants}
            yield Rows(found, batch.rows) if isinstance(batch, Rows) else found


def _types(arrays: Mapping[str, Array]) -> list[str]:
    """Returns name, dtype and shape of an example, for each array."""
    return [f"{name} {a.dtype}{shape_text(a.shape[1:])}" for name, a in sorted(arrays.items())]


def sampled(arrays: Mapping[str, Array]) -> dict[str, str]:
    """Returns dtype, shape and a digest of some examples of each array; the examples are evenly
    spread, the first and the last included.
    """
    found = {}
    for name, array in sorted(arrays.items()):
        rows = array.reshape(1) if not array.ndim else array
        most = max(2, _BYTES // max(1, rows[:1].nbytes))
        chosen = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), _ROWS, most), dtype=int))
        part = np.ascontiguousarray(rows[chosen])
        elements = repr(part.tolist()).encode() if part.dtype.hasobject else part.tobytes()
        digest = hashlib.sha256(elements).hexdigest()[:16]
        found[name] = f"{array.dtype}{shape_text(array.shape)} {digest}"
    return found


def facts_of_held_out(given: Given | Data | None) -> dict[str, Any]:
    """Returns digests of some examples of arrays by name; nothing for other data. Raises InputError
    if there are no examples.
    """
    if not isinstance(given, Mapping):
        return {}
    arrays = {name: as_array(a) for name, a in given.items()}
    if any(a.shape[:1] == (0,) for a in arrays.values()):
        raise InputError("the held-out data has no examples")
    return {HELD_OUT: sampled(arrays)}


def as_data(
    given: Given | Data,
    size: int,
    seed: int | None,
    *,
    whole: bool = False,
    read: Collection[str] | None = None,
    names: Sequence[str] | None = None,
) -> Data:
    """Returns anything that `fit` accepts as data as `Data`; from a file, only the arrays in
    `read`. Raises InputError for an iterator, and for a file that cannot be read.
    """
    if isinstance(given, Data):
        return given
    if isinstance(given, (str, PathLike)):
        arrays = read_npz(Path(given))
        given = arrays if read is None else without_unread(arrays, read, str(given))
    if isinstance(given, Mapping):
        return Arrays({name: as_array(a) for name, a in given.items()}, size, seed, whole)
    if callable(given):
        return Repeated(given, names=names)
    if isinstance(given, Iterator):
        raise InputError(
            "an iterator ends with its first epoch: pass a list, or a function that returns one"
        )
    batches: Any = given
    return Repeated(lambda: batches, same=True, names=names)


def scaled(data: Data, scale: Mapping[str, float] | None, inputs: Sequence[Fed]) -> Data:
    """Returns the data with integers of some inputs multiplied. Raises InputError for a name that
    is not a float input.
    """
    if not scale:
        return data
    dtypes = {fed.name: fed.dtype for fed in inputs}
    for name in scale:
        if "float" not in dtypes.get(name, ""):
            takes = ", ".join(f"{k}: {dtype}" for k, dtype in dtypes.items())
            raise InputError(
                f"scale: '{name}' is not an input of floats{perhaps(name, dtypes)}: the step takes "
                f"{takes}"
            )
    return Scaled(data, {name: (by, np.dtype(dtypes[name])) for name, by in scale.items()})


def beside(data: Data, constants: Mapping[str, Array]) -> Data:
    """Returns the data with these arrays in every batch."""
    return Beside(data, constants) if constants else data


def without_unread(
    arrays: Mapping[str, Array],
    inputs: Collection[str],
    where: str,
    *,
    beside: Collection[str] = (),
    leads: bool = True,
) -> dict[str, Array]:
    """Returns the arrays of a file that are inputs or read `beside` them by metrics, and warns
    about the others. If an input is missing, returns all arrays, so that the error shows a
    misspelled name.
    """
    extra = [name for name in arrays if name not in inputs and name not in beside]
    if not extra or not arrays.keys() >= set(inputs):
        return dict(arrays)
    if leads:
        names = ", ".join(f"'{name}'" for name in extra)
        read = ", ".join(inputs)
        words = f"{where}: the step does not read {names}; it reads {read}"
        warnings.warn(words, RunWarning, stacklevel=2)
    return {name: array for name, array in arrays.items() if name not in extra}
