"""Losses on a model's outputs, with torch.nn's names and defaults; `LOSSES` maps names in text to
classes.
"""

from onnxgrad.train.losses.base import Custom, Loss, Output, Sum
from onnxgrad.train.losses.classification import (
    BCEWithLogits,
    CrossEntropy,
    KLDiv,
    SequenceCrossEntropy,
)
from onnxgrad.train.losses.ctc import CTC
from onnxgrad.train.losses.embedding import Cosine, CosineEmbedding, TripletMargin
from onnxgrad.train.losses.penalty import L1Penalty, L2Penalty, ProximalPenalty
from onnxgrad.train.losses.place import Place
from onnxgrad.train.losses.registry import LOSSES, parse_loss
from onnxgrad.train.losses.regression import L1, MSE, Huber, SmoothL1
from onnxgrad.train.losses.weighting import class_weights

__all__ = [
    "CTC", "L1", "LOSSES", "MSE", "BCEWithLogits", "Cosine", "CosineEmbedding", "CrossEntropy",
    "Custom", "Huber", "KLDiv", "L1Penalty", "L2Penalty", "Loss", "Output", "Place",
    "ProximalPenalty", "SequenceCrossEntropy", "SmoothL1", "Sum", "TripletMargin", "class_weights",
    "parse_loss",
]  # fmt: skip
