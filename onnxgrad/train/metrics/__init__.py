"""Metrics of held-out data. Their names in text are the names of the classes in small letters."""

from onnxgrad.train.metrics.base import Arrays, Metric, Score
from onnxgrad.train.metrics.classes import F1, Accuracy, IoU, TopK
from onnxgrad.train.metrics.registry import METRICS, accuracy, metrics_from
from onnxgrad.train.metrics.values import R2, Perplexity

__all__ = [
    "F1", "METRICS", "R2", "Accuracy", "Arrays", "IoU", "Metric", "Perplexity", "Score", "TopK",
    "accuracy", "metrics_from",
]  # fmt: skip
