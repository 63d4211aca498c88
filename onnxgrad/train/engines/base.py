"""The interface of engines: parameters and states live in an engine, batches go in, losses come
out.
"""

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
    """Parameters and states of one training step, and the way to the next.

    part: which of the micro-batches that make a step `run` is given next, from 0 on; after the last
    one parameters are updated.
    seed: of the run; a batch draws by `seed_of` it and the batch's number. spoiled: states were
    written over by a step that was then undone, so that training cannot go on before a `put`.
    """

    def __init__(self, step: TrainingStep) -> None:
        self.task = step
        self.part = 0
        self.seed = 0
        self.spoiled = False

    @abstractmethod
    def run(self, batch: Mapping[str, Array], number: int, rate: float) -> Result:
        """One step, or micro-batch of it, from the values held, which it replaces. `number` is the
        step's, from 1 on.
        """

    @abstractmethod
    def back(self) -> None:
        """Undo the last step's parameters; its states may be lost, and sums over micro-batches
        begin anew.
        """

    @property
    def values(self) -> dict[str, Array]:
        """Copies of the parameters and states as they are now, by the names of their inputs."""
        return {name: np.array(a) for name, a in self.held.items()}

    @property
    @abstractmethod
    def held(self) -> dict[str, Array]:
        """The memory of the parameters and states, which the next step writes over; of a device,
        copies.
        """

    @abstractmethod
    def put(self, values: Mapping[str, Array]) -> None:
        """Go on from these values."""

    @property
    def last(self) -> bool:
        """Whether the present micro-batch is the step's last one."""
        return self.part == self.task.manifest.accumulate - 1

    def draw(self, number: int) -> int:
        """The seed of the present batch of that step."""
        batches = (number - 1) * self.task.manifest.accumulate + self.part + 1
        return seed_of(self.seed, batches)

    # of several processes that train together one leads; most engines are one process

    @property
    def alone(self) -> bool:
        """Whether no other process trains with this one."""
        return True

    @property
    def leads(self) -> bool:
        """Whether this process logs and saves."""
        return True

    def agree(self, value: T) -> T:
        """The leader's value; all processes call it."""
        return value

    def together(self) -> AbstractContextManager[None]:
        """Inside of it, an error of one process ends all."""
        return nullcontext()


def ending_together(method: Callable[P, T]) -> Callable[P, T]:
    """Inside of a trainer's method, an error of one process ends all that train together."""

    @wraps(method)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        trainer: Any = args[0]
        with trainer._engine.together():
            return method(*args, **kwargs)

    return called


def seed_of(run: int, number: int) -> int:
    """The seed of the batch of that number: another one for each pair. Raises InputError for a
    run's seed out of range.
    """
    if not 0 <= run < 1 << 31:
        raise InputError(f"the seed must be from 0 to 2^31 - 1, not {run}")
    return (run << 32) + number
