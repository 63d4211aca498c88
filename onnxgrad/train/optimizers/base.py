"""What an optimiser is: a state per parameter, and one formula that serves graphs and arrays alike.

A formula is written once, with `+ - * /` and `at.math`: over values of a graph it emits nodes, over numpy arrays it
computes. The portable training step holds it as nodes; the trainer may apply it to blocks of memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from onnxgrad.errors import InputError
from onnxgrad.ir.types import Array

# a Var while a graph is built, an array while one computes
Tensor = Any
State = Mapping[str, Tensor]


@dataclass(frozen=True)
class Moment:
    """When and with what an update is made.

    rate: the learning rate, a scalar of the parameters' dtype. step: the number of this update from 1 on, a float64
    scalar: powers such as 0.999^t need its digits. math: `op`, or the same functions over arrays. number: turns a
    float64 scalar into one of the parameters' dtype.
    """

    rate: Tensor
    step: Tensor
    math: Any
    number: Any

    def correction(self, beta: float) -> Tensor:
        """1 - beta^t in float64: what an average of t terms that began at 0 lacks."""
        return 1.0 - self.math.Pow(np.float64(beta), self.step)


@dataclass(frozen=True)
class Optimizer(ABC):
    """An update rule. A subclass has its hyperparameters as fields, with PyTorch's names and defaults."""

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            numbers = value if isinstance(value, tuple) else (value,)
            if any(isinstance(n, float) and not np.isfinite(n) for n in numbers):
                raise InputError(f"{self.name}: {f.name} must be finite, not {value}")

    @property
    def name(self) -> str:
        """What files and the command line call it."""
        return type(self).__name__.lower()

    def state(self, parameter: Array) -> dict[str, Array]:
        """What is kept of one parameter between steps, as it is before the first one; nothing by default."""
        return {}

    @abstractmethod
    def update(self, p: Tensor, g: Tensor, s: State, at: Moment) -> tuple[Tensor, dict[str, Tensor]]:
        """The parameter and its state after one step; p, g and what `state` gave have one shape unless it says else."""


def zeros(parameter: Array, *names: str) -> dict[str, Array]:
    """A state of zeros like the parameter under each name."""
    return {name: np.zeros_like(parameter) for name in names}
