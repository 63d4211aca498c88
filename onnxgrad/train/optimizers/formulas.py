"""The formulas of the optimisers, with the names and defaults of torch.optim."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from onnxgrad.errors import InputError
from onnxgrad.ir.types import Array
from onnxgrad.options import NonNegative, Range, Share
from onnxgrad.train.optimizers.base import Moment, Optimizer, State, Tensor, decayed, zeros

# of a moving mean
Decay = Annotated[float, Range(0, np.nextafter(1, 0), words="from 0 to 1, not 1 itself")]


@dataclass(frozen=True)
class SGD(Optimizer):
    """b = momentum b + (1 - dampening) g; p = p - r b; Nesterov: p = p - r (g + momentum b).

    The first b is g. Source: Sutskever et al., "On the importance of initialization and momentum in
    deep learning", 2013, in PyTorch's form. Raises InputError for Nesterov without momentum, or
    with dampening.
    """

    lr: NonNegative = 1e-3
    momentum: NonNegative = 0.0
    dampening: NonNegative = 0.0
    weight_decay: NonNegative = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nesterov and (self.momentum <= 0 or self.dampening != 0):
            raise InputError("sgd: nesterov needs a momentum above 0 and no dampening")

    def state(self, parameter: Array) -> dict[str, Array]:
        """Returns the moving sum of the gradients, if there is momentum."""
        return zeros(parameter, "momentum_buffer") if self.momentum else {}

    def update(
        self, p: Tensor, g: Tensor, s: State, at: Moment
    ) -> tuple[Tensor, dict[str, Tensor]]:
        g = self._downhill(p, g, self.weight_decay)
        if not self.momentum:
            return p - at.rate * g, {}
        fresh = g
        if self.dampening:  # of all gradients but the first
            first = at.math.Equal(at.step, 1.0)
            fresh = g * at.number(
                at.math.Where(first, np.float64(1.0), np.float64(1.0 - self.dampening))
            )
        b = self.momentum * s["momentum_buffer"] + fresh
        return p - at.rate * (g + self.momentum * b if self.nesterov else b), {"momentum_buffer": b}


@dataclass(frozen=True)
class Adam(Optimizer):
    """m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2; p = p - r (m / (1 - b1^t)) / (sqrt(v / (1 -
    b2^t)) + eps).

    amsgrad: use the largest v so far. weight_decay is added to g. Source: Kingma and Ba, "Adam: A
    Method for Stochastic Optimization", 2015; Reddi et al., "On the Convergence of Adam and
    Beyond", 2018.
    """

    lr: NonNegative = 1e-3
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    eps: NonNegative = 1e-8
    weight_decay: NonNegative = 0.0
    amsgrad: bool = False

    def state(self, parameter: Array) -> dict[str, Array]:
        """Returns the means of the gradients and of their squares, and with amsgrad the largest of
        the latter.
        """
        return zeros(
            parameter, "exp_avg", "exp_avg_sq", *(["max_exp_avg_sq"] if self.amsgrad else [])
        )

    def update(
        self, p: Tensor, g: Tensor, s: State, at: Moment
    ) -> tuple[Tensor, dict[str, Tensor]]:
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
    """Adam applied to (1 - r weight_decay) p: the decay is not part of the gradient.

    Source: Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019.
    """

    weight_decay: NonNegative = 1e-2

    def update(
        self, p: Tensor, g: Tensor, s: State, at: Moment
    ) -> tuple[Tensor, dict[str, Tensor]]:
        return self._step(decayed(p, self.weight_decay, at), self._downhill(p, g), s, at)


@dataclass(frozen=True)
class NAdam(Optimizer):
    """Adam with Nesterov momentum: the part of the mean that the next step will add is used at
    once.

    mu_t = b1 (1 - 0.96^(t momentum_decay) / 2), M_t = mu_1 ... mu_t; p = p - r ((1 - mu_t) / (1 -
    M_t) g + mu_(t+1) / (1 - M_(t+1)) m) / (sqrt(v / (1 - b2^t)) + eps). Source: Dozat,
    "Incorporating Nesterov Momentum into Adam", 2016.
    """

    lr: NonNegative = 2e-3
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    eps: NonNegative = 1e-8
    weight_decay: NonNegative = 0.0
    momentum_decay: NonNegative = 4e-3
    decoupled_weight_decay: bool = False

    def state(self, parameter: Array) -> dict[str, Array]:
        """Returns the means of the gradients and of their squares, and M, a scalar."""
        return {
            **zeros(parameter, "exp_avg", "exp_avg_sq"),
            "mu_product": np.ones((), parameter.dtype),
        }

    def update(
        self, p: Tensor, g: Tensor, s: State, at: Moment
    ) -> tuple[Tensor, dict[str, Tensor]]:
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


@dataclass(frozen=True)
class RAdam(Optimizer):
    """Adam whose step uses only m until the estimate of v is reliable.

    n = 2 / (1 - b2) - 1, n_t = n - 2 t b2^t / (1 - b2^t); p = p - r m / (1 - b1^t) l. If n_t > 5, l
    = c sqrt(1 - b2^t) / (sqrt(v) + eps), c^2 = (n_t - 4) (n_t - 2) n / ((n - 4) (n - 2) n_t); else
    l = 1. Source: Liu et al., "On the Variance of the Adaptive Learning Rate and Beyond", 2020.
    """

    lr: NonNegative = 1e-3
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    eps: NonNegative = 1e-8
    weight_decay: NonNegative = 0.0
    decoupled_weight_decay: bool = False

    def state(self, parameter: Array) -> dict[str, Array]:
        """Returns the means of the gradients and of their squares."""
        return zeros(parameter, "exp_avg", "exp_avg_sq")

    def update(
        self, p: Tensor, g: Tensor, s: State, at: Moment
    ) -> tuple[Tensor, dict[str, Tensor]]:
        g = self._downhill(p, g, 0.0 if self.decoupled_weight_decay else self.weight_decay)
        p = decayed(p, self.weight_decay, at) if self.decoupled_weight_decay else p
        b1, b2 = self.betas
        m = b1 * s["exp_avg"] + (1 - b1) * g
        v = b2 * s["exp_avg_sq"] + (1 - b2) * (g * g)
        size, kept = at.rate / at.number(at.correction(b1)), {"exp_avg": m, "exp_avg_sq": v}
        most = 2 / (1 - b2) - 1
        if most <= 5:  # at every step
            return p - size * m, kept
        lacks = at.correction(b2)
        now = most - 2.0 * at.step * (1.0 - lacks) / lacks
        early = at.math.Where(at.math.Greater(now, 5.0), np.float64(0.0), np.float64(1.0))
        terms = at.math.Max(now, 5.0)  # no root of a negative number
        square = (terms - 4.0) * (terms - 2.0) * most / ((most - 4) * (most - 2) * terms)
        factor = at.number(at.math.Sqrt(square * lacks) * (1.0 - early))
        # l = 1 as 0 / (sqrt(v) + eps + 1) + 1
        rest = factor / (at.math.Sqrt(v) + at.number(early + self.eps)) + at.number(early)
        return p - size * (m * rest), kept


@dataclass(frozen=True)
class Adagrad(Optimizer):
    """h = h + g^2; p = p - r / (1 + (t - 1) lr_decay) g / (sqrt(h) + eps).

    Source: Duchi, Hazan and Singer, "Adaptive Subgradient Methods for Online Learning and
    Stochastic Optimization", 2011.
    """

    lr: NonNegative = 1e-2
    lr_decay: NonNegative = 0.0
    weight_decay: NonNegative = 0.0
    initial_accumulator_value: NonNegative = 0.0
    eps: NonNegative = 1e-10

    def state(self, parameter: Array) -> dict[str, Array]:
        """Returns the sum of the squared gradients."""
        return {"sum": np.full_like(parameter, self.initial_accumulator_value)}

    def update(
        self, p: Tensor, g: Tensor, s: State, at: Moment
    ) -> tuple[Tensor, dict[str, Tensor]]:
        g = self._downhill(p, g, self.weight_decay)
        h = s["sum"] + g * g
        rate = (
            at.rate / at.number(1.0 + (at.step - 1.0) * self.lr_decay) if self.lr_decay else at.rate
        )
        return p - rate * (g / (at.math.Sqrt(h) + self.eps)), {"sum": h}


@dataclass(frozen=True)
class RMSprop(Optimizer):
    """v = alpha v + (1 - alpha) g^2; d = g / (sqrt(v) + eps); p = p - r d.

    centered: divide by the root of v - a^2, with a the mean of the gradients. momentum: p = p - r
    b, b = momentum b + d. Source: Tieleman and Hinton, "Lecture 6.5: rmsprop", Neural Networks for
    Machine Learning, 2012; centered: Graves, "Generating Sequences With Recurrent Neural Networks",
    2013.
    """

    lr: NonNegative = 1e-2
    alpha: NonNegative = 0.99
    eps: NonNegative = 1e-8
    weight_decay: NonNegative = 0.0
    momentum: NonNegative = 0.0
    centered: bool = False

    def state(self, parameter: Array) -> dict[str, Array]:
        """Returns the mean of the squared gradients; also the mean of the gradients if centered,
        and the moving sum with momentum.
        """
        more = [
            *(["momentum_buffer"] if self.momentum else []),
            *(["grad_avg"] if self.centered else []),
        ]
        return zeros(parameter, "square_avg", *more)

    def update(
        self, p: Tensor, g: Tensor, s: State, at: Moment
    ) -> tuple[Tensor, dict[str, Tensor]]:
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

    lr: NonNegative = 1.0
    rho: Share = 0.9
    eps: NonNegative = 1e-6
    weight_decay: NonNegative = 0.0

    def state(self, parameter: Array) -> dict[str, Array]:
        """Returns the means of the squared gradients and of the squared steps."""
        return zeros(parameter, "square_avg", "acc_delta")

    def update(
        self, p: Tensor, g: Tensor, s: State, at: Moment
    ) -> tuple[Tensor, dict[str, Tensor]]:
        g = self._downhill(p, g, self.weight_decay)
        v = self.rho * s["square_avg"] + (1 - self.rho) * (g * g)
        d = at.math.Sqrt(s["acc_delta"] + self.eps) / at.math.Sqrt(v + self.eps) * g
        u = self.rho * s["acc_delta"] + (1 - self.rho) * (d * d)
        return p - at.rate * d, {"square_avg": v, "acc_delta": u}


@dataclass(frozen=True)
class Lion(Optimizer):
    """p = (1 - r weight_decay) p - r sign(b1 m + (1 - b1) g); m = b2 m + (1 - b2) g.

    Source: Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023, with its defaults;
    PyTorch has no Lion.
    """

    lr: NonNegative = 1e-4
    betas: tuple[Decay, Decay] = (0.9, 0.99)
    weight_decay: NonNegative = 0.0

    def state(self, parameter: Array) -> dict[str, Array]:
        """Returns the mean of the gradients."""
        return zeros(parameter, "exp_avg")

    def update(
        self, p: Tensor, g: Tensor, s: State, at: Moment
    ) -> tuple[Tensor, dict[str, Tensor]]:
        g = self._downhill(p, g)
        b1, b2 = self.betas
        direction = at.math.Sign(b1 * s["exp_avg"] + (1 - b1) * g)
        m = b2 * s["exp_avg"] + (1 - b2) * g
        return decayed(p, self.weight_decay, at) - at.rate * direction, {"exp_avg": m}
