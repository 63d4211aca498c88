"""Losses between numbers: squared, absolute, and Huber's mixture of both."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from onnxgrad.ir.ops import op
from onnxgrad.ir.var import Var
from onnxgrad.train.losses.base import Loss, Place, Reduction, reduced


@dataclass(frozen=True)
class _Elementwise(Loss):
    """A mean (or sum) over elements of a function of prediction and target, which have one shape."""

    output: str | None = None
    target: str = "target"
    reduction: Reduction = "mean"

    def emit(self, place: Place) -> Var:
        """The loss."""
        y = place.value(self.output)
        assert y.type is not None
        return reduced(self.of(y, place.labels(self.target, y.type)), self.reduction)

    @abstractmethod
    def of(self, y: Var, t: Var) -> Var:
        """The loss of each element."""


@dataclass(frozen=True)
class MSE(_Elementwise):
    """mean (y - t)^2"""

    def of(self, y: Var, t: Var) -> Var:
        """(y - t)^2"""
        d = y - t
        return d * d


@dataclass(frozen=True)
class L1(_Elementwise):
    """mean |y - t|"""

    def of(self, y: Var, t: Var) -> Var:
        """|y - t|"""
        return op.Abs(y - t)
