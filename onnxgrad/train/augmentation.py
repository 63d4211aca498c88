"""Random changes of training examples, each decided by seed, epoch and row of the data."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from onnxgrad.errors import InputError
from onnxgrad.ir.types import Array
from onnxgrad.named_options import read
from onnxgrad.options import Count, Declared, Positive, Range, check_fields
from onnxgrad.train.data import Batch, Data, Rows
from onnxgrad.wording import option


@dataclass(frozen=True)
class Augmentation(metaclass=Declared):
    """A random change of an example with `rank` axes or more that keeps its shape and dtype."""

    name: ClassVar[str] = ""
    rank: ClassVar[int] = 1
    refused: ClassVar[str] = "OSU"  # kinds of dtypes

    def __post_init__(self) -> None:
        check_fields(self, self.name)

    @abstractmethod
    def of(self, x: Any, rng: np.random.Generator) -> Array:
        """Returns a changed example, an array without the axis of the batch."""


@dataclass(frozen=True)
class Flip(Augmentation):
    """Reverses an axis of every second example: torchvision's RandomHorizontalFlip."""

    name: ClassVar[str] = "flip"

    axis: Annotated[int, Range(high=-1)] = -1

    def of(self, x: Any, rng: np.random.Generator) -> Array:
        return np.flip(x, self.axis) if rng.random() < 0.5 else np.asarray(x)


@dataclass(frozen=True)
class Crop(Augmentation):
    """Moves the last two axes by up to `pad` elements, and fills the rest with zeros: torchvision's
    RandomCrop of the same size with a padding.
    """

    name: ClassVar[str] = "crop"
    rank: ClassVar[int] = 2

    pad: Count = 4

    def of(self, x: Any, rng: np.random.Generator) -> Array:
        wide = np.pad(x, [(0, 0)] * (x.ndim - 2) + [(self.pad, self.pad)] * 2)
        top, left = rng.integers(0, 2 * self.pad, 2, endpoint=True)
        return np.asarray(wide[..., top : top + x.shape[-2], left : left + x.shape[-1]])


@dataclass(frozen=True)
class Noise(Augmentation):
    """Adds normal noise of this standard deviation to floats."""

    name: ClassVar[str] = "noise"
    refused: ClassVar[str] = "OSUbiu"

    std: Positive = 0.1

    def of(self, x: Any, rng: np.random.Generator) -> Array:
        return np.asarray(x + self.std * rng.standard_normal(x.shape)).astype(x.dtype)


AUGMENTATIONS: dict[str, type[Augmentation]] = {c.name: c for c in (Flip, Crop, Noise)}


@dataclass(frozen=True)
class Augmented(Data):
    """Batches whose examples are changed, for each input in order."""

    data: Data
    seed: int
    rules: Sequence[tuple[str, Augmentation]]

    def facts(self, number: int, first: Batch) -> dict[str, Any]:
        """Returns the facts of the data, and the changes."""
        rules = [f"{name}={rule}" for name, rule in self.rules]
        return {**self.data.facts(number, first), "augment": rules}

    def epoch(self, number: int) -> Iterator[Batch]:
        """Yields the changed batches. Raises InputError for data without rows or without such an
        array.
        """
        for batch in self.data.epoch(number):
            rows, found = getattr(batch, "rows", None), dict(batch)
            for place, (name, rule) in enumerate(self.rules):
                x, key = np.asarray(found.get(name, 0)), [self.seed, place]
                if rows is None or x.ndim <= rule.rank or x.dtype.kind in rule.refused:
                    raise InputError(
                        f"{option('--augment', 'augment=')} {name}={rule.name}: the data must be "
                        f"arrays, '{name}' with numbers (for noise floats) on {rule.rank + 1} axes"
                    )
                draws = (np.random.Philox(key=key, counter=[0, 0, int(r), number]) for r in rows)
                found[name] = np.stack(
                    [rule.of(a, np.random.Generator(d)) for a, d in zip(x, draws)]
                )
            yield found if rows is None else Rows(found, rows)


def augmented(data: Data, given: Any, seed: int | None) -> Data:
    """Returns the data with the changes of pairs, or a mapping, of inputs and texts. Raises
    InputError for a text that is no change.
    """
    pairs = given.items() if isinstance(given, Mapping) else given or ()
    rules = [(n, _rule(r)) for n, r in pairs]
    return Augmented(data, seed or 0, rules) if rules else data


def _rule(given: str | Augmentation) -> Augmentation:
    return read(given, AUGMENTATIONS, "augmentation") if isinstance(given, str) else given
