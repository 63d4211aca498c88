"""Adam and AdamW: a step against the mean of the gradients, by the root of the mean of their
squares.
"""

from __future__ import annotations

from dataclasses import dataclass

from onnxgrad.ir.types import Array
from onnxgrad.train.optimizers.base import Moment, Optimizer, State, Tensor, decayed, zeros


@dataclass(frozen=True)
class Adam(Optimizer):
    """m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2; p = p - r (m / (1 - b1^t)) / (sqrt(v / (1 -
    b2^t)) + eps).

    amsgrad: by the largest v so far. weight_decay adds its part to g. Source: Kingma and Ba, "Adam:
    A Method for Stochastic Optimization", 2015; Reddi et al., "On the Convergence of Adam and
    Beyond", 2018.
    """

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    amsgrad: bool = False

    def state(self, parameter: Array) -> dict[str, Array]:
        """The mean of the gradients and of their squares, and the largest of those with amsgrad."""
        return zeros(
            parameter, "exp_avg", "exp_avg_sq", *(["max_exp_avg_sq"] if self.amsgrad else [])
        )

    def update(
        self, p: Tensor, g: Tensor, s: State, at: Moment
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """One step."""
        return self._step(p, self._downhill(p, g, self.weight_decay), s, at)

    def _step(self, p: Tensor, g: Tensor, s: State, at: Moment) -> tuple[Tensor, dict[str, Tensor]]:
        b1, b2 = self.betas
        m = b1 * s["exp_avg"] + (1 - b1) * g
        v = b2 * s["exp_avg_sq"] + (1 - b2) * (g * g)
        kept, largest = {"exp_avg": m, "exp_avg_sq": v}, v
        if self.amsgrad:
            kept["max_exp_avg_sq"] = largest = at.math.Max(s["max_exp_avg_sq"], v)
        # sqrt(1 - b2^t) stands with the scalars: one operation less on each element
        root = at.number(at.math.Sqrt(at.correction(b2)))
        size = at.rate * (root / at.number(at.correction(b1)))
        return p - size * (m / (at.math.Sqrt(largest) + root * self.eps)), kept


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam from (1 - r weight_decay) p: the decay is no part of the gradient.

    Source: Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019.
    """

    weight_decay: float = 1e-2

    def update(
        self, p: Tensor, g: Tensor, s: State, at: Moment
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """One step."""
        return self._step(decayed(p, self.weight_decay, at), self._downhill(p, g), s, at)
