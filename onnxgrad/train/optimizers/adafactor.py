"""Adafactor: what is kept of a matrix is one number per row and one per column."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import numpy as np

from onnxgrad.ir.types import Array, numpy_dtype
from onnxgrad.train.norms import sum_of_squares
from onnxgrad.train.optimizers.base import Moment, Optimizer, State, Tensor, decayed


@dataclass(frozen=True)
class Adafactor(Optimizer):
    """g / sqrt(v), of a size that goes with the parameter's; v of a matrix is estimated by its
    means R and C.

    With c = t^beta2_decay: R = (1 - c) R + c mean of g^2 over columns, C likewise over rows, v = R
    C / mean(R); of vectors v itself is kept. u = g / sqrt(max(v, e1^2)); p = p - a u / max(1,
    RMS(u) / d), where a = max(e2, RMS(p)) min(r, 1 / sqrt(t)) and (e1, e2) = eps; e1 is the dtype's
    epsilon by default. Parameters of more axes are matrices in the last two. Source: Shazeer and
    Stern, "Adafactor: Adaptive Learning Rates with Sublinear Memory Cost", 2018, as PyTorch writes
    it.
    """

    elementwise: ClassVar[bool] = False

    lr: float = 1e-2
    beta2_decay: float = -0.8
    eps: tuple[float | None, float] = (None, 1e-3)
    d: float = 1.0
    weight_decay: float = 0.0

    def state(self, parameter: Array) -> dict[str, Array]:
        """Rows (..., n, 1) and columns (..., 1, m) of a parameter (..., n, m); the whole of a
        vector or scalar.
        """
        if parameter.ndim < 2:
            return {"variance": np.zeros_like(parameter)}
        *more, n, m = parameter.shape
        row, column = (*more, n, 1), (*more, 1, m)
        return {
            "row_var": np.zeros(row, parameter.dtype),
            "col_var": np.zeros(column, parameter.dtype),
        }

    def update(
        self, p: Tensor, g: Tensor, s: State, at: Moment
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """One step."""
        g = self._downhill(p, g)
        e1, e2 = self.eps
        if e1 is None:
            dtype: Any = numpy_dtype(at.dtype)
            e1 = float(np.finfo(dtype).eps)
        size = at.math.Max(_rms(p, p.shape, at), e2) * at.math.Min(
            at.rate, at.number(1.0 / at.math.Sqrt(at.step))
        )
        v, kept = self._variance(g, s, e1, at)
        u = g / at.math.Sqrt(at.math.Max(v, e1 * e1))
        clipped = at.math.Max(_rms(u, p.shape, at) / self.d, 1.0)
        return decayed(p, self.weight_decay, at) - (size / clipped) * u, kept

    def _variance(
        self, g: Tensor, s: State, e1: float, at: Moment
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The estimate of the mean of g^2, and what is kept of it."""
        c = at.number(at.math.Pow(at.step, np.float64(self.beta2_decay)))
        if "variance" in s:
            v = (1.0 - c) * s["variance"] + c * (g * g)
            return v, {"variance": v}
        square = g * g
        row = (1.0 - c) * s["row_var"] + c * at.math.ReduceMean(square, [-1], keepdims=1)
        column = (1.0 - c) * s["col_var"] + c * at.math.ReduceMean(square, [-2], keepdims=1)
        mean = at.math.Max(at.math.ReduceMean(row, [-2], keepdims=1), e1)
        return row * (column / mean), {"row_var": row, "col_var": column}


def _rms(x: Tensor, shape: tuple[int, ...], at: Moment) -> Tensor:
    """The root of the mean square of all elements, a scalar."""
    return at.math.Sqrt(sum_of_squares(x, at.math) / float(prod(shape)))
