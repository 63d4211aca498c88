"""Training without the framework: a training step as one plain graph, and its runs in
onnxruntime.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from onnxgrad.extensions import attribute, built_in
from onnxgrad.train import losses, metrics, optimizers, schedules
from onnxgrad.train.adapters import (
    Adapters,
    adapters_of,
    load_adapters,
    lora,
    merge,
    read_adapters,
    read_peft,
    save_adapters,
    save_onnxruntime,
    save_peft,
    with_adapter_inputs,
)
from onnxgrad.train.callbacks import CsvLines, EarlyStopping, Event, History, JsonLines, RangeTest
from onnxgrad.train.data import Arrays, Data
from onnxgrad.train.divergence import Diverged
from onnxgrad.train.export import export
from onnxgrad.train.frozen_part import features
from onnxgrad.train.losses import *  # noqa: F403  # its table
from onnxgrad.train.manifest import Manifest
from onnxgrad.train.metrics import accuracy
from onnxgrad.train.optimizers import *  # noqa: F403
from onnxgrad.train.step import TrainingStep
from onnxgrad.train.step_folder import read_step, save_step, seal_step
from onnxgrad.train.update.mixed_precision import LossScaling
from onnxgrad.train.update.moving_average import ExponentialMovingAverage, StochasticWeightAverage

if TYPE_CHECKING:
    from onnxgrad.training import Trainer, training_step
else:

    def __getattr__(name: str) -> object:
        """Returns a name of a plug-in, or of `onnxgrad.training`, which imports this package."""
        if name not in ("Trainer", "training_step"):
            return attribute("train", __name__, name)
        return getattr(import_module("onnxgrad.training"), name)


__all__ = [
    "Adapters",
    "Arrays",
    "CsvLines",
    "Data",
    "Diverged",
    "EarlyStopping",
    "Event",
    "ExponentialMovingAverage",
    "History",
    "JsonLines",
    "LossScaling",
    "Manifest",
    "RangeTest",
    "StochasticWeightAverage",
    "Trainer",
    "TrainingStep",
    "accuracy",
    "adapters_of",
    "export",
    "features",
    "load_adapters",
    "lora",
    "merge",
    "metrics",
    "read_adapters",
    "read_peft",
    "read_step",
    "save_adapters",
    "save_onnxruntime",
    "save_peft",
    "save_step",
    "schedules",
    "seal_step",
    "training_step",
    "with_adapter_inputs",
]
__all__ += losses.__all__
__all__ += optimizers.__all__
__all__ += built_in("train")
