"""The loss and metrics of weights on held-out data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from onnxgrad.errors import InputError
from onnxgrad.ir.types import Array
from onnxgrad.train.data import Batch
from onnxgrad.train.engines.base import checked
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
    `step.evaluation`. Raises InputError for a batch that does not fit, and without any.
    """
    inputs = step.manifest.of_role("batch")
    names = [v.name for v in step.evaluation.main.outputs]
    sums: dict[str, float] = {}
    counts: dict[str, int] = {}
    for batch in batches:
        feeds = checked(batch, inputs)
        outputs = dict(zip(names, session.run(names, {**feeds, **weights}), strict=True))
        size = len(next(iter(feeds.values()))) if next(iter(feeds.values())).ndim else 1
        found = {"loss": (float(outputs[step.manifest.loss]), size)}
        found |= {name: metric(outputs, feeds) for name, metric in metrics.items()}
        for name, (value, count) in found.items():
            sums[name] = sums.get(name, 0.0) + value * count
            counts[name] = counts.get(name, 0) + count
    if not counts:
        raise InputError("the data to evaluate on gave no batch")
    return {name: sums[name] / max(counts[name], 1) for name in sums}
