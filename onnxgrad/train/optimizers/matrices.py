"""The formulas of optimisers that treat a weight as a matrix, with the names and defaults of
torch.optim.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod, sqrt
from typing import Annotated, Any, ClassVar, Literal

import numpy as np

from onnxgrad.ir.types import Array, numpy_dtype
from onnxgrad.options import Finite, NonNegative, Range
from onnxgrad.train.optimizers.base import Moment, Optimizer, State, Tensor, decayed, zeros
from onnxgrad.train.optimizers.formulas import AdamW, Decay
from onnxgrad.train.update.clipping import sum_of_squares

_MOST = float(np.finfo(np.float64).max)


@dataclass(frozen=True)
class Muon(Optimizer):
    """b = momentum b + (1 - momentum) g; p = (1 - r weight_decay) p - r a N(b), with N(b) near the
    closest orthogonal matrix to b; Nesterov: N(momentum b + (1 - momentum) g).

    N begins with x = b / |b|, transposed if it has more rows than columns, and repeats x = (c1 + c2
    x x^T + c3 (x x^T)^2) x `ns_steps` times, in the dtype of p (PyTorch in bfloat16). For n rows
    and m columns a is sqrt(max(1, n / m)), or 0.2 sqrt(max(n, m)) for "match_rms_adamw", with which
    rates of AdamW fit. Weights of other ranks follow AdamW with the same rate and decay; `groups`
    gives them another one, and tables of embeddings, too. Source: Jordan et al., "Muon: An
    optimizer for hidden layers in neural networks", 2024, in PyTorch's form.
    """

    elementwise: ClassVar[bool] = False

    lr: NonNegative = 1e-3
    weight_decay: NonNegative = 0.1
    momentum: Decay = 0.95
    nesterov: bool = True
    ns_coefficients: tuple[Finite, Finite, Finite] = (3.4445, -4.775, 2.0315)
    eps: NonNegative = 1e-7
    ns_steps: Annotated[int, Range(0, 99)] = 5
    adjust_lr_fn: Literal["original", "match_rms_adamw"] = "original"

    def state(self, parameter: Array) -> dict[str, Array]:
        """Returns the mean of the gradients of a matrix, and the states of AdamW of others."""
        if parameter.ndim != 2:
            return self._of_others.state(parameter)
        return zeros(parameter, "momentum_buffer")

    def update(
        self, p: Tensor, g: Tensor, s: State, at: Moment
    ) -> tuple[Tensor, dict[str, Tensor]]:
        if "momentum_buffer" not in s:
            return self._of_others.update(p, g, s, at)
        g, mu = self._downhill(p, g), self.momentum
        b = mu * s["momentum_buffer"] + (1 - mu) * g
        x = self._orthogonal(mu * b + (1 - mu) * g if self.nesterov else b, at)
        n, m = p.shape
        factor = sqrt(max(1, n / m)) if self.adjust_lr_fn == "original" else 0.2 * sqrt(max(n, m))
        return decayed(p, self.weight_decay, at) - at.rate * factor * x, {"momentum_buffer": b}

    @property
    def _of_others(self) -> AdamW:
        return AdamW(self.lr, weight_decay=self.weight_decay, maximize=self.maximize)

    def _orthogonal(self, x: Tensor, at: Moment) -> Tensor:
        c1, c2, c3 = self.ns_coefficients
        is_tall = x.shape[0] > x.shape[1]
        x = x / at.math.Max(at.math.Sqrt(sum_of_squares(x, at.math)), self.eps)
        x = x.mT if is_tall else x
        for _ in range(self.ns_steps):
            gram = x @ x.mT
            x = c1 * x + (c2 * gram + c3 * (gram @ gram)) @ x
        return x.mT if is_tall else x


@dataclass(frozen=True)
class Adafactor(Optimizer):
    """g / sqrt(v), scaled with the size of the parameter; for a matrix, v is estimated from its
    means R and C.

    With c = t^beta2_decay: R = (1 - c) R + c mean of g^2 over columns, C likewise over rows, v = R
    C / mean(R); for a vector, v itself is kept. u = g / sqrt(max(v, e1^2)); p = p - a u / max(1,
    RMS(u) / d), with a = max(e2, RMS(p)) min(r, 1 / sqrt(t)) and (e1, e2) = eps; e1 is the dtype's
    epsilon by default. Parameters of more axes are treated as matrices in the last two axes.
    Source: Shazeer and Stern, "Adafactor: Adaptive Learning Rates with Sublinear Memory Cost",
    2018, in PyTorch's form.
    """

    elementwise: ClassVar[bool] = False

    lr: NonNegative = 1e-2
    beta2_decay: Annotated[float, Range(-_MOST, 0, words="a finite number, at most 0")] = -0.8
    eps: tuple[NonNegative | None, NonNegative] = (None, 1e-3)
    d: Annotated[float, Range(1, _MOST, words="a finite number, at least 1")] = 1.0
    weight_decay: NonNegative = 0.0

    def state(self, parameter: Array) -> dict[str, Array]:
        """Returns rows (..., n, 1) and columns (..., 1, m) of a parameter (..., n, m); for a vector
        or scalar all elements.
        """
        if parameter.ndim < 2:
            return {"variance": np.zeros(parameter.shape, parameter.dtype)}
        *more, n, m = parameter.shape
        row, column = (*more, n, 1), (*more, 1, m)
        return {
            "row_var": np.zeros(row, parameter.dtype),
            "col_var": np.zeros(column, parameter.dtype),
        }

    def update(
        self, p: Tensor, g: Tensor, s: State, at: Moment
    ) -> tuple[Tensor, dict[str, Tensor]]:
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
        """Returns the estimate of the mean of g^2, and its state."""
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
    """Returns the root mean square of all elements, a scalar."""
    return at.math.Sqrt(sum_of_squares(x, at.math) / float(prod(shape)))
