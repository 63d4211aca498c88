"""The loss and metrics of weights on held-out data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from onnxgrad.errors import InputError
from onnxgrad.ir.types import Array
from onnxgrad.train.data import Batch
from onnxgrad.train.engines.session import checked
from onnxgrad.train.manifest import Fed
from onnxgrad.train.metrics import Metric
from onnxgrad.train.step import TrainingStep


def evaluated(
    session: Any,
    step: TrainingStep,
    weights: Mapping[str, Array],
    batches: Iterable[Batch],
    metrics: Mapping[str, Metric],
) -> dict[str, float]:
    """The mean loss over batches, weighted by their sizes, and each metric, by the session of
    `step.evaluation`. A batch may have arrays beside the step's inputs that a metric reads. Raises
    InputError for a batch that does not fit, and without any.
    """
    inputs = step.manifest.of_role("batch")
    names = [v.name for v in step.evaluation.main.outputs]
    sums: dict[str, float] = {}
    counts: dict[str, int] = {}
    for batch in batches:
        more = _beside(batch, inputs) if metrics else {}
        feeds = checked({k: v for k, v in batch.items() if k not in more}, inputs)
        outputs = dict(zip(names, session.run(names, {**feeds, **weights}), strict=True))
        size = len(next(iter(feeds.values()))) if next(iter(feeds.values())).ndim else 1
        found = {"loss": (float(outputs[step.manifest.loss]), size)}
        given = _Noting({**feeds, **more})
        found |= {name: metric(outputs, given) for name, metric in metrics.items()}
        if not given.read.issuperset(more):
            checked(batch, inputs)  # says what is no input
        for name, (value, count) in found.items():
            sums[name] = sums.get(name, 0.0) + value * count
            counts[name] = counts.get(name, 0) + count
    if not counts:
        raise InputError("the data to evaluate on gave no batch")
    return {name: sums[name] / max(counts[name], 1) for name in sums}


def _beside(batch: Batch, inputs: Iterable[Fed]) -> dict[str, Array]:
    """What of a batch the step does not take."""
    taken = {fed.name for fed in inputs}
    return {name: np.asarray(a) for name, a in batch.items() if name not in taken}


class _Noting(Mapping[str, Array]):
    """Arrays by name; `read` is what somebody asked for."""

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self._arrays = arrays
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> Array:
        found = self._arrays[name]
        self.read.add(name)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)
