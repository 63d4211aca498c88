"""Classical machine learning (ai.onnx.ml), and Adam of ai.onnx.preview.training."""

from __future__ import annotations

from typing import Any

import numpy as np

from onnxgrad.verify.reference.kernels.registry import Array, Call, Unsupported, kernel

_ML = "ai.onnx.ml"


@kernel("ZipMap", domain=_ML, why="missing")
def zip_map(call: Call, x: Array) -> tuple[list[dict[Any, Any]]]:
    keys = call["classlabels_strings"] or call["classlabels_int64s"]
    if len(keys) != x.shape[-1]:
        raise ValueError(f"{len(keys)} keys for {x.shape[-1]} columns")
    return ([dict(zip(keys, row)) for row in np.atleast_2d(x)],)


@kernel("LinearRegressor", domain=_ML, why="wrong")
def linear_regressor(call: Call, x: Array) -> Array:
    if call["post_transform"] not in (None, "NONE"):
        raise Unsupported(f"post_transform={call['post_transform']}")
    rows = np.atleast_2d(x).astype(np.float64)
    found = rows @ np.asarray(call["coefficients"]).reshape(call["targets"], -1).T
    return np.asarray(found if call["intercepts"] is None else found + call["intercepts"])


@kernel("LinearClassifier", domain=_ML, why="rounds")
def linear_classifier(call: Call, x: Array) -> tuple[Array, Array]:
    """Returns labels and scores. One score z for two classes gives the scores 1 - z and z."""
    labels = np.asarray(call["classlabels_ints"] or call["classlabels_strings"])
    rows = np.atleast_2d(x).astype(np.float64)
    z = rows @ np.asarray(call["coefficients"]).reshape(-1, rows.shape[1]).T
    z = z if call["intercepts"] is None else z + call["intercepts"]
    end, single = call["post_transform"] or "NONE", z.shape[1] == 1 and len(labels) == 2
    if end == "PROBIT" or (single and end.startswith("SOFTMAX")):
        raise Unsupported(f"LinearClassifier with post_transform={end} of {z.shape[1]} scores")
    place = (z[:, 0] > 0).astype(int) if single else z.argmax(axis=1)
    if end == "LOGISTIC":
        z = 1.0 / (1.0 + np.exp(-z))
    elif end != "NONE":
        kept = z != 0 if end == "SOFTMAX_ZERO" else np.ones(z.shape, bool)
        e = np.where(kept, np.exp(z - z.max(axis=1, keepdims=True)), 0.0)
        z = e / e.sum(axis=1, keepdims=True)
    return labels[place], np.hstack([1.0 - z, z]) if single else z


@kernel("Normalizer", domain=_ML, why="wrong")
def normalizer(call: Call, x: Array) -> Array:
    """Normalizes rows. For MAX, onnxruntime divides by the largest value, but onnx.reference by the
    largest absolute value.
    """
    x = x.astype(np.float64)
    size = {
        "L1": lambda: np.abs(x).sum(axis=-1, keepdims=True),
        "L2": lambda: np.sqrt((x * x).sum(axis=-1, keepdims=True)),
        "MAX": lambda: x.max(axis=-1, keepdims=True),
    }[call["norm"] or "MAX"]()
    return np.asarray(x / np.where(size == 0, 1.0, size))


@kernel("Adam", domain="ai.onnx.preview.training", why="rounds")
def adam(call: Call, rate: Array, t: Array, *tensors: Array) -> tuple[Array, ...]:
    """Tensors are grouped by kind (all x, all gradients, all v, all h), and so are results."""
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
