"""Classical machine learning (ai.onnx.ml), and Adam of ai.onnx.preview.training."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np

from onnxgrad.verify.reference.kernels.normalization import log_of_softmax
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
    if end == "PROBIT":
        raise Unsupported("LinearClassifier with post_transform=PROBIT")
    place = (z[:, 0] > 0).astype(int) if single else z.argmax(axis=1)
    # onnxruntime computes no softmax of one score
    z = z if single and end.startswith("SOFTMAX") else _ended(z, end)
    return labels[place], np.hstack([1.0 - z, z]) if single else z


@kernel("SVMClassifier", domain=_ML, why="wrong")
def svm_classifier(call: Call, x: Array) -> tuple[Array, Array]:
    """Returns labels and scores: one score per class or, without probabilities, per pair of
    classes. onnx.reference differs in labels of linear models and in probabilities of classes.
    """
    labels = np.asarray(call["classlabels_ints"] or call["classlabels_strings"])
    rows, end = np.atleast_2d(x).astype(np.float64), call["post_transform"] or "NONE"
    classes, per_class = len(labels), call["vectors_per_class"] or ()
    if end == "PROBIT" or classes < 2:
        raise Unsupported(f"SVMClassifier with post_transform={end} of {classes} classes")
    if not sum(per_class):
        z = rows @ np.asarray(call["coefficients"]).reshape(classes, -1).T + call["rho"][0]
        place = z.argmax(axis=1)
        if classes == 2:
            positive = min(call["coefficients"]) >= 0
            top = z.max(axis=1)
            place = np.where(top >= 0.5 if positive else top > 0, 1, place)
        return labels[place], _ended(z, end)
    z = _pair_scores(call, rows, classes)
    pairs = list(combinations(range(classes), 2))
    votes = [[(z[:, n] > 0) if k == i else (z[:, n] <= 0) if k == j else np.zeros(len(z), bool)
              for n, (i, j) in enumerate(pairs)] for k in range(classes)]  # fmt: skip
    place = np.sum(votes, axis=1).argmax(axis=0)
    if call["prob_a"]:
        of_pair = 1.0 / (1.0 + np.exp(z * call["prob_a"] + call["prob_b"]))
        z = np.stack([_of_classes(row, classes) for row in np.clip(of_pair, 1e-7, 1 - 1e-7)])
    elif classes == 2:
        z = _ended(z, end) if end == "LOGISTIC" else z
        return labels[place], np.hstack([-z if end == "NONE" else 1.0 - z, z])
    return labels[place], _ended(z, end)


def _ended(z: Array, end: str) -> Array:
    """Returns the scores after a post_transform."""
    if end == "LOGISTIC":
        return np.asarray(1.0 / (1.0 + np.exp(-z)))
    if end == "NONE":
        return z
    kept = z != 0 if end == "SOFTMAX_ZERO" else np.ones(z.shape, bool)
    e = np.where(kept, np.exp(z - z.max(axis=1, keepdims=True)), 0.0)
    return np.asarray(e / e.sum(axis=1, keepdims=True))


def _pair_scores(call: Call, rows: Array, classes: int) -> Array:
    per_class = call["vectors_per_class"]
    vectors = np.asarray(call["support_vectors"]).reshape(sum(per_class), -1)
    gamma, shift, degree = (*(call["kernel_params"] or ()), 0.0, 0.0, 0.0)[:3]
    kinds = {
        "LINEAR": lambda: rows @ vectors.T,
        "POLY": lambda: (gamma * rows @ vectors.T + shift) ** degree,
        "SIGMOID": lambda: np.tanh(gamma * rows @ vectors.T + shift),
        "RBF": lambda: np.exp(-gamma * ((rows[:, None] - vectors) ** 2).sum(axis=2)),
    }
    near = kinds[call["kernel_type"] or "LINEAR"]()
    weights = np.asarray(call["coefficients"]).reshape(classes - 1, -1)
    ends = np.cumsum([0, *per_class])
    scores = []
    for n, (i, j) in enumerate(combinations(range(classes), 2)):
        a, b = slice(*ends[i : i + 2]), slice(*ends[j : j + 2])
        both = near[:, a] @ weights[j - 1, a] + near[:, b] @ weights[i, b]
        scores.append(both + call["rho"][n])
    return np.stack(scores, axis=1)


def _of_classes(of_pair: Array, classes: int) -> Array:
    """Returns the probabilities of the classes in one row, by Newton steps along each of them."""
    r = np.zeros((classes, classes))
    for value, (i, j) in zip(of_pair, combinations(range(classes), 2)):
        r[i, j], r[j, i] = value, 1.0 - value
    q = np.diag((r * r).sum(axis=0)) - r * r.T
    p = np.full(classes, 1.0 / classes)
    for _ in range(100):
        along = q @ p
        if np.abs(along - p @ along).max() < 0.005 / classes:
            break
        for i in range(classes):
            along = q @ p
            step = (p @ along - along[i]) / q[i, i]
            p[i] += step
            p = p / (1.0 + step)
    return p


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


@kernel("NegativeLogLikelihoodLoss", why="wrong")
def negative_log_likelihood_loss(
    call: Call, x: Array, target: Array, weight: Array | None = None
) -> Array:
    """Averages by the weights of the labels that count; onnx.reference counts a label of -1 even if
    it is to be ignored.
    """
    counts = target != call["ignore_index"]
    label = np.where(counts, target, 0)
    weights = counts.astype(x.dtype) * (1 if weight is None else weight[label])
    loss = -np.take_along_axis(x, label[:, None], axis=1)[:, 0] * weights
    if call["reduction"] == "none":
        return np.asarray(loss)
    return np.asarray(loss.sum() / (weights.sum() if call["reduction"] == "mean" else 1.0))


@kernel("SoftmaxCrossEntropyLoss", why="wrong")
def softmax_cross_entropy_loss(
    call: Call, scores: Array, labels: Array, weight: Array | None = None
) -> tuple[Array, Array]:
    """Returns the loss and the logarithms of the probabilities; onnx.reference computes these by
    the probabilities, which are 0 or 1 for scores that are far apart.
    """
    log_p = log_of_softmax(scores, 1)
    return negative_log_likelihood_loss(call, log_p, labels, weight), log_p


@kernel("StringNormalizer", why="wrong")
def string_normalizer(call: Call, x: Array) -> Array:
    """Texts (C,) or (1, C) without the stopwords, in another case; [""] if none is left.
    onnx.reference also drops empty texts.
    """
    change = {"LOWER": str.lower, "UPPER": str.upper}.get(call["case_change_action"] or "", str)
    alike: Callable[[str], str] = str if call["is_case_sensitive"] else str.lower
    stops = {alike(word) for word in call["stopwords"] or ()}
    kept = [change(text) for text in x.reshape(-1).tolist() if alike(text) not in stops]
    return np.array(kept or [""], object).reshape([-1] if x.ndim == 1 else [1, -1])
