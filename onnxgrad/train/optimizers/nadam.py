"""NAdam: Adam with Nesterov's look ahead."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from onnxgrad.ir.types import Array
from onnxgrad.train.optimizers.base import Moment, Optimizer, State, Tensor, decayed, zeros


@dataclass(frozen=True)
class NAdam(Optimizer):
    """Adam, of whose mean the part that the next step will add is taken at once.

    mu_t = b1 (1 - 0.96^(t momentum_decay) / 2), M_t = mu_1 ... mu_t; p = p - r ((1 - mu_t) / (1 -
    M_t) g + mu_(t+1) / (1 - M_(t+1)) m) / (sqrt(v / (1 - b2^t)) + eps). Source: Dozat,
    "Incorporating Nesterov Momentum into Adam", 2016.
    """

    lr: float = 2e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    momentum_decay: float = 4e-3
    decoupled_weight_decay: bool = False

    def state(self, parameter: Array) -> dict[str, Array]:
        """The mean of the gradients and of their squares; M, a scalar."""
        return {
            **zeros(parameter, "exp_avg", "exp_avg_sq"),
            "mu_product": np.ones((), parameter.dtype),
        }

    def update(
        self, p: Tensor, g: Tensor, s: State, at: Moment
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """One step."""
        g = self._downhill(p, g, 0.0 if self.decoupled_weight_decay else self.weight_decay)
        p = decayed(p, self.weight_decay, at) if self.decoupled_weight_decay else p
        b1, b2 = self.betas
        mu, mu_next = at.number(self._mu(at.step, at)), at.number(self._mu(at.step + 1.0, at))
        product = s["mu_product"] * mu
        m = b1 * s["exp_avg"] + (1 - b1) * g
        v = b2 * s["exp_avg_sq"] + (1 - b2) * (g * g)
        now, ahead = (1.0 - mu) / (1.0 - product), mu_next / (1.0 - product * mu_next)
        root = at.number(at.math.Sqrt(at.correction(b2)))
        mean = now * g + ahead * m
        new = p - (at.rate * root) * (mean / (at.math.Sqrt(v) + root * self.eps))
        return new, {"exp_avg": m, "exp_avg_sq": v, "mu_product": product}

    def _mu(self, t: Tensor, at: Moment) -> Tensor:
        return self.betas[0] * (1.0 - 0.5 * at.math.Pow(np.float64(0.96), t * self.momentum_decay))
