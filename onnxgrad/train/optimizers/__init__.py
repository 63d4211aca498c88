"""Optimisers; `OPTIMIZERS` has those of `formulas` by their names in text and in files."""

from onnxgrad.named_options import declared
from onnxgrad.train.optimizers import formulas
from onnxgrad.train.optimizers.base import Custom as Custom  # train.Custom is a loss
from onnxgrad.train.optimizers.base import Moment, Optimizer
from onnxgrad.train.optimizers.formulas import (
    SGD,
    Adadelta,
    Adafactor,
    Adagrad,
    Adam,
    AdamW,
    Lion,
    NAdam,
    RAdam,
    RMSprop,
)

OPTIMIZERS: dict[str, type[Optimizer]] = {
    cls.__name__.lower(): cls for cls in declared(formulas, Optimizer)
}

__all__ = [
    "OPTIMIZERS", "SGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Lion", "Moment",
    "NAdam", "Optimizer", "RAdam", "RMSprop",
]  # fmt: skip
