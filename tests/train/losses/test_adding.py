"""A loss that is added to a model is the target of every derivative, and an output of `edit` and of `optimize`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, numpy_helper, save

import onnxgrad
from onnxgrad.cli.app import main
from onnxgrad.errors import InputError
from onnxgrad.verify.running.session import run
from tests.helpers import parse

RNG = np.random.default_rng(0)
W, X = (
    RNG.standard_normal((4, 3)).astype(np.float32),
    RNG.standard_normal((5, 4)).astype(np.float32),
)
LABELS = np.array([0, 2, 1, 1, 2])


def classifier() -> ModelProto:
    """Returns a classifier of rows by their cross entropy's only ingredient, the scores."""
    model = parse(
        "g (float[N, 4] x) => (float[N, 3] scores) <float[4, 3] W> { scores = MatMul (x, W) }"
    )
    model.graph.initializer.append(numpy_helper.from_array(W, "W"))
    return model


def _slope(x: Any) -> np.ndarray[Any, Any]:
    """Returns the gradient of the mean cross entropy by x, from the textbook: (softmax - one-hot) W' / N."""
    scores = x @ W
    shares = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    return (shares - np.eye(3)[LABELS]) @ W.T / len(x)


def test_the_gradient_of_a_loss_moves_an_input_up_the_loss() -> None:
    made = onnxgrad.gradient(classifier(), loss="cross_entropy")
    assert [v.name for v in made.graph.input] == ["x", "labels"]
    found = run(made, {"x": X, "labels": LABELS})
    np.testing.assert_allclose(found["x_grad"], _slope(X), rtol=1e-5, atol=1e-6)
    attacked = run(made, {"x": X + 0.1 * np.sign(found["x_grad"]), "labels": LABELS})
    assert attacked["loss"] > found["loss"]
    assert onnxgrad.check_gradient(classifier(), loss="cross_entropy")


def test_other_derivatives_of_a_loss() -> None:
    tangent = RNG.standard_normal(X.shape).astype(np.float32)
    forward = run(
        onnxgrad.jvp(classifier(), loss="cross_entropy"),
        {"x": X, "labels": LABELS, "x_tangent": tangent},
    )
    np.testing.assert_allclose(forward["loss_tangent"], (_slope(X) * tangent).sum(), rtol=1e-5)
    rows = run(
        onnxgrad.gradient(classifier(), "W", loss="cross_entropy", per_sample=True),
        {"x": X, "labels": LABELS},
    )["W_grad"]
    assert rows.shape == (5, 4, 3)
    whole = run(
        onnxgrad.gradient(classifier(), "W", loss="cross_entropy"), {"x": X, "labels": LABELS}
    )["W_grad"]
    np.testing.assert_allclose(rows.mean(0), whole, rtol=1e-5, atol=1e-6)
    product = onnxgrad.hessian_vector_product(classifier(), loss="cross_entropy")
    found = run(product, {"x": X, "labels": LABELS, "x_tangent": tangent})["x_hvp"]
    step = 1e-4 * tangent
    expected = (_slope(X.astype(np.float64) + step) - _slope(X.astype(np.float64) - step)) / 2e-4
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


def test_a_target_of_the_model_is_held_fixed() -> None:
    model = parse("g (float[N, 4] x) => (float[N, 4] y) { y = Tanh (x) }")
    found = run(onnxgrad.gradient(model, loss="mse{target=y}"), {"x": X})
    assert found["loss"] == 0.0
    moved = {"x": X, "x_tangent": np.cos(X)}
    assert (run(onnxgrad.jvp(model, loss="mse{target=y}"), moved)["loss_tangent"] == 0).all()
    product = run(onnxgrad.hessian_vector_product(model, loss="mse{target=y}"), moved)["x_hvp"]
    slope = 1 - np.tanh(X) ** 2
    np.testing.assert_allclose(product, 2 / X.size * slope**2 * np.cos(X), rtol=1e-5)


def test_labels_are_differentiated_only_by_name() -> None:
    model = parse("g (float[N, 4] x) => (float[N, 4] y) { y = Tanh (x) }")
    assert [v.name for v in onnxgrad.gradient(model, loss="mse").graph.output] == [
        "y",
        "loss",
        "x_grad",
    ]
    assert onnxgrad.gradient(model, "target", loss="mse").graph.output[-1].name == "target_grad"


@pytest.mark.parametrize("derive", [onnxgrad.gradient, onnxgrad.jvp, onnxgrad.check_gradient])
def test_a_target_beside_a_loss_is_the_loss_or_refused(derive: Any) -> None:
    for target in ("loss", 1, "-1"):
        derive(classifier(), target=target, loss="cross_entropy")
    for target in ("scores", 0, "scores[:, 1]", ["scores", "0"]):
        with pytest.raises(InputError, match=r"^target= beside a loss: .*output=NAME"):
            derive(classifier(), target=target, loss="cross_entropy")


def test_edit_and_optimize_add_a_loss() -> None:
    edited = onnxgrad.edit(classifier(), loss="cross_entropy")
    made = onnxgrad.optimize(classifier(), before={"loss": "cross_entropy"})
    for model in (edited, made):
        assert [v.name for v in model.graph.output] == ["scores", "loss"]
        found = run(model, {"x": X, "labels": LABELS})
        shares = np.exp(X @ W) / np.exp(X @ W).sum(1, keepdims=True)
        np.testing.assert_allclose(
            found["loss"], -np.log(shares[np.arange(5), LABELS]).mean(), rtol=1e-5
        )


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, out = tmp_path / "m.onnx", tmp_path / "g.onnx"
    save(classifier(), model)
    assert main(["grad", str(model), "--loss", "cross_entropy", "-o", str(out)]) == 0
    assert "agrees with finite differences" in capsys.readouterr().out
    assert main(["check-grad", str(model), "--loss", "cross_entropy", "-q"]) == 0
    assert (
        main(
            ["grad", str(model), "--mark", "--checkpoint", "auto", "--loss", "mse", "-o", str(out)]
        )
        == 2
    )
    assert main(["grad", str(model), "--loss", "cross_entropi", "-o", str(out)]) == 2
    assert "did you mean" in capsys.readouterr().err
