"""Metrics as text: `f1{average=micro}`, for the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from onnxgrad.errors import InputError
from onnxgrad.named_options import declared, read
from onnxgrad.options import known_keywords
from onnxgrad.train.manifest import Fed
from onnxgrad.train.metrics import classes, values
from onnxgrad.train.metrics.base import Metric, Score
from onnxgrad.train.metrics.classes import Accuracy
from onnxgrad.train.metrics.values import Perplexity

METRICS: dict[str, type[Score]] = {
    cls.name: cls for module in (classes, values) for cls in declared(module, Score) if cls.name
}


@known_keywords
def accuracy(
    output: str = "logits", target: str = "labels", *, axis: int = 1, ignore_index: int = -100
) -> Metric:
    """Returns a metric: the share of labels with the highest score along `axis`.

    output: the output of the model with the scores.
    target: the array of the batch with the labels; the loss need not read it. Labels are indices in
    the scores' shape without `axis` or with size 1 there, or distributions over the classes, of
    which the highest class counts.

    The metric raises InputError for other labels, and for scores of one class.
    """
    return Accuracy(output, target, axis, ignore_index)


def metrics_from(
    given: Mapping[str, Metric | str] | Sequence[str] | str | None, of_loss: Sequence[Fed] = ()
) -> dict[str, Metric]:
    """Returns metrics by name, from a mapping to metrics or texts `NAME{option=value}`, or from
    texts alone, which are then the names. of_loss: the batch, of which labels have the shift of the
    loss. Raises InputError for anything else.
    """
    shifts = {fed.name: fed.unread or 0 for fed in of_loss if fed.ignored is not None}
    texts = (given,) if isinstance(given, str) else given or ()
    by_name = texts if isinstance(texts, Mapping) else {text: text for text in texts}
    found: dict[str, Metric] = {}
    for name, metric in by_name.items():
        found[name] = read(metric, METRICS, "metric") if isinstance(metric, str) else metric
        if not callable(found[name]):
            raise InputError(f"metric '{name}' must be a function or text, not {metric!r:.80}")
    for name, own in found.items():
        if isinstance(own, Perplexity) and own.shift is None:
            found[name] = replace(own, shift=shifts.get(own.target))
    return found
