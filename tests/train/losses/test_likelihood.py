"""The likelihood of labels at its edges: no label, no class, scores as large as they get."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

import onnxgrad
from onnxgrad.train.losses import CrossEntropy
from onnxgrad.verify.running.run import run
from tests.train.losses.common import check, found, log_softmax, through, with_loss

RNG = np.random.default_rng(0)
Z = 2 * RNG.standard_normal((4, 3))
WEIGHT = [0.5, 1.0, 2.0]


@pytest.mark.parametrize(
    "loss", [CrossEntropy(), CrossEntropy(label_smoothing=0.1), CrossEntropy(weight=WEIGHT)]
)
@pytest.mark.parametrize("label", [-1, 3, 1 << 40])
def test_a_label_that_is_no_class_makes_the_loss_nan_and_moves_nothing(
    loss: CrossEntropy, label: int
) -> None:
    value, gradient = found(loss, {"z": Z}, {"labels": np.array([0, 1, label, 2])})
    assert np.isnan(value)
    assert not gradient["z"].any()


@pytest.mark.parametrize(
    "loss", [CrossEntropy(), CrossEntropy(label_smoothing=0.1), CrossEntropy(weight=WEIGHT)]
)
def test_no_label_at_all_is_nan_without_a_gradient_as_in_pytorch(loss: CrossEntropy) -> None:
    value, gradient = found(loss, {"z": Z}, {"labels": np.full(4, -100)})
    assert np.isnan(value)
    assert not gradient["z"].any()
    total = CrossEntropy(weight=loss.weight, label_smoothing=loss.label_smoothing, reduction="sum")
    assert found(total, {"z": Z}, {"labels": np.full(4, -100)})[0] == 0.0


def test_large_scores_do_not_overflow() -> None:
    z = np.array([[1e4, 0.0, -1e4], [3e38, 0.0, 0.0]], np.float32)
    graph = onnxgrad.gradient(
        with_loss(through({"z": ["N", 3]}, TensorProto.FLOAT), CrossEntropy()), "z_in"
    )
    for labels, expected in (([2, 0], 1e4), ([0, 0], 0.0)):
        value, gradient = run(graph, {"z_in": z, "labels": np.array(labels)}).values()
        np.testing.assert_allclose(value, expected)
        assert np.isfinite(gradient).all()


def test_a_class_that_cannot_be() -> None:
    z = np.array([[0.0, -np.inf, 1.0], [2.0, 1.0, -np.inf]])
    value, gradient = found(CrossEntropy(), {"z": z}, {"labels": np.array([2, 0])})
    np.testing.assert_allclose(value, np.log1p(np.exp(-1)))
    p = 1 / (1 + np.exp(1))
    np.testing.assert_allclose(gradient["z"], [[p / 2, 0, -p / 2], [-p / 2, p / 2, 0]])


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("weight", [None, WEIGHT])
@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 2), (2, 3, 2, 2)])
def test_by_the_formula_with_axes_behind_the_classes(
    shape: tuple[int, ...], weight: Any, smoothing: float, reduction: Any
) -> None:
    w = np.array(weight or np.ones(3))

    def formula(z: np.ndarray, labels: np.ndarray) -> float:
        rows, right = np.moveaxis(log_softmax(z, 1), 1, -1).reshape(-1, 3), labels.reshape(-1)
        rows, right = rows[right != 1], right[right != 1]
        sharp = -(w[right] * rows[range(len(right)), right]).sum()
        total = (1 - smoothing) * sharp - smoothing / 3 * (w * rows).sum()
        return float(total / w[right].sum() if reduction == "mean" else total)

    loss = CrossEntropy(
        weight=weight, label_smoothing=smoothing, reduction=reduction, ignore_index=1
    )
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 3, (shape[0], *shape[2:]))
    labels.reshape(-1)[:2] = 1, 2
    check(loss, formula, {"z": rng.standard_normal(shape)}, {"labels": labels})
