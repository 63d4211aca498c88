"""Lion: steps of one size, by the sign of a mean."""

from __future__ import annotations

from dataclasses import dataclass

from onnxgrad.ir.types import Array
from onnxgrad.train.optimizers.base import Moment, Optimizer, State, Tensor, decayed, zeros


@dataclass(frozen=True)
class Lion(Optimizer):
    """p = (1 - r weight_decay) p - r sign(b1 m + (1 - b1) g); m = b2 m + (1 - b2) g.

    Source: Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023, with its defaults:
    PyTorch has none.
    """

    lr: float = 1e-4
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.0

    def state(self, parameter: Array) -> dict[str, Array]:
        """The mean of the gradients."""
        return zeros(parameter, "exp_avg")

    def update(
        self, p: Tensor, g: Tensor, s: State, at: Moment
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """One step."""
        g = self._downhill(p, g)
        b1, b2 = self.betas
        direction = at.math.Sign(b1 * s["exp_avg"] + (1 - b1) * g)
        m = b2 * s["exp_avg"] + (1 - b2) * g
        return decayed(p, self.weight_decay, at) - at.rate * direction, {"exp_avg": m}
