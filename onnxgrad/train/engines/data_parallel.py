"""Training by several processes: each differentiates its part of every batch, and all make the
same update.

One step costs one Allreduce of the gradient. In a ring each of N processes sends and receives
2 (N - 1) / N times its bytes: with 100 M parameters in float32, 400 MB on two processes, 700 MB on
eight, never more than 800 MB, which a network of 10 Gbit/s carries in 0.64 s. Source: Patarasu and
Yuan, "Bandwidth optimal all-reduce algorithms", 2009.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from onnxgrad.errors import InputError
from onnxgrad.interpreter import cores
from onnxgrad.ir.types import Array
from onnxgrad.train.divergence import divisor_of
from onnxgrad.train.engines.base import Result, seed_of
from onnxgrad.train.engines.blocks import BlocksEngine
from onnxgrad.train.engines.processes import Ranks, world
from onnxgrad.train.losses.base import OverBatch
from onnxgrad.train.manifest import Fed
from onnxgrad.train.step import TrainingStep
from onnxgrad.wording import option, shape_text

Batch = Mapping[str, Array]


@dataclass(frozen=True)
class Shards:
    """A batch cut along its examples. whole: arrays without examples, which belong to
    every part.
    """

    split: Mapping[str, Array]
    whole: Mapping[str, Array]
    examples: int
    inputs: Sequence[Fed]

    def bounds(self, count: int) -> list[slice]:
        """Returns parts of equal size; if that is impossible, the first parts have one example
        more. Parts may be empty.
        """
        size, larger = divmod(self.examples, count)
        ends = [size * i + min(i, larger) for i in range(count + 1)]
        return [slice(start, end) for start, end in pairwise(ends)]

    def part(self, bounds: slice) -> dict[str, Array]:
        """Returns some of the examples, without a copy."""
        return {**{name: a[bounds] for name, a in self.split.items()}, **self.whole}

    def shares(self, parts: Sequence[slice], over_batch: OverBatch | None) -> Array:
        """Returns the weight of each part's loss in that of the batch, in float64, shape (parts,),
        for a loss that declares `over_batch`. Raises InputError for ignored labels beside means
        over examples.
        """
        counts = np.asarray([float(bounds.stop - bounds.start) for bounds in parts])
        if over_batch == "sum":
            return np.asarray(counts > 0, np.float64)
        of_labels = [f for f in self.inputs if f.ignored is not None and f.name in self.split]
        labels = [f for f in of_labels if f.weights or (self.split[f.name] == f.ignored).any()]
        if labels and over_batch == "mixed":
            raise InputError(
                f"'{labels[0].name}' has labels that are ignored or have weights, and the loss has "
                "other terms, whose means count all alike: train in one process"
            )
        if labels and over_batch == "labels":
            fed = labels[0]
            read: Any = self.split[fed.name]
            if read.ndim > 1:
                read = read[..., fed.unread or 0 :]
            weight = (read != fed.ignored).astype(np.float64)
            if fed.weights:
                weight *= np.take(fed.weights, np.where(weight, read, 0), mode="clip")
            counted = [float(weight[bounds].sum()) for bounds in parts]
            if sum(counted):  # else the loss itself defines the mean of nothing
                counts = np.asarray(counted)
        return np.asarray(counts / counts.sum())


def shards(batch: Batch, inputs: Sequence[Fed]) -> Shards:
    """Returns a batch that can be cut along the first axis of its inputs.

    An input without axes, or with a first size that the model fixes, belongs to every part. Raises
    InputError for a batch that lacks an input, and if the first axes differ.
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
            f"the first axes of the batch differ ({listed}): it is not known which arrays hold the "
            "examples to distribute"
        )
    if not split:
        listed = ", ".join(f"{fed.name}: {shape_text(fed.shape or ())}" for fed in inputs)
        raise InputError(
            f"the batch has no examples to distribute: the step fixes the sizes {listed}; pass "
            "batches of these sizes times the number of processes"
        )
    if unknown := [name for name in batch if name not in {fed.name for fed in inputs}]:
        raise InputError(f"the batch has '{unknown[0]}', which is not an input")
    return Shards(split, whole, next(iter(counts.values())), inputs)


T = TypeVar("T")


class DataParallel(BlocksEngine):
    """`BlocksEngine` on each rank, with gradients averaged over the flat buffer.

    Every rank receives the batch and reads its part of the examples. Loss and gradient are those of
    the batch: the mean over examples or over labels that count, or the sum, as the loss declares
    (`Loss.over_batch`). The model must treat each example independently. Dropout draws for each
    part by itself, as PyTorch's DistributedDataParallel does, so results depend on the number of
    ranks. threads: of each rank; by default its share of the cores. Metrics are of this rank's
    part. Raises InputError without MPI, if the ranks have different steps, and for a loss that
    declares nothing.
    """

    def __init__(
        self, step: TrainingStep, *, threads: int | None = None, ranks: Ranks | None = None
    ) -> None:
        self.ranks = ranks or world()
        if step.manifest.running():
            raise InputError(
                "BatchNormalization in training normalises by the batch, of which each "
                'process has a part: make the step with batch_norm="frozen"'
            )
        if step.manifest.over_batch is None:
            how = option(
                "--loss 'output{output=NAME,over_batch=mean}'", 'Custom(f, over_batch="mean")'
            )
            raise InputError(
                "the loss does not say that it is a mean over the batch, of which each process has "
                f"a part: declare it, as in {how}"
            )
        manifest = step.manifest.to_json()
        if any(other != manifest for other in self.ranks.all(manifest)):
            raise InputError("the processes have different training steps")
        share = max(1, cores() // self.ranks.on_this_machine)
        super().__init__(step, threads=share if threads is None else threads)

    def put(self, values: Mapping[str, Array]) -> None:
        """Continues from the leader's values, on every rank."""
        super().put(values)
        for array in (self._p, *self._s.values()):
            self.ranks.spread(array)
        self._shared, self._counted = self.ranks.agree((self._shared, self._counted))

    def run(self, batch: Mapping[str, Array], number: int, rate: float) -> Result:
        """Runs one step on all ranks, with the same batch. Nothing changes if the loss is not
        finite.
        """
        cut = shards(batch, self._batch)
        parts = cut.bounds(self.ranks.size)
        share = cut.shares(parts, self.task.manifest.over_batch)[self.ranks.rank]
        loss, labels, metrics = np.zeros(1), np.zeros(1), {}
        self._drawn[...] = self.draw(number)
        if share:
            metrics = self._differentiate(cut.part(parts[self.ranks.rank]))
            loss += share * float(self._loss)
            labels += divisor_of(self.task.manifest, metrics) or 0.0
            np.multiply(self._g, self._dtype.type(share), out=self._g)
        else:  # no label here counts, and the mean of nothing is NaN
            self._g[:] = 0
        self.ranks.add(loss)
        if self.task.manifest.divisor is not None:
            self.ranks.add(labels)
            metrics[self.task.manifest.divisor] = labels[0]
        self._labels = float(labels[0])
        if np.isfinite(loss[0]):
            self.ranks.add(self._g)
            self._update(number, rate)
        return Result(float(loss[0]), metrics | self._told)

    @property
    def alone(self) -> bool:
        """Whether there is only one rank."""
        return self.ranks.size == 1

    def draw(self, number: int) -> int:
        """Returns the seed of this rank's part of the current batch of that step."""
        batches = (number - 1) * self.task.manifest.accumulate + self.part
        return seed_of(self.seed, batches * self.ranks.size + self.ranks.rank + 1)

    @property
    def leads(self) -> bool:
        """Whether this rank logs and saves."""
        return self.ranks.leads

    def agree(self, value: T) -> T:
        """Returns the leader's value, on every rank."""
        return self.ranks.agree(value)

    def together(self) -> AbstractContextManager[None]:
        """Returns a context in which an error of one rank ends all, with one line."""
        return self.ranks.together()
