"""Optimisers; `OPTIMIZERS` has those of `formulas` and `matrices` by their names in text and in
files.
"""

from onnxgrad.named_options import declared
from onnxgrad.train.optimizers import formulas, matrices
from onnxgrad.train.optimizers.base import Custom as Custom  # train.Custom is a loss
from onnxgrad.train.optimizers.base import Moment, Optimizer
from onnxgrad.train.optimizers.formulas import (
    SGD,
    Adadelta,
    Adagrad,
    Adam,
    AdamW,
    Lion,
    NAdam,
    RAdam,
    RMSprop,
)
from onnxgrad.train.optimizers.matrices import Adafactor, Muon

OPTIMIZERS: dict[str, type[Optimizer]] = {
    cls.__name__.lower(): cls
    for module in (formulas, matrices)
    for cls in declared(module, Optimizer)
}

__all__ = [
    "OPTIMIZERS", "SGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Lion", "Moment",
    "Muon",
    "NAdam", "Optimizer", "RAdam", "RMSprop",
]  # fmt: skip
