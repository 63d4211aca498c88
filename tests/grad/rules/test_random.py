"""Dropout: the mask that it drew is the gradient's too, and its ratio has a gradient."""

from __future__ import annotations

import numpy as np
import pytest

from onnxgrad import gradient
from onnxgrad.verify.running.session import run
from tests.grad.numeric import normal, op_model, positive


def test_dropout_reuses_the_mask_that_it_drew() -> None:
    x = positive(40, 50)
    model = op_model(
        "y = Dropout (x, r, t)", {"x": x}, constants={"r": np.float32(0.4), "t": np.array(True)}
    )
    graph = gradient(model, adjoint="input")
    assert sum(n.op_type == "Dropout" for n in graph.graph.node) == 1
    g = normal(40, 50)
    found = run(graph, {"x": x, "y_grad": g})
    kept = found["y"] != 0
    assert 0.3 < kept.mean() < 0.9
    np.testing.assert_allclose(found["x_grad"], np.where(kept, g / 0.6, 0), rtol=1e-5)


@pytest.mark.parametrize(("training", "constant"), [(True, True), (True, False), (False, False)])
def test_the_ratio_of_a_dropout(training: bool, constant: bool) -> None:
    """y = x mask / (1 - r), so dy/dr = y / (1 - r) with the mask as drawn."""
    feeds = {"x": positive(20, 30), "r": np.array(0.25, np.float32)}
    flag = {"t": np.array(training)}
    if not constant:
        feeds |= flag
    model = op_model("y = Dropout (x, r, t)", feeds, constants=flag if constant else None)
    g = positive(20, 30)  # no sum of signs, whose rounding is that of its largest term
    found = run(gradient(model, ["r"], adjoint="input"), {**feeds, "y_grad": g})
    expected = np.sum(g * found["y"]) / 0.75 if training else 0.0
    assert found["r_grad"].shape == () and np.isclose(found["r_grad"], expected, rtol=1e-4)


@pytest.mark.parametrize("training", [True, False])
def test_dropout_with_everything_at_run_time(training: bool) -> None:
    feeds = {"x": normal(20, 30), "r": np.array(0.25, np.float32), "t": np.array(training)}
    graph = gradient(op_model("y = Dropout (x, r, t)", feeds), ["x"], adjoint="input")
    g = normal(20, 30, seed=1)
    found = run(graph, {**feeds, "y_grad": g})
    expected = np.where(found["y"] != 0, g / 0.75, 0) if training else g
    np.testing.assert_allclose(found["x_grad"], expected, rtol=1e-5)


def test_dropout_in_inference_is_the_identity() -> None:
    graph = gradient(op_model("y = Dropout (x)", {"x": normal(2)}), adjoint="input")
    assert [n.op_type for n in graph.graph.node] == ["Dropout", "Identity"]
