"""The optimizers of ai.onnx.preview.training, one step for each tensor, as their schemas define them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from onnxgrad.verify.reference.kernels.registry import Array, Call, Kernel, kernel

_DOMAIN = "ai.onnx.preview.training"


def _each(lists: int) -> Callable[[Kernel], Kernel]:
    """A step for one tensor as a kernel for many: operands and results come list by list."""

    def many(step: Kernel) -> Kernel:
        def run(call: Call, rate: Array, t: Array, *tensors: Array) -> tuple[Array, ...]:
            n = len(tensors) // lists
            new = [step(call, rate, t, *tensors[i::n]) for i in range(n)]
            return tuple(result for results in zip(*new) for result in results)

        return run

    return many


def _regularized(call: Call, x: Array, g: Array) -> Array:
    return np.asarray((call["norm_coefficient"] or 0.0) * x + g)


@kernel("Adagrad", domain=_DOMAIN)
@_each(3)
def adagrad(call: Call, rate: Array, t: Array, x: Array, g: Array, h: Array) -> tuple[Array, ...]:
    g = _regularized(call, x, g)
    h = h + g * g
    return x - rate / (1 + t * call["decay_factor"]) * g / (np.sqrt(h) + call["epsilon"]), h


@kernel("Adam", domain=_DOMAIN)
@_each(4)
def adam(call: Call, rate: Array, t: Array, x: Array, g: Array, v: Array, h: Array) -> tuple[Array, ...]:
    alpha, beta = call["alpha"], call["beta"]
    g = _regularized(call, x, g)
    v, h = alpha * v + (1 - alpha) * g, beta * h + (1 - beta) * g * g
    if t > 0:
        rate = rate * np.sqrt(1 - beta**t) / (1 - alpha**t)
    x = x - rate * v / (np.sqrt(h) + call["epsilon"])
    return (1 - call["norm_coefficient_post"]) * x, v, h


@kernel("Momentum", domain=_DOMAIN)
@_each(3)
def momentum(call: Call, rate: Array, t: Array, x: Array, g: Array, v: Array) -> tuple[Array, ...]:
    g = _regularized(call, x, g)
    v = call["alpha"] * v + (call["beta"] if t > 0 else 1) * g
    return x - rate * (g + call["alpha"] * v if call["mode"] == "nesterov" else v), v
