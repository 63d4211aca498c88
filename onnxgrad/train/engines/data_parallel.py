"""Training by several processes: each differentiates its part of every batch, and all make the
same update.

One step costs one Allreduce of the gradient. In a ring each of N processes sends and receives
2 (N - 1) / N times its bytes: with 100 M parameters in float32, 400 MB on two processes, 700 MB on
eight, never more than 800 MB, which a network of 10 Gbit/s carries in 0.64 s. Source: Patarasu and
Yuan, "Bandwidth optimal all-reduce algorithms", 2009.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from onnxgrad.errors import InputError
from onnxgrad.ir.types import Array
from onnxgrad.train.engines.base import Result
from onnxgrad.train.engines.blocks import BlocksEngine
from onnxgrad.train.engines.processes import Ranks, world
from onnxgrad.train.manifest import Fed
from onnxgrad.train.step import TrainingStep

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


T = TypeVar("T")
# of a loss and its gradient, relative; a loss below 1 % of the first one is rounding in the end
_TOLERANCE = 1e-3
_FLOOR = 1e-2


class DataParallel(BlocksEngine):
    """`BlocksEngine` on each rank, the gradients averaged over the flat buffer.

    Every rank is given the whole batch and reads its part of the examples; a part counts by its
    examples, or by its labels where some are ignored, so that mean and gradient are the whole
    batch's. Losses of which that is not so (class weights, a contrastive loss) are found out by
    splitting parts of the first batch once more, and again at steps 2, 4, 8 ... and when labels are
    ignored first. threads: of each rank; by default its share of the cores. Metrics are of this
    rank's part. Raises InputError without MPI, where ranks were given different steps, and for such
    a loss.
    """

    def __init__(
        self, step: TrainingStep, *, threads: int | None = None, ranks: Ranks | None = None
    ) -> None:
        self.ranks = ranks or world()
        if step.manifest.running():
            raise InputError(
                "BatchNormalization in training normalises by the whole batch, of which each "
                'process has a part: make the step with batch_norm="frozen"'
            )
        if step.manifest.of_role("seed"):
            raise InputError(
                "Dropout draws for the whole batch, of which each process has a part: make the "
                'step with dropout="off"'
            )
        told = step.manifest.to_json()
        if any(said != told for said in self.ranks.all(told)):
            raise InputError("the processes were given different training steps")
        if step.manifest.running() or step.manifest.of_role("seed"):
            raise InputError(
                "BatchNormalization and Dropout in training see the whole batch in one process "
                'only: choose batch_norm="frozen" and dropout="off"'
            )
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        self._is_sum: bool | None = None
        self._ignored_before = False
        self._floor: Any = None
        self._probes = not any(
            fed.shape and isinstance(fed.shape[0], int) for fed in step.manifest.of_role("batch")
        )
        share = max(1, (cores or 1) // self.ranks.on_this_machine)
        super().__init__(step, threads=share if threads is None else threads)

    def put(self, values: Mapping[str, Array]) -> None:
        """Go on from the leader's values, on every rank."""
        super().put(values)
        for array in (self._p, *self._s.values()):
            self.ranks.spread(array)
        self._shared = self.ranks.agree(self._shared)

    def run(self, batch: Mapping[str, Array], number: int, rate: float) -> Result:
        """One step of all ranks, from the same batch; nothing changes where the loss is no finite
        number.
        """
        cut = shards(batch, self._batch)
        if self._probes and self._is_due(cut, number):
            self._probe(cut)
        parts = cut.bounds(self.ranks.size)
        share = self._weights(cut, parts)[self.ranks.rank]
        loss, metrics = np.zeros(1), {}
        if share:
            metrics = self._differentiate(cut.part(parts[self.ranks.rank]))
            loss += share * float(self._loss)
            np.multiply(self._g, self._dtype.type(share), out=self._g)
        else:  # nothing here counts, and the mean of nothing is no number
            self._g[:] = 0
        self.ranks.add(loss)
        if np.isfinite(loss[0]):
            self.ranks.add(self._g)
            self._update(number, rate)
        return Result(float(loss[0]), metrics | self._told)

    def _weights(self, cut: Shards, parts: Sequence[slice]) -> Array:
        """What each part's loss weighs in the batch's; 0 where there is none."""
        if self._is_sum:
            return np.asarray([float(p.stop > p.start) for p in parts])
        return cut.shares(parts)

    # ---- whether the loss of a batch is made of its parts' ---------------------------------------

    def _is_due(self, cut: Shards, number: int) -> bool:
        ignores = cut.ignores() and not self._ignored_before
        self._ignored_before |= ignores
        return self._is_sum is None or ignores or number & (number - 1) == 0

    def _probe(self, cut: Shards) -> None:
        """Compare the loss and gradient of this rank's part with those of two parts of it. Raises
        InputError on every rank.
        """
        own = cut.bounds(self.ranks.size)[self.ranks.rank]
        count = own.stop - own.start
        off = self._off(cut, own) if count > 1 else None
        found = [o for o in self.ranks.all(off) if o is not None]
        if not found:
            return  # one example each, or no finite number: the next step may tell
        mean, total = (max(o[i] for o in found) for i in (0, 1))
        if self._is_sum is None:
            self._is_sum = bool(total < mean)
        least = total if self._is_sum else mean
        if not least <= _TOLERANCE:
            raise InputError(
                f"the loss of a batch is not the mean of its parts' losses (off by {least:.1e}), "
                "so that processes would train something else than one does: choose a loss that "
                "treats each example by itself, without weights of classes"
            )

    def _off(self, cut: Shards, own: slice) -> tuple[float, float] | None:
        """How far the mean and the sum of two parts are from the whole, relative to the parts."""
        middle = own.start + max(1, (own.stop - own.start) // 3)
        parts = [slice(own.start, middle), slice(middle, own.stop)]
        whole = self._found(cut, own)
        halves = [self._found(cut, part) for part in parts]
        if not np.isfinite(whole).all():
            return None
        if self._floor is None:
            self._floor = _FLOOR * _sizes_of(whole)
        mean = _apart(whole, halves, cut.shares(parts), self._floor)
        return mean, _apart(whole, halves, (1, 1), self._floor)

    def _found(self, cut: Shards, bounds: slice) -> Any:
        self._differentiate(cut.part(bounds))
        return np.concatenate([np.reshape(np.float64(self._loss), 1), self._g])

    # ---- the processes ---------------------------------------------------------------------------

    @property
    def leads(self) -> bool:
        """Whether this rank logs and saves."""
        return self.ranks.leads

    def agree(self, value: T) -> T:
        """The leader's value, on every rank."""
        return self.ranks.agree(value)

    def together(self) -> AbstractContextManager[None]:
        """An error of one rank ends all, with one line."""
        return self.ranks.together()


def _sizes_of(found: Any) -> Any:
    """The sizes of a loss and of its gradient behind it."""
    return np.asarray([abs(found[0]), np.linalg.norm(found[1:])])


def _apart(whole: Any, parts: Sequence[Any], weights: Any, floor: Any) -> float:
    """The larger of the relative errors of loss and gradient."""
    terms = [w * part for w, part in zip(weights, parts, strict=True) if w]
    size = _sizes_of(sum(np.abs(term) for term in terms))
    wrong = _sizes_of(sum(terms) - whole)
    return float((wrong / np.maximum(np.maximum(size, floor), np.finfo(np.float32).tiny)).max())
