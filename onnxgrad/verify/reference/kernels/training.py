"""Adam of ai.onnx.preview.training as its schema defines it; onnx.reference takes 1 - alpha in
float32.
"""

from __future__ import annotations

import numpy as np

from onnxgrad.verify.reference.kernels.registry import Array, Call, kernel


@kernel("Adam", domain="ai.onnx.preview.training", why="rounds")
def adam(call: Call, rate: Array, t: Array, *tensors: Array) -> tuple[Array, ...]:
    """Tensors come list by list (all x, all gradients, all v, all h), and so do results."""
    count = len(tensors) // 4
    steps = [_step(call, rate, t, *tensors[i::count]) for i in range(count)]
    return tuple(result for results in zip(*steps) for result in results)


def _step(
    call: Call, rate: Array, t: Array, x: Array, g: Array, v: Array, h: Array
) -> tuple[Array, ...]:
    alpha, beta = call["alpha"], call["beta"]
    g = (call["norm_coefficient"] or 0.0) * x + g
    v, h = alpha * v + (1 - alpha) * g, beta * h + (1 - beta) * g * g
    if t > 0:
        rate = rate * np.sqrt(1 - beta**t) / (1 - alpha**t)
    x = x - rate * v / (np.sqrt(h) + call["epsilon"])
    return (1 - call["norm_coefficient_post"]) * x, v, h
