"""Training without the framework: a step as one plain graph, and what drives it in onnxruntime."""

from onnxgrad.train.losses import L1, MSE, CrossEntropy, Custom, Loss, Output
from onnxgrad.train.optimizers import SGD, Adam, AdamW, Optimizer
from onnxgrad.train.step import TrainingStep, training_step

__all__ = [
    "L1", "MSE", "SGD", "Adam", "AdamW", "CrossEntropy", "Custom", "Loss", "Optimizer", "Output", "TrainingStep",
    "training_step",
]  # fmt: skip
