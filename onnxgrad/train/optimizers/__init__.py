"""Optimisers, one file per family: `OPTIMIZERS` by the names that the command line and files
have for them.
"""

from onnxgrad.train.optimizers.adafactor import Adafactor
from onnxgrad.train.optimizers.adagrad import Adadelta, Adagrad, RMSprop
from onnxgrad.train.optimizers.adam import Adam, AdamW
from onnxgrad.train.optimizers.base import Moment, Optimizer
from onnxgrad.train.optimizers.custom import Custom
from onnxgrad.train.optimizers.lion import Lion
from onnxgrad.train.optimizers.nadam import NAdam
from onnxgrad.train.optimizers.sgd import SGD

_ALL = (SGD, Adam, AdamW, NAdam, Adagrad, RMSprop, Adadelta, Lion, Adafactor)
OPTIMIZERS: dict[str, type[Optimizer]] = {cls.__name__.lower(): cls for cls in _ALL}

__all__ = [
    "OPTIMIZERS", "SGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Custom", "Lion",
    "Moment", "NAdam", "Optimizer", "RMSprop",
]  # fmt: skip
