"""Losses on a model's outputs."""

from onnxgrad.train.losses.base import Custom, Loss, Output, Sum
from onnxgrad.train.losses.classification import CrossEntropy
from onnxgrad.train.losses.regression import L1, MSE

__all__ = ["L1", "MSE", "CrossEntropy", "Custom", "Loss", "Output", "Sum"]
