"""Optimisers, one file per family: `OPTIMIZERS` by the names that the command line and files have for them."""

from onnxgrad.train.optimizers.adam import Adam, AdamW
from onnxgrad.train.optimizers.base import Moment, Optimizer
from onnxgrad.train.optimizers.sgd import SGD

OPTIMIZERS: dict[str, type[Optimizer]] = {cls.__name__.lower(): cls for cls in (SGD, Adam, AdamW)}

__all__ = ["OPTIMIZERS", "SGD", "Adam", "AdamW", "Moment", "Optimizer"]
