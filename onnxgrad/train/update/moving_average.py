"""The formula by which both engines update a weight, and averages of the weights."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from onnx import TensorProto

from onnxgrad.errors import InputError
from onnxgrad.ir.types import Array
from onnxgrad.named_options import read
from onnxgrad.options import Count, Declared, Range, Share, check_fields
from onnxgrad.results import Plain
from onnxgrad.train.optimizers.base import Moment, Optimizer, State, Tensor
from onnxgrad.train.update.clipping import element_type, in_dtype
from onnxgrad.train.update.mixed_precision import MASTER, Master


@dataclass(frozen=True)
class WeightAverage(Plain, metaclass=Declared):
    """An average of the weights, updated after each update of them.

    A training step has one more state per parameter, called `average`. The average of parameters
    narrower than float32 is kept in float32, because its changes are smaller than their precision;
    with master weights, these are averaged.
    """

    json_keys = "name *"
    name: ClassVar[str] = ""

    def __post_init__(self) -> None:
        check_fields(self, "average")

    def state(self, parameter: Array) -> Mapping[str, Array]:
        """Returns the average before the first update: the parameter itself."""
        wide = parameter.dtype if parameter.dtype == np.float64 else np.float32
        return {"average": parameter.astype(wide)}

    def update(self, average: Tensor, p: Tensor, at: Moment) -> Tensor:
        """Returns the average after the update of that moment, which made the parameter `p`."""
        at = at.of(element_type(average))
        kept, share = self._shares(at)
        return at.number(kept) * average + at.number(share) * in_dtype(p, at.dtype, at.math)

    @abstractmethod
    def _shares(self, at: Moment) -> tuple[Tensor, Tensor]:
        """Returns the shares of the average and of the parameter in the new one, in float64."""


@dataclass(frozen=True)
class ExponentialMovingAverage(WeightAverage):
    """a = decay a + (1 - decay) p after each update, starting with a = p:
    torch.optim.swa_utils.get_ema_avg_fn.

    Source: Polyak and Juditsky, "Acceleration of Stochastic Approximation by Averaging", 1992.
    Raises InputError for a decay outside of 0 to 1.
    """

    name: ClassVar[str] = "ema"

    decay: Share = 0.999

    def _shares(self, at: Moment) -> tuple[Tensor, Tensor]:
        first = at.math.Equal(at.step, 1.0)
        decay = at.math.Where(first, np.float64(0.0), np.float64(self.decay))
        return decay, at.math.Where(first, np.float64(1.0), np.float64(1.0 - self.decay))


@dataclass(frozen=True)
class StochasticWeightAverage(WeightAverage):
    """The mean of the weights after the steps start + every, start + 2 every, ...; up to the first
    of these the last weights: torch.optim.swa_utils.AveragedModel.

    The learning rate should stay large (`schedule`), and statistics of BatchNormalization are those
    of the plain weights. Source: Izmailov et al., "Averaging Weights Leads to Wider Optima and
    Better Generalization", 2018. Raises InputError for numbers out of range.
    """

    name: ClassVar[str] = "swa"

    start: Annotated[int, Range(0)] = 0
    every: Count = 1

    def _shares(self, at: Moment) -> tuple[Tensor, Tensor]:
        number = (at.step - float(self.start)) / float(self.every)
        counted = at.math.Equal(at.math.Floor(number), number)
        share = at.math.Where(counted, 1.0 / at.math.Max(number, 1.0), np.float64(0.0))
        share = at.math.Where(at.math.Less(number, 1.0), np.float64(1.0), share)
        return 1.0 - share, share


AVERAGES: dict[str, type[WeightAverage]] = {
    cls.name: cls for cls in (ExponentialMovingAverage, StochasticWeightAverage)
}


def average_of(value: float | str | Mapping[str, Any] | WeightAverage | None) -> Any:
    """Returns the average of a decay, a text, or an entry of a manifest; None if there is none.
    Raises InputError.
    """
    if isinstance(value, str):
        return read(value, AVERAGES, "average")
    if isinstance(value, Mapping):
        options = {k: v for k, v in value.items() if k != "name"}
        if value.get("name") not in AVERAGES:
            raise InputError(f"the step's average is not one of {', '.join(AVERAGES)}")
        return AVERAGES[value["name"]](**options)
    return ExponentialMovingAverage(value) if isinstance(value, (int, float)) else value


@dataclass(frozen=True)
class WeightUpdate:
    """The update of the weights of one group: the optimiser's formula, then the moving average.

    factor: the group's learning rate over the step's. least: least values of the weight, for scales
    of a quantisation.
    """

    optimizer: Optimizer
    factor: float = 1.0
    average: WeightAverage | None = None
    least: Array | None = None

    def rate(self, given: Tensor, math: Any) -> Tensor:
        """Returns the group's learning rate, in float64 if it differs from the step's."""
        return (
            given if self.factor == 1 else in_dtype(given, TensorProto.DOUBLE, math) * self.factor
        )

    def update(
        self,
        p: Tensor,
        g: Tensor,
        s: State,
        average: Tensor,
        at: Moment,
        kept: Callable[[Tensor, Tensor], Tensor] = lambda new, old: new,
    ) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        """Returns the weight, its states and its average after one step, each as `kept(new, old)`.
        The average is that of the master weights, if there are any.
        """
        new, after = self.optimizer.update(p, g, s, at)
        if self.least is not None:
            new = at.math.Max(new, self.least)
            if MASTER in after:
                wide = self.least.astype(np.float32)
                after = {**after, MASTER: at.math.Max(after[MASTER], wide)}
        new, after = kept(new, p), {slot: kept(after[slot], v) for slot, v in s.items()}
        if self.average is not None:
            source = after["master"] if isinstance(self.optimizer, Master) else new
            average = kept(self.average.update(average, source, at), average)
        return new, after, average
