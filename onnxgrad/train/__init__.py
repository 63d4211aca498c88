"""Training without the framework: a step as one plain graph, and what drives it in onnxruntime."""

from onnxgrad.train.callbacks import EarlyStopping, Event, History, JsonLines
from onnxgrad.train.data import Arrays, Data
from onnxgrad.train.export import export
from onnxgrad.train.losses import L1, MSE, CrossEntropy, Custom, Loss, Output
from onnxgrad.train.manifest import Manifest
from onnxgrad.train.metrics import accuracy
from onnxgrad.train.optimizers import SGD, Adam, AdamW, Optimizer
from onnxgrad.train.step import TrainingStep, training_step
from onnxgrad.train.store import read_step, save_step
from onnxgrad.train.trainer import Diverged, Trainer

__all__ = [
    "L1", "MSE", "SGD", "Adam", "AdamW", "Arrays", "CrossEntropy", "Custom", "Data", "Diverged", "EarlyStopping",
    "Event", "History", "JsonLines", "Loss", "Manifest", "Optimizer", "Output", "Trainer", "TrainingStep", "accuracy",
    "export", "read_step", "save_step", "training_step",
]  # fmt: skip
