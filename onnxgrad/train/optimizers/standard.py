"""Adam, Adagrad and Momentum as the operators of `ai.onnx.preview.training` define them, in the
schemas' notation.

They are not PyTorch's: the count T of updates made before begins at 0, where Adam corrects nothing,
and Adagrad's decay begins at once. `lower-training` writes them in the place of those operators.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from onnxgrad.ir.types import Array, numpy_dtype
from onnxgrad.train.optimizers.base import Moment, Optimizer, State, Tensor, zeros


@dataclass(frozen=True)
class Standard(Optimizer):
    """What the three share. `at.step` is the operators' T, `at.learning_rate` their R.

    norm_coefficient adds its part of X to G. Attributes are rounded to the tensors' dtype, as an
    operator's are, and taken as they come: a file may hold any.
    """

    norm_coefficient: float = 0.0

    def __post_init__(self) -> None:
        pass

    def _regularized(self, x: Tensor, g: Tensor, at: Moment) -> Tensor:
        return (
            g if self.norm_coefficient == 0 else float(_number(self.norm_coefficient, at)) * x + g
        )


@dataclass(frozen=True)
class StandardAdagrad(Standard):
    """H' = H + G^2; X' = X - R / (1 + T decay_factor) G / (sqrt(H') + epsilon)."""

    decay_factor: float = 0.0
    epsilon: float = 0.0

    def state(self, parameter: Array) -> dict[str, Array]:
        """H, the sum of the squared gradients."""
        return zeros(parameter, "h")

    def update(
        self, p: Tensor, g: Tensor, s: State, at: Moment
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """One step."""
        r = at.rate / (1.0 + at.number(at.step) * _number(self.decay_factor, at))
        g = self._regularized(p, g, at)
        h = s["h"] + g * g
        return p - r * g / (at.math.Sqrt(h) + _number(self.epsilon, at)), {"h": h}


@dataclass(frozen=True)
class StandardAdam(Standard):
    """V' = alpha V + (1 - alpha) G; H' = beta H + (1 - beta) G^2; X' = X - R' V' / (sqrt(H') +
    epsilon).

    R' = R sqrt(1 - beta^T) / (1 - alpha^T), R itself where T is 0. X' loses a
    norm_coefficient_post-th at the end.
    """

    alpha: float = 0.9
    beta: float = 0.999
    epsilon: float = 0.0
    norm_coefficient_post: float = 0.0

    def state(self, parameter: Array) -> dict[str, Array]:
        """V and H, the means of the gradients and of their squares."""
        return zeros(parameter, "v", "h")

    def update(
        self, p: Tensor, g: Tensor, s: State, at: Moment
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """One step."""
        alpha, beta, one, r = (
            _number(self.alpha, at),
            _number(self.beta, at),
            _number(1.0, at),
            at.rate,
        )
        g = self._regularized(p, g, at)
        v = s["v"] * alpha + g * (one - alpha)
        h = s["h"] * beta + g * g * (one - beta)
        # at 0 there is no correction, nor a division by zero
        count = at.math.Max(at.number(at.step), one)
        corrected = (
            r * at.math.Sqrt(one - at.math.Pow(beta, count)) / (one - at.math.Pow(alpha, count))
        )
        r = at.math.Where(at.math.Greater(at.step, 0), corrected, r)
        new = p - r * v / (at.math.Sqrt(h) + _number(self.epsilon, at))
        return new * (one - _number(self.norm_coefficient_post, at)), {"v": v, "h": h}


@dataclass(frozen=True)
class StandardMomentum(Standard):
    """V' = alpha V + beta G, beta 1 where T is 0; X' = X - R V'; nesterov: X' = X - R (G + alpha
    V').
    """

    alpha: float = 0.0
    beta: float = 0.0
    mode: Literal["standard", "nesterov"] = "standard"

    def state(self, parameter: Array) -> dict[str, Array]:
        """V, the moving sum of the gradients."""
        return zeros(parameter, "v")

    def update(
        self, p: Tensor, g: Tensor, s: State, at: Moment
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """One step."""
        alpha, r = _number(self.alpha, at), at.rate
        g = self._regularized(p, g, at)
        beta = at.math.Where(at.math.Greater(at.step, 0), _number(self.beta, at), _number(1.0, at))
        v = s["v"] * alpha + g * beta
        if self.mode == "nesterov":
            return p - (g + v * alpha) * r, {"v": v}
        return p - v * r, {"v": v}


def _number(value: float, at: Moment) -> Any:
    """An attribute as a number of the tensors' dtype."""
    return numpy_dtype(at.dtype).type(value)
