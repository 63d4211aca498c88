"""The loss and metrics of weights on held-out data, and the predictions of a model with them."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnxgrad.errors import InputError, NotProved
from onnxgrad.ir.types import Array
from onnxgrad.train.data import Batch
from onnxgrad.train.engines.session import checked, refusing
from onnxgrad.train.losses.sums import Sums
from onnxgrad.train.manifest import one_size
from onnxgrad.train.metrics import Metric, Score
from onnxgrad.train.step import TrainingStep
from onnxgrad.verify.compare import compare_tensor

# of the largest element; another mode of a node differs by far more than rounding
_TOLERANCE = 1e-4


def evaluated(
    session: Any,
    step: TrainingStep,
    weights: Mapping[str, Array],
    batches: Iterable[Batch],
    metrics: Mapping[str, Metric],
) -> dict[str, float]:
    """Returns the loss over all batches, whatever their sizes, and each metric, computed by the
    session of `step.evaluation`. The loss is NaN if no label counts. A batch may have arrays that
    only a metric reads. Raises InputError for a batch that does not fit, and if there is none.
    """
    sums: dict[str, float] = {}
    counts: dict[str, int] = {}
    loss = [np.zeros(2) for _ in step.manifest.sums]
    kept: dict[str, Array] = {}
    read = False
    scores = {name: metric for name, metric in metrics.items() if isinstance(metric, Score)}
    for outputs, given in _run(session, step, weights, batches, more=bool(metrics)):
        read = True
        for total, part in zip(loss, step.manifest.sums, strict=True):
            below = 0.0 if part.denominator is None else float(outputs[part.denominator])
            total += float(outputs[part.numerator]), below
        found = {k: metric(outputs, given) for k, metric in metrics.items() if k not in scores}
        _add(kept, scores, outputs, given)
        for name, (value, count) in found.items():
            sums[name] = sums.get(name, 0.0) + value * count
            counts[name] = counts.get(name, 0) + count
    if not read:
        raise InputError("the data to evaluate on has no batches")
    means = {name: sums[name] / max(counts[name], 1) for name in sums}
    means["loss"] = sum(map(_over, loss, step.manifest.sums))
    values = {name: score.value(kept[name]) for name, score in scores.items()}
    return {name: {**means, **values}[name] for name in ("loss", *metrics)}


def why_undefined(metrics: Mapping[str, Metric], found: Mapping[str, float]) -> list[str]:
    """Returns a line for each metric whose value is NaN."""
    scores = {name: metric for name, metric in metrics.items() if isinstance(metric, Score)}
    return [
        f"{name} is nan: {score.undefined}"
        for name, score in scores.items()
        if math.isnan(found.get(name, 0.0))
    ]


def tables(
    session: Any,
    step: TrainingStep,
    weights: Mapping[str, Array],
    batches: Iterable[Batch],
    scores: Mapping[str, Score],
) -> dict[str, Array]:
    """Returns the sums of metrics over all batches, such as a table of classes. Raises InputError
    as `evaluated` does.
    """
    kept: dict[str, Array] = {}
    for outputs, given in _run(session, step, weights, batches, more=True):
        _add(kept, scores, outputs, given)
    return kept


def _add(
    kept: dict[str, Array], scores: Mapping[str, Score], outputs: Mapping[str, Array], given: Any
) -> None:
    for name, score in scores.items():
        sums = score.of(outputs, given)
        kept[name] = score.added(kept[name], sums) if name in kept else sums


def _run(
    session: Any,
    step: TrainingStep,
    weights: Mapping[str, Array],
    batches: Iterable[Batch],
    *,
    more: bool,
) -> Iterator[tuple[dict[str, Array], _Noting]]:
    """Yields outputs and arrays of each batch. more: a batch may have arrays that are no
    inputs, if the receiver reads them.
    """
    inputs = step.manifest.of_role("batch")
    fed_names = {fed.name for fed in inputs}
    names = [v.name for v in step.evaluation.main.outputs]
    for batch in batches:
        beside = {name: a for name, a in batch.items() if more and name not in fed_names}
        rows = getattr(batch, "rows", None)
        feeds = checked({k: v for k, v in batch.items() if k not in beside}, inputs, rows)
        with refusing(feeds, rows):
            outputs = dict(zip(names, session.run(names, {**feeds, **weights}), strict=True))
        given = _Noting({**feeds, **{name: np.asarray(a) for name, a in beside.items()}})
        yield outputs, given
        if not given.read.issuperset(beside):
            checked(batch, inputs)  # raises for the array that is not an input


def predicted(
    session: Any,
    step: TrainingStep,
    taken: Collection[str],
    weights: Mapping[str, Array],
    batches: Iterable[Batch],
) -> dict[str, Array]:
    """Returns the model's outputs over all batches, computed by the session of `prediction(step)`,
    whose inputs are `taken`. Arrays that only the loss reads are ignored. If the model fixes the
    size of a batch, a smaller last batch is filled up, and the extra rows are removed. Raises
    InputError for a batch that does not fit, and for an output of several batches without a row for
    each example.
    """
    inputs = step.manifest.of_role("batch")
    read = [fed for fed in inputs if fed.name in taken]
    of_loss, size = {fed.name for fed in inputs} - {*taken}, one_size(read)
    names = [output.name for output in session.get_outputs()]
    held = {name: a for name, a in weights.items() if name in taken}
    found: dict[str, list[Array]] = {name: [] for name in names}
    counts = []
    for batch in batches:
        given = {name: np.asarray(a) for name, a in batch.items() if name not in of_loss}
        counts.append(min((len(a) for a in given.values() if a.ndim), default=1))
        if size is not None and 0 < counts[-1] < size:
            given = {
                k: np.concatenate([a, a[-1:].repeat(size - len(a), 0)]) for k, a in given.items()
            }
        feeds = checked(given, read)
        with refusing(feeds, getattr(batch, "rows", None)):
            results = session.run(names, {**feeds, **held})
        for name, result in zip(names, results, strict=True):
            found[name].append(result[: counts[-1]] if result.ndim else result)
    if not counts:
        raise InputError("the data to predict on has no batches")
    for name, parts in found.items():
        rows = [len(part) if part.ndim else None for part in parts]
        if len(parts) > 1 and rows != counts:
            raise InputError(
                f"output '{name}' has no row for each example: predict with a batch_size of all "
                f"{sum(counts)} examples"
            )
    return {k: parts[0] if len(parts) == 1 else np.concatenate(parts) for k, parts in found.items()}


def _over(total: Array, part: Sums) -> float:
    """Returns a part of the loss over several batches from its sums; NaN without any label."""
    above, below = map(float, total)
    if part.denominator is None:
        return above
    return above / below if below else math.nan


@dataclass(frozen=True)
class Shown:
    """Outputs of the trained model in inference, by its inputs in `feeds`."""

    feeds: Mapping[str, Array]
    outputs: Mapping[str, Array]

    @staticmethod
    def of(session: Any, feeds: Mapping[str, Array], weights: Mapping[str, Array]) -> Shown:
        """Returns what the session of a step's prediction returns with these weights."""
        names = [v.name for v in session.get_outputs()]
        outputs = session.run(names, {**feeds, **weights})
        return Shown(feeds, dict(zip(names, outputs, strict=True)))

    def check(self, session: Any) -> None:
        """Raises NotProved if the session of a model returns something else. Compares nothing if
        the model has other inputs, which are before the inputs of the step.
        """
        if any(v.name not in self.feeds for v in session.get_inputs()):
            return
        names = [v.name for v in session.get_outputs() if v.name in self.outputs]
        feeds = {v.name: self.feeds[v.name] for v in session.get_inputs()}
        for name, found in zip(names, session.run(names, feeds), strict=True):
            worst = compare_tensor(name, self.outputs[name], found, _TOLERANCE)
            if not worst.ok:
                raise NotProved(
                    "the model to write does not compute what was evaluated: "
                    f"'{name}' {worst.reason or f'differs by {worst.rel:.3g} of its largest value'}"
                )


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
