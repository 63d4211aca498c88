"""Binary cross entropy of scores, and the divergence of distributions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

import onnxgrad
from onnxgrad.errors import InputError
from onnxgrad.train.losses import BCEWithLogits, KLDiv
from onnxgrad.verify.running.run import run
from tests.train.losses.common import check, found, through, with_loss

RNG = np.random.default_rng(0)
Z = 2 * RNG.standard_normal((4, 3))
T = RNG.random((4, 3))
P = np.where(T < 0.4, 0.0, T)


@pytest.mark.parametrize("weight", [None, 0.5, [1.0, 2.0, 3.0], RNG.random((4, 1))])
@pytest.mark.parametrize("pos_weight", [None, 3.0, [0.5, 1.0, 2.0]])
def test_probabilities_by_the_formula(weight: Any, pos_weight: Any) -> None:
    w, p = (np.array(1.0 if v is None else v) for v in (weight, pos_weight))

    def formula(z: np.ndarray, labels: np.ndarray) -> float:
        s = 1 / (1 + np.exp(-z))
        return float(-(w * (p * labels * np.log(s) + (1 - labels) * np.log(1 - s))).mean())

    check(BCEWithLogits(weight=weight, pos_weight=pos_weight), formula, {"z": Z}, {"labels": T})


def test_the_gradient_is_the_probability_minus_the_label_also_at_zero_and_far_out() -> None:
    z = np.array([0.0, 1000.0, -1000.0, 1000.0, -40.0])
    t = np.array([1.0, 1.0, 1.0, 0.0, 0.0])
    value, gradient = found(BCEWithLogits(reduction="sum"), {"z": z}, {"labels": t})
    np.testing.assert_allclose(value, np.log(2) + 2000, rtol=1e-14)
    np.testing.assert_allclose(gradient["z"], [-0.5, 0.0, -1.0, 1.0, np.exp(-40)], atol=1e-17)


@pytest.mark.parametrize(("z", "t"), [(-15.0, 0.0), (15.0, 1.0), (-30.0, 0.0)])
def test_float32_keeps_the_last_digits_of_what_is_nearly_right(z: float, t: float) -> None:
    graph = onnxgrad.gradient(
        with_loss(through({"z": ["N"]}, TensorProto.FLOAT), BCEWithLogits()), "z_in"
    )
    feeds = {"z_in": np.array([z], np.float32), "labels": np.array([t], np.float32)}
    value, gradient = run(graph, feeds).values()
    np.testing.assert_allclose(value, np.exp(-abs(z)), rtol=1e-6)
    # as good as onnxruntime's Sigmoid
    np.testing.assert_allclose(gradient, [-np.sign(z) * np.exp(-abs(z))], atol=1e-7)


@pytest.mark.parametrize("reduction", ["mean", "sum", "batchmean"])
def test_divergence(reduction: Any) -> None:
    share = {"mean": 1 / 12, "sum": 1.0, "batchmean": 1 / 4}[reduction]

    def formula(y: np.ndarray, target: np.ndarray) -> float:
        return float(share * (target * (np.log(np.where(target == 0, 1, target)) - y)).sum())

    check(KLDiv(reduction=reduction), formula, {"y": Z}, {"target": P})
    check(
        KLDiv(reduction=reduction, log_target=True),
        lambda y, target: float(share * (np.exp(target) * (target - y)).sum()),
        {"y": Z},
        {"target": np.log(T)},
    )


def test_what_does_not_fit() -> None:
    with pytest.raises(
        InputError,
        match=r"pos_weight is an array \(2,\), which does not broadcast to 'z', f64.N,3.",
    ):
        with_loss(through({"z": ["N", 3]}), BCEWithLogits(pos_weight=[1, 2]))
    with pytest.raises(InputError, match=r"weight is an array \(1, 3\)"):
        with_loss(through({"z": [3]}), BCEWithLogits(weight=[[1, 2, 3]]))
    with pytest.raises(InputError, match=r"weight is an array \(2, 3\)"):
        with_loss(through({"z": [4, 3]}), BCEWithLogits(weight=np.ones((2, 3))))
    with pytest.raises(InputError, match="a batchmean needs a batch"):
        with_loss(through({"z": []}), KLDiv(reduction="batchmean"))
    with pytest.raises(InputError, match="weight must be finite numbers, not 'much'"):
        BCEWithLogits(weight="much")
    with pytest.raises(InputError, match="reduction must be one of mean, sum, batchmean"):
        KLDiv(reduction="none")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="log_target must be true or false"):
        KLDiv(log_target=1)  # type: ignore[arg-type]
