"""The interface of engines, which hold parameters and states, accept batches and return losses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np

from onnxgrad.errors import InputError
from onnxgrad.ir.types import Array
from onnxgrad.train.step import TrainingStep

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Result:
    """The loss and metrics of one step."""

    loss: float
    metrics: Mapping[str, Array]


class Engine(ABC):
    """Holds the parameters and states of one training step, and runs steps.

    part: the index of the next micro-batch of a step, from 0; after the last one, parameters are
    updated. seed: of the run; the draws of a batch depend on it and on the batch's number
    (`seed_of`). spoiled: states were overwritten by a step that was then undone, so that training
    can only continue after a `put`.
    """

    def __init__(self, step: TrainingStep) -> None:
        self.task = step
        self.part = 0
        self.seed = 0
        self.spoiled = False

    @abstractmethod
    def run(self, batch: Mapping[str, Array], number: int, rate: float) -> Result:
        """Runs one step, or one micro-batch of it, on the current values, and replaces them.
        `number` is that of the step, from 1.
        """

    @abstractmethod
    def back(self) -> None:
        """Undoes the last step's change of parameters. States may be lost, and sums over
        micro-batches start again.
        """

    @property
    def values(self) -> dict[str, Array]:
        """Returns copies of the current parameters and states, by the names of their inputs."""
        return {name: np.array(a) for name, a in self.held.items()}

    @property
    @abstractmethod
    def held(self) -> dict[str, Array]:
        """Returns the memory of the parameters and states, which the next step overwrites; for a
        device, copies.
        """

    @abstractmethod
    def put(self, values: Mapping[str, Array]) -> None:
        """Continues from these values."""

    @property
    def last(self) -> bool:
        """Whether the current micro-batch is the last one of the step."""
        return self.part == self.task.manifest.accumulate - 1

    def draw(self, number: int) -> int:
        """Returns the seed of the current batch of that step."""
        batches = (number - 1) * self.task.manifest.accumulate + self.part + 1
        return seed_of(self.seed, batches)

    # if several processes train together, one leads; most engines are one process

    @property
    def alone(self) -> bool:
        """Whether no other process trains with this one."""
        return True

    @property
    def leads(self) -> bool:
        """Whether this process logs and saves."""
        return True

    def agree(self, value: T) -> T:
        """Returns the leader's value. All processes must call this method."""
        return value

    def together(self) -> AbstractContextManager[None]:
        """Returns a context in which an error of one process ends all."""
        return nullcontext()


def ending_together(method: Callable[P, T]) -> Callable[P, T]:
    """Returns a trainer's method during which an error of one process ends all processes that train
    together.
    """

    @wraps(method)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        trainer: Any = args[0]
        with trainer._engine.together():
            return method(*args, **kwargs)

    return called


def seed_of(run: int, number: int) -> int:
    """Returns the seed of the batch with this number, which differs for each pair. Raises
    InputError if the run's seed is out of range.
    """
    if not 0 <= run < 1 << 31:
        raise InputError(f"the seed must be from 0 to 2^31 - 1, not {run}")
    return (run << 32) + number
