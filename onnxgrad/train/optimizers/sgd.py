"""Stochastic gradient descent."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from onnxgrad.errors import InputError
from onnxgrad.ir.types import Array
from onnxgrad.train.optimizers.base import Moment, Optimizer, State, Tensor, zeros


@dataclass(frozen=True)
class SGD(Optimizer):
    """b = momentum b + (1 - dampening) g; p = p - r b; Nesterov: p = p - r (g + momentum b).

    The first b is g itself. Source: Sutskever et al., "On the importance of initialization and
    momentum in deep learning", 2013, as PyTorch writes it. Raises InputError for Nesterov without
    momentum, or with dampening.
    """

    lr: float = 1e-3
    momentum: float = 0.0
    dampening: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nesterov and (self.momentum <= 0 or self.dampening != 0):
            raise InputError("sgd: nesterov needs a momentum above 0 and no dampening")

    def state(self, parameter: Array) -> dict[str, Array]:
        """The moving sum of the gradients, where there is momentum."""
        return zeros(parameter, "momentum_buffer") if self.momentum else {}

    def update(
        self, p: Tensor, g: Tensor, s: State, at: Moment
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """One step."""
        g = self._downhill(p, g, self.weight_decay)
        if not self.momentum:
            return p - at.rate * g, {}
        fresh = g
        if self.dampening:  # of all gradients but the first
            first = at.math.Equal(at.step, 1.0)
            fresh = g * at.number(
                at.math.Where(first, np.float64(1.0), np.float64(1.0 - self.dampening))
            )
        b = self.momentum * s["momentum_buffer"] + fresh
        return p - at.rate * (g + self.momentum * b if self.nesterov else b), {"momentum_buffer": b}
