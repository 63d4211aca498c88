"""Adagrad and what came of it: steps by the root of the sum, or the mean, of squared gradients."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from onnxgrad.ir.types import Array
from onnxgrad.train.optimizers.base import Moment, Optimizer, State, Tensor, zeros


@dataclass(frozen=True)
class Adagrad(Optimizer):
    """h = h + g^2; p = p - r / (1 + (t - 1) lr_decay) g / (sqrt(h) + eps).

    Source: Duchi, Hazan and Singer, "Adaptive Subgradient Methods for Online Learning and
    Stochastic Optimization", 2011.
    """

    lr: float = 1e-2
    lr_decay: float = 0.0
    weight_decay: float = 0.0
    initial_accumulator_value: float = 0.0
    eps: float = 1e-10

    def state(self, parameter: Array) -> dict[str, Array]:
        """The sum of the squared gradients."""
        return {"sum": np.full_like(parameter, self.initial_accumulator_value)}

    def update(
        self, p: Tensor, g: Tensor, s: State, at: Moment
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """One step."""
        g = self._downhill(p, g, self.weight_decay)
        h = s["sum"] + g * g
        rate = (
            at.rate / at.number(1.0 + (at.step - 1.0) * self.lr_decay) if self.lr_decay else at.rate
        )
        return p - rate * (g / (at.math.Sqrt(h) + self.eps)), {"sum": h}


@dataclass(frozen=True)
class RMSprop(Optimizer):
    """v = alpha v + (1 - alpha) g^2; d = g / (sqrt(v) + eps); p = p - r d.

    centered: by the root of v - a^2, a the mean of the gradients likewise. momentum: p = p - r b, b
    = momentum b + d. Source: Tieleman and Hinton, "Lecture 6.5: rmsprop", Neural Networks for
    Machine Learning, 2012; centered: Graves, "Generating Sequences With Recurrent Neural Networks",
    2013.
    """

    lr: float = 1e-2
    alpha: float = 0.99
    eps: float = 1e-8
    weight_decay: float = 0.0
    momentum: float = 0.0
    centered: bool = False

    def state(self, parameter: Array) -> dict[str, Array]:
        """The mean of the squared gradients; of the gradients when centered; the moving sum with
        momentum.
        """
        more = [
            *(["momentum_buffer"] if self.momentum else []),
            *(["grad_avg"] if self.centered else []),
        ]
        return zeros(parameter, "square_avg", *more)

    def update(
        self, p: Tensor, g: Tensor, s: State, at: Moment
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """One step."""
        g = self._downhill(p, g, self.weight_decay)
        v = self.alpha * s["square_avg"] + (1 - self.alpha) * (g * g)
        kept, spread = {"square_avg": v}, v
        if self.centered:
            kept["grad_avg"] = a = self.alpha * s["grad_avg"] + (1 - self.alpha) * g
            spread = v - a * a
        d = g / (at.math.Sqrt(spread) + self.eps)
        if self.momentum:
            kept["momentum_buffer"] = d = self.momentum * s["momentum_buffer"] + d
        return p - at.rate * d, kept


@dataclass(frozen=True)
class Adadelta(Optimizer):
    """v = rho v + (1 - rho) g^2; d = sqrt(u + eps) / sqrt(v + eps) g; u = rho u + (1 - rho) d^2; p
    = p - r d.

    Source: Zeiler, "ADADELTA: An Adaptive Learning Rate Method", 2012.
    """

    lr: float = 1.0
    rho: float = 0.9
    eps: float = 1e-6
    weight_decay: float = 0.0

    def state(self, parameter: Array) -> dict[str, Array]:
        """The mean of the squared gradients, and of the squared steps."""
        return zeros(parameter, "square_avg", "acc_delta")

    def update(
        self, p: Tensor, g: Tensor, s: State, at: Moment
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """One step."""
        g = self._downhill(p, g, self.weight_decay)
        v = self.rho * s["square_avg"] + (1 - self.rho) * (g * g)
        d = at.math.Sqrt(s["acc_delta"] + self.eps) / at.math.Sqrt(v + self.eps) * g
        u = self.rho * s["acc_delta"] + (1 - self.rho) * (d * d)
        return p - at.rate * d, {"square_avg": v, "acc_delta": u}
