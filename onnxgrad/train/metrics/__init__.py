"""Metrics of held-out data; `METRICS` maps names in text to classes."""

from onnxgrad.train.metrics.base import Arrays, Metric, Score
from onnxgrad.train.metrics.classes import F1, Accuracy, Confusion, IoU, Precision, Recall, TopK
from onnxgrad.train.metrics.curves import PrAuc, RocAuc
from onnxgrad.train.metrics.registry import METRICS, accuracy, metrics_from
from onnxgrad.train.metrics.values import R2, Perplexity

__all__ = [
    "F1", "METRICS", "R2", "Accuracy", "Arrays", "Confusion", "IoU", "Metric", "Perplexity",
    "PrAuc", "Precision", "Recall", "RocAuc", "Score", "TopK", "accuracy", "metrics_from",
]  # fmt: skip
