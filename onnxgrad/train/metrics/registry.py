"""Metrics as text: `f1{average=micro}`, for the command line."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from onnxgrad.errors import InputError
from onnxgrad.named_options import declared, read
from onnxgrad.options import known_keywords
from onnxgrad.train.labels import Labels
from onnxgrad.train.metrics import classes, curves, values
from onnxgrad.train.metrics.base import Metric, Score
from onnxgrad.train.metrics.classes import Accuracy, WithThreshold
from onnxgrad.train.metrics.values import Perplexity

METRICS: dict[str, type[Score]] = {
    cls.name: cls
    for module in (classes, curves, values)
    for cls in declared(module, Score)
    if cls.name
}


@known_keywords
def accuracy(
    output: str = "logits",
    target: str | None = None,
    *,
    axis: int = 1,
    ignore_index: int = -100,
    threshold: float | None = None,
) -> Metric:
    """Returns a metric: the share of labels with the highest score along `axis`.

    output: the output of the model with the scores.
    target: the array of the batch with the labels, by default those of the loss; the loss need not
    read it. Labels are indices in the scores' shape without `axis` or with size 1 there, or
    distributions over the classes, of which the highest class counts.
    threshold: for one score per label, or labels of 0 and 1 in the scores' shape: 0 for logits,
    0.5 for probabilities.

    The metric raises InputError for other labels, and for scores of one class without a threshold.
    """
    return Accuracy(output, target, axis, ignore_index, threshold=threshold)


def metrics_from(
    given: Mapping[str, Metric | str] | Sequence[str] | str | None, labels: Labels | None = None
) -> dict[str, Metric]:
    """Returns metrics by name, from a mapping to metrics or texts `NAME{option=value}`, or from
    texts alone, which are then the names. labels: of the loss, whose target, shift and threshold
    are the defaults of the metrics. Raises InputError for anything else.
    """
    texts = (given,) if isinstance(given, str) else given or ()
    by_name = texts if isinstance(texts, Mapping) else {text: text for text in texts}
    found: dict[str, Metric] = {}
    for name, metric in by_name.items():
        made = read(metric, METRICS, "metric") if isinstance(metric, str) else metric
        if not callable(made):
            raise InputError(f"metric '{name}' must be a function or text, not {metric!r:.80}")
        found[name] = _of_loss(made, labels) if labels and isinstance(made, Score) else made
    return found


def _of_loss(score: Score, labels: Labels) -> Score:
    """Returns a metric with the defaults that follow from the loss."""
    if score.target is None:
        score = replace(score, target=_target(score, [fed.name for fed in labels.targets]))
    if isinstance(score, Perplexity) and score.shift is None:
        shifts = {f.name: f.unread or 0 for f in labels.targets if f.ignored is not None}
        score = replace(score, shift=shifts.get(score.answers))
    if isinstance(score, WithThreshold) and score.threshold is None:
        names = list(labels.outputs)
        name = score.output or (names[0] if len(names) == 1 else "")
        shape = labels.outputs.get(name)
        if (
            shape is not None
            and score.is_single(shape)
            and _is_logit(name, names, labels.objective)
        ):
            score = replace(score, threshold=0.0)
    return score


def _target(score: Score, names: Sequence[str]) -> str | None:
    """Returns the labels of the loss that a metric reads: the only ones, or those with a default
    name; None if the loss has none. Raises InputError if it has several.
    """
    usual = [name for name in (score.usual, "labels", "target") if name in names]
    if names and not usual and len(names) > 1:
        raise InputError(f"{score.name} needs target=: the loss reads {', '.join(names)}")
    return next(iter(usual or names), None)


def _is_logit(name: str, outputs: Sequence[str], objective: str) -> bool:
    """Whether bce_with_logits reads this output."""
    for options in re.findall(r"\bbce_with_logits\b(?:\{([^{}]*)\})?", objective):
        of = re.search(r"\boutput=([^,;]+)", options)
        if name == of[1] if of else len(outputs) == 1:
            return True
    return False
