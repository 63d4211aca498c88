"""Losses between numbers: squared, absolute, and combinations."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var
from onnxgrad.train.losses.base import NonNegative, Positive, Reduced, reduced
from onnxgrad.train.losses.place import Place


@dataclass(frozen=True)
class Elementwise(Reduced):
    """The mean (or sum) over elements of a function of prediction and target, which have the same
    shape.
    """

    def emit(self, place: Place) -> Var:
        y = place.prediction(self.output)
        target = place.labels(self.target, y.dtype, y.shape or (), self.name)
        return reduced(place, self.weighted(place, self.of(y, target)), self.reduction)

    @abstractmethod
    def of(self, y: Var, t: Var) -> Var:
        """Returns the loss of each element."""


@dataclass(frozen=True)
class MSE(Elementwise):
    """(y - t)^2: torch.nn.MSELoss."""

    name: ClassVar[str] = "mse"

    def of(self, y: Var, t: Var) -> Var:
        """Returns (y - t)^2."""
        d = y - t
        return d * d


@dataclass(frozen=True)
class L1(Elementwise):
    """|y - t|: torch.nn.L1Loss."""

    name: ClassVar[str] = "l1"

    def of(self, y: Var, t: Var) -> Var:
        """Returns |y - t|."""
        return op.Abs(y - t)


@dataclass(frozen=True)
class Huber(Elementwise):
    """d^2 / 2 up to |d| = delta, and delta (|d| - delta / 2) beyond: torch.nn.HuberLoss.

    Source: Huber, "Robust estimation of a location parameter", 1964.
    """

    name: ClassVar[str] = "huber"
    delta: Positive = 1.0

    def of(self, y: Var, t: Var) -> Var:
        """Returns c (d - c / 2) with c = d clipped to delta; its derivative is c."""
        return _huber(y - t, self.delta)


@dataclass(frozen=True)
class SmoothL1(Elementwise):
    """d^2 / (2 beta) up to |d| = beta, and |d| - beta / 2 beyond; |d| for beta = 0:
    torch.nn.SmoothL1Loss.

    Source: Girshick, "Fast R-CNN", 2015.
    """

    name: ClassVar[str] = "smooth_l1"
    beta: NonNegative = 1.0

    def of(self, y: Var, t: Var) -> Var:
        """Returns Huber's loss with delta = beta, divided by beta."""
        return _huber(y - t, self.beta) / self.beta if self.beta else op.Abs(y - t)


def _huber(d: Var, delta: float) -> Var:
    c = op.Clip(d, -delta, delta)
    return c * (d - 0.5 * c)
