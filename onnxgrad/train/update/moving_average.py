"""A moving average of the weights, for evaluation and export."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from onnxgrad.ir.types import Array
from onnxgrad.options import Share, check_fields
from onnxgrad.train.array_math import element_type
from onnxgrad.train.optimizers.base import Moment, Tensor
from onnxgrad.train.update.clipping import in_dtype


@dataclass(frozen=True)
class ExponentialMovingAverage:
    """a = decay a + (1 - decay) p after each update, the first a being p:
    torch.optim.swa_utils.get_ema_avg_fn.

    A training step holds one more state per parameter, called `average`, and makes its new value of
    the parameter's new one. Of parameters narrower than float32 the average is kept in float32, for
    it moves by less than they can hold; with master weights give it those. Source: Polyak and
    Juditsky, "Acceleration of Stochastic Approximation by Averaging", 1992. Raises InputError for a
    decay outside of 0 to 1.
    """

    decay: Share = 0.999

    def __post_init__(self) -> None:
        check_fields(self, "average")

    def state(self, parameter: Array) -> Mapping[str, Array]:
        """The average before the first update: the parameter itself."""
        return {
            "average": parameter.astype(
                parameter.dtype if parameter.dtype == np.float64 else np.float32
            )
        }

    def update(self, average: Tensor, p: Tensor, at: Moment) -> Tensor:
        """The average with the parameter as it is after the update of that moment."""
        at = at.of(element_type(average))
        first = at.math.Equal(at.step, 1.0)
        decay = at.math.Where(first, np.float64(0.0), np.float64(self.decay))
        share = at.number(at.math.Where(first, np.float64(1.0), np.float64(1.0 - self.decay)))
        return at.number(decay) * average + share * in_dtype(p, at.dtype, at.math)
