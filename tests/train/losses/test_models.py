"""A loss behind the scores of a real model is the loss that PyTorch exported with it, and so are the gradients."""

from __future__ import annotations

import numpy as np
import pytest

import onnxgrad
from onnxgrad.train.losses import MSE, CrossEntropy, Loss, SequenceCrossEntropy
from onnxgrad.verify.running.session import run
from tests.helpers import ROOT, stored_arrays
from tests.train.losses.common import with_loss


@pytest.mark.parametrize(
    ("name", "loss"),
    [
        ("mlp", MSE("linear_2")),
        ("resnet18", CrossEntropy("linear")),
        ("vit", CrossEntropy("linear_24")),
        ("gpt2", SequenceCrossEntropy("linear", shift=0)),
        ("llama", CrossEntropy("linear_28", axis=-1)),
    ],
)
def test_the_losses_of_the_training_models(name: str, loss: Loss) -> None:
    path = ROOT / "models" / "training" / f"{name}.onnx"
    stored = stored_arrays(path.with_suffix(".npz"))
    feeds = {k.removeprefix("in:"): stored[k] for k in stored if k.startswith("in:")}
    weights = [k.removeprefix("grad:") for k in stored if k.startswith("grad:")]
    found = run(onnxgrad.gradient(with_loss(path, loss), weights), feeds)
    value, gradients = next(iter(found.values())), list(found.values())[1:]
    np.testing.assert_allclose(value, stored["loss64"], rtol=1e-5)
    scale = max(float(np.linalg.norm(stored[f"grad:{w}"])) for w in weights)
    for w, gradient in zip(weights, gradients, strict=True):
        np.testing.assert_allclose(gradient, stored[f"grad:{w}"], atol=1e-5 * scale, err_msg=w)
