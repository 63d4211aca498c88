"""Optimisers, one file per family: `OPTIMIZERS` by the names that the command line and files
have for them.
"""

from onnxgrad.train.optimizers.base import Custom, Moment, Optimizer
from onnxgrad.train.optimizers.formulas import (
    SGD,
    Adadelta,
    Adafactor,
    Adagrad,
    Adam,
    AdamW,
    Lion,
    NAdam,
    RMSprop,
)

_ALL = (SGD, Adam, AdamW, NAdam, Adagrad, RMSprop, Adadelta, Lion, Adafactor)
OPTIMIZERS: dict[str, type[Optimizer]] = {cls.__name__.lower(): cls for cls in _ALL}

__all__ = [
    "OPTIMIZERS", "SGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Custom", "Lion",
    "Moment", "NAdam", "Optimizer", "RMSprop",
]  # fmt: skip
