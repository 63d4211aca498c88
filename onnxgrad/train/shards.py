"""Batches cut into parts, and what each part counts in the batch's mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from onnxgrad.errors import InputError
from onnxgrad.ir.types import Array
from onnxgrad.train.manifest import Fed

Batch = Mapping[str, Array]


@dataclass(frozen=True)
class Shards:
    """A batch cut along its examples. whole: what has no examples and goes into every part."""

    split: Mapping[str, Array]
    whole: Mapping[str, Array]
    examples: int
    inputs: Sequence[Fed]

    def bounds(self, count: int) -> list[slice]:
        """Even parts, the first ones one example larger where they cannot be equal; there may be
        empty ones.
        """
        size, larger = divmod(self.examples, count)
        ends = [size * i + min(i, larger) for i in range(count + 1)]
        return [slice(start, end) for start, end in pairwise(ends)]

    def part(self, bounds: slice) -> dict[str, Array]:
        """Some of the examples, without a copy."""
        return {**{name: a[bounds] for name, a in self.split.items()}, **self.whole}

    def shares(self, parts: Sequence[slice]) -> Array:
        """What each part's mean weighs in the batch's, in float64, shape (parts,): its examples, or
        its labels that count where some are ignored.
        """
        counts = [float(self._counted(bounds)) for bounds in parts]
        if not sum(counts):  # the mean of nothing, which is the loss's own affair
            counts = [float(bounds.stop - bounds.start) for bounds in parts]
        return np.asarray(counts) / sum(counts)

    def ignores(self) -> bool:
        """Whether some label does not count."""
        return any((array == fed.ignored).any() for fed, array in self._labels())

    def _counted(self, bounds: slice) -> int:
        count: int = bounds.stop - bounds.start
        for fed, array in self._labels():
            labels = array[bounds]
            read = labels[..., fed.unread or 0 :] if labels.ndim > 1 else labels
            return int((read != fed.ignored).sum())
        return count

    def _labels(self) -> list[tuple[Fed, Any]]:
        return [
            (fed, self.split[fed.name])
            for fed in self.inputs
            if fed.ignored is not None and fed.name in self.split
        ]


def shards(batch: Batch, inputs: Sequence[Fed]) -> Shards:
    """A batch to be cut along the first axis of its inputs.

    One without axes goes into every part whole, and so does one whose first size is as the model
    fixes it. Raises InputError for a batch that lacks an input, and where the first axes do not
    agree.
    """
    split: dict[str, Array] = {}
    whole: dict[str, Array] = {}
    for fed in inputs:
        if fed.name not in batch:
            raise InputError(f"the batch lacks '{fed.name}'")
        array = np.asarray(batch[fed.name])
        fixed = fed.shape[0] if fed.shape else None
        unsplit = array.ndim == 0 or (isinstance(fixed, int) and len(array) == fixed)
        (whole if unsplit else split)[fed.name] = array
    counts = {name: len(a) for name, a in split.items()}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{name}: {n}" for name, n in counts.items())
        raise InputError(
            f"the first axes of the batch differ ({listed}): nothing says which are the examples "
            "that processes share out"
        )
    if not split:
        listed = ", ".join(f"{fed.name}: {list(fed.shape or ())}" for fed in inputs)
        raise InputError(
            f"the batch has no examples to share out among processes: the step takes {listed} of "
            "each; give batches that are as many times as large as there are processes"
        )
    if unknown := [name for name in batch if name not in {fed.name for fed in inputs}]:
        raise InputError(f"the batch has '{unknown[0]}', which is no input")
    return Shards(split, whole, next(iter(counts.values())), inputs)
