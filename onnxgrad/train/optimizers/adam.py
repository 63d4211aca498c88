"""Adam and its relatives: a step against the mean of the gradients, by the root of the mean of their squares."""

from __future__ import annotations

from dataclasses import dataclass

from onnxgrad.ir.types import Array
from onnxgrad.train.optimizers.base import Moment, Optimizer, State, Tensor, zeros


@dataclass(frozen=True)
class Adam(Optimizer):
    """m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2; p = p - r (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps).

    Source: Kingma and Ba, "Adam: A Method for Stochastic Optimization", 2015; `weight_decay` adds its part to g.
    """

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0

    def state(self, parameter: Array) -> dict[str, Array]:
        """The mean of the gradients and of their squares."""
        return zeros(parameter, "exp_avg", "exp_avg_sq")

    def update(self, p: Tensor, g: Tensor, s: State, at: Moment) -> tuple[Tensor, dict[str, Tensor]]:
        """One step."""
        return self._step(p, self._decayed(p, g), s, at)

    def _decayed(self, p: Tensor, g: Tensor) -> Tensor:
        return g + self.weight_decay * p if self.weight_decay else g

    def _step(self, p: Tensor, g: Tensor, s: State, at: Moment) -> tuple[Tensor, dict[str, Tensor]]:
        b1, b2 = self.betas
        m = b1 * s["exp_avg"] + (1 - b1) * g
        v = b2 * s["exp_avg_sq"] + (1 - b2) * (g * g)
        size = at.rate / at.number(at.correction(b1))
        root = at.number(at.math.Sqrt(at.correction(b2)))
        return p - size * (m / (at.math.Sqrt(v) / root + self.eps)), {"exp_avg": m, "exp_avg_sq": v}


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam from (1 - r weight_decay) p: the decay is no part of the gradient.

    Source: Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019.
    """

    weight_decay: float = 1e-2

    def update(self, p: Tensor, g: Tensor, s: State, at: Moment) -> tuple[Tensor, dict[str, Tensor]]:
        """One step."""
        return self._step(p * (1.0 - at.rate * self.weight_decay), g, s, at)
