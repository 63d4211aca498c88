"""Training without the framework: a step as one plain graph, and what drives it in onnxruntime."""

from onnxgrad.train import schedules
from onnxgrad.train.adapters import (
    Adapters,
    adapters_of,
    load_adapters,
    lora,
    merge,
    read_adapters,
    read_peft,
    save_adapters,
    save_peft,
)
from onnxgrad.train.callbacks import EarlyStopping, Event, History, JsonLines
from onnxgrad.train.data import Arrays, Data
from onnxgrad.train.divergence import Diverged
from onnxgrad.train.evaluation import accuracy
from onnxgrad.train.export import export
from onnxgrad.train.frozen_part import features
from onnxgrad.train.losses import (
    CTC,
    L1,
    MSE,
    BCEWithLogits,
    Cosine,
    CosineEmbedding,
    CrossEntropy,
    Custom,
    Huber,
    KLDiv,
    L1Penalty,
    L2Penalty,
    Loss,
    Output,
    SequenceCrossEntropy,
    SmoothL1,
    TripletMargin,
    parse_loss,
)
from onnxgrad.train.manifest import Manifest
from onnxgrad.train.onnx_training.training_info_reader import step_from_training_info
from onnxgrad.train.onnx_training.training_info_writer import with_training_info
from onnxgrad.train.optimizers import (
    SGD,
    Adadelta,
    Adafactor,
    Adagrad,
    Adam,
    AdamW,
    Lion,
    NAdam,
    Optimizer,
    RMSprop,
)
from onnxgrad.train.step import TrainingStep, training_step
from onnxgrad.train.step_folder import read_step, save_step, seal_step
from onnxgrad.train.trainer import Trainer
from onnxgrad.train.update.mixed_precision import LossScaling
from onnxgrad.train.update.moving_average import ExponentialMovingAverage

__all__ = [
    "CTC",
    "L1",
    "MSE",
    "SGD",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adapters",
    "Arrays",
    "BCEWithLogits",
    "Cosine",
    "CosineEmbedding",
    "CrossEntropy",
    "Custom",
    "Data",
    "Diverged",
    "EarlyStopping",
    "Event",
    "ExponentialMovingAverage",
    "History",
    "Huber",
    "JsonLines",
    "KLDiv",
    "L1Penalty",
    "L2Penalty",
    "Lion",
    "Loss",
    "LossScaling",
    "Manifest",
    "NAdam",
    "Optimizer",
    "Output",
    "RMSprop",
    "SequenceCrossEntropy",
    "SmoothL1",
    "Trainer",
    "TrainingStep",
    "TripletMargin",
    "accuracy",
    "adapters_of",
    "export",
    "features",
    "load_adapters",
    "lora",
    "merge",
    "parse_loss",
    "read_adapters",
    "read_peft",
    "read_step",
    "save_adapters",
    "save_peft",
    "save_step",
    "schedules",
    "seal_step",
    "step_from_training_info",
    "training_step",
    "with_training_info",
]
