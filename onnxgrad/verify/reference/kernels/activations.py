"""Activations as recurrent and fused operators name them, in lower case."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from onnxgrad.verify.reference.kernels.elementwise import sigmoid_of
from onnxgrad.verify.reference.kernels.registry import Array

# name -> function of x, alpha, beta; alpha and beta where they are not given
ACTIVATIONS: dict[str, tuple[Callable[[Array, float, float], Any], float, float]] = {
    "sigmoid": (lambda x, a, b: sigmoid_of(x), 0.0, 0.0),
    "tanh": (lambda x, a, b: np.tanh(x), 0.0, 0.0),
    "relu": (lambda x, a, b: np.maximum(x, 0.0), 0.0, 0.0),
    "affine": (lambda x, a, b: a * x + b, 1.0, 0.0),
    "leakyrelu": (lambda x, a, b: np.where(x >= 0, x, a * x), 0.01, 0.0),
    "thresholdedrelu": (lambda x, a, b: np.where(x >= a, x, 0.0), 1.0, 0.0),
    "scaledtanh": (lambda x, a, b: a * np.tanh(b * x), 1.0, 1.0),
    "hardsigmoid": (lambda x, a, b: np.clip(a * x + b, 0.0, 1.0), 0.2, 0.5),
    "elu": (lambda x, a, b: np.where(x >= 0, x, a * np.expm1(np.minimum(x, 0.0))), 1.0, 0.0),
    "softsign": (lambda x, a, b: x / (1 + np.abs(x)), 0.0, 0.0),
    "softplus": (lambda x, a, b: np.logaddexp(0.0, x), 0.0, 0.0),
}
