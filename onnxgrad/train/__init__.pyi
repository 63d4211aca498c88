"""Made by scripts/make_stubs.py from the declarations of onnxgrad.jobs."""

# fmt: off
# ruff: noqa: I001
from onnxgrad.train import losses, metrics, optimizers, schedules
from onnxgrad.train.adapters import Adapters, adapters_of, load_adapters, lora, merge, read_adapters, read_peft, save_adapters, save_onnxruntime, save_peft, with_adapter_inputs
from onnxgrad.train.callbacks import CsvLines, EarlyStopping, Event, History, JsonLines, RangeTest
from onnxgrad.train.data import Arrays, Data
from onnxgrad.train.divergence import Diverged
from onnxgrad.train.export import export
from onnxgrad.train.frozen_part import features
from onnxgrad.train.losses import *
from onnxgrad.train.manifest import Manifest
from onnxgrad.train.metrics import accuracy
from onnxgrad.train.optimizers import *
from onnxgrad.train.step import TrainingStep
from onnxgrad.train.step_folder import read_step, save_step, seal_step
from onnxgrad.train.update.mixed_precision import LossScaling
from onnxgrad.train.update.moving_average import ExponentialMovingAverage, StochasticWeightAverage
from onnxgrad.training import Trainer, training_step
__all__ = ['Adapters', 'Arrays', 'CsvLines', 'Data', 'Diverged', 'EarlyStopping', 'Event', 'ExponentialMovingAverage', 'History', 'JsonLines', 'LossScaling', 'Manifest', 'RangeTest', 'StochasticWeightAverage', 'Trainer', 'TrainingStep', 'accuracy', 'adapters_of', 'export', 'features', 'load_adapters', 'lora', 'merge', 'metrics', 'read_adapters', 'read_peft', 'read_step', 'save_adapters', 'save_onnxruntime', 'save_peft', 'save_step', 'schedules', 'seal_step', 'training_step', 'with_adapter_inputs']
__all__ += losses.__all__
__all__ += optimizers.__all__
__all__ += ['Delta', 'average', 'read_delta', 'step_from_training_info', 'with_training_info']
from onnxgrad.plugins.federated import Delta as Delta
from onnxgrad.plugins.federated import average as average
from onnxgrad.plugins.federated import read_delta as read_delta
from onnxgrad.plugins.onnx_training.training_info_reader import step_from_training_info as step_from_training_info
from onnxgrad.plugins.onnx_training.training_info_writer import with_training_info as with_training_info
