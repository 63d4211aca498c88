"""Metrics, and the loss and metrics of weights on held-out data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np

from onnxgrad.errors import InputError
from onnxgrad.ir.types import Array
from onnxgrad.options import known_keywords
from onnxgrad.train.data import Batch
from onnxgrad.train.engines.session import checked
from onnxgrad.train.step import TrainingStep

# of a model's outputs and a batch: the mean over the batch, and how many examples that is of
Metric: TypeAlias = "Callable[[Mapping[str, Array], Mapping[str, Array]], tuple[float, int]]"


@known_keywords
def accuracy(
    output: str = "logits", target: str = "labels", *, axis: int = 1, ignore_index: int = -100
) -> Metric:
    """The share of labels that the highest score along `axis` names.

    The labels are an array of the batch, whether the loss takes it or not: indices, of the scores'
    shape without that axis or with 1 there, or one distribution over the classes for each of them,
    whose highest counts. The metric raises InputError for others, and for scores of one class.
    """

    def measure(outputs: Mapping[str, Array], batch: Mapping[str, Array]) -> tuple[float, int]:
        scores = _named(outputs, output)
        if not -scores.ndim <= axis < scores.ndim or scores.shape[axis] == 1:
            raise InputError(
                f"accuracy of '{output}', {list(scores.shape)}: it needs scores of several classes "
                f"along axis {axis}"
            )
        labels = _indices(_named(batch, target), target, scores, axis)
        counted = labels != ignore_index
        right = (scores.argmax(axis) == labels) & counted
        return float(right.sum()) / max(int(counted.sum()), 1), int(counted.sum())

    return measure


def _indices(labels: Array, name: str, scores: Array, axis: int) -> Array:
    """Return labels as indices, with the shape of the scores without the axis."""
    best: Array = scores.argmax(axis)
    if labels.shape == best.shape:
        return labels
    if labels.shape == np.expand_dims(best, axis).shape:
        return labels.squeeze(axis)
    if labels.shape != scores.shape:
        raise InputError(
            f"accuracy: '{name}' has shape {list(labels.shape)}, the scores {list(scores.shape)}"
        )
    if (np.abs(labels.astype(np.float64).sum(axis) - 1) > 1e-3).any():
        raise InputError(
            f"accuracy: '{name}' names several classes at once, or none: measure what you mean by "
            "a metric of your own"
        )
    return np.asarray(labels.argmax(axis))


def _named(values: Mapping[str, Array], name: str) -> Array:
    if name not in values:
        raise InputError(
            f"the metric reads '{name}', and there are {', '.join(values) or 'no values'}"
        )
    return np.asarray(values[name])


def evaluated(
    session: Any,
    step: TrainingStep,
    weights: Mapping[str, Array],
    batches: Iterable[Batch],
    metrics: Mapping[str, Metric],
) -> dict[str, float]:
    """Return the mean loss over batches, weighted by their sizes, and each metric, computed by the
    session of `step.evaluation`. A batch may have arrays that only a metric reads. Raises
    InputError for a batch that does not fit, and if there is none.
    """
    inputs = step.manifest.of_role("batch")
    fed_names = {fed.name for fed in inputs}
    names = [v.name for v in step.evaluation.main.outputs]
    sums: dict[str, float] = {}
    counts: dict[str, int] = {}
    for batch in batches:
        beside = {name: a for name, a in batch.items() if name not in fed_names}
        more = {name: np.asarray(a) for name, a in beside.items()} if metrics else {}
        rows = getattr(batch, "rows", None)
        feeds = checked({k: v for k, v in batch.items() if k not in more}, inputs, rows)
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


class _Noting(Mapping[str, Array]):
    """Arrays by name; `read` collects the names that were looked up."""

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
