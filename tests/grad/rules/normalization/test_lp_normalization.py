"""LpNormalization, Dropout, and the normalizations that go through the schema's body."""

from __future__ import annotations

import numpy as np
import pytest

from onnxgrad.grad import gradient
from onnxgrad.verify.running.run import run
from tests.grad.numeric import check_op, normal, op_model, positive


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("axis", [0, -1])
def test_lp_normalization(p: int, axis: int) -> None:
    check_op(f"y = LpNormalization <p = {p}, axis = {axis}> (x)", {"x": normal(2, 3, 4)}, seeds=(0,))


@pytest.mark.parametrize("p", [1, 2])
def test_lp_normalization_of_zeros_passes_nothing(p: int) -> None:
    x = np.array([[0, 0], [3, 4]], np.float32)
    graph = gradient(op_model(f"y = LpNormalization <p = {p}> (x)", {"x": x}), seed="input")
    found = run(graph, {"x": x, "y_grad": np.ones((2, 2), np.float32)})["x_grad"]
    assert np.isfinite(found).all()
    np.testing.assert_array_equal(found[0], 0)


@pytest.mark.parametrize(
    "node",
    [
        "y = RMSNormalization <axis = 1> (x, s)",
        "y = GroupNormalization <num_groups = 2> (x, s, b)",
        "y = MeanVarianceNormalization <axes = [0, 2]> (x)",
    ],
)
def test_through_the_body(node: str) -> None:
    feeds = {"x": normal(2, 4, 3)}
    if "s" in node.split("(")[1]:
        feeds["s"] = positive(*((4, 3) if "RMS" in node else (4,)))
    if ", b" in node:
        feeds["b"] = normal(4)
    check_op(node, feeds, opset=23, seeds=(0,))


def test_dropout_reuses_the_mask_that_it_drew() -> None:
    x = positive(40, 50)
    model = op_model("y = Dropout (x, r, t)", {"x": x}, constants={"r": np.float32(0.4), "t": np.array(True)})
    graph = gradient(model, seed="input")
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
    g = normal(20, 30)
    found = run(gradient(model, ["r"], seed="input"), {**feeds, "y_grad": g})
    expected = np.sum(g * found["y"]) / 0.75 if training else 0.0
    assert found["r_grad"].shape == () and np.isclose(found["r_grad"], expected, rtol=1e-4)


@pytest.mark.parametrize("training", [True, False])
def test_dropout_with_everything_at_run_time(training: bool) -> None:
    feeds = {"x": normal(20, 30), "r": np.array(0.25, np.float32), "t": np.array(training)}
    graph = gradient(op_model("y = Dropout (x, r, t)", feeds), ["x"], seed="input")
    g = normal(20, 30, seed=1)
    found = run(graph, {**feeds, "y_grad": g})
    expected = np.where(found["y"] != 0, g / 0.75, 0) if training else g
    np.testing.assert_allclose(found["x_grad"], expected, rtol=1e-5)


def test_dropout_in_inference_is_the_identity() -> None:
    graph = gradient(op_model("y = Dropout (x)", {"x": normal(2)}), seed="input")
    assert [n.op_type for n in graph.graph.node] == ["Dropout", "Identity"]


def test_attention_with_a_row_that_sees_nothing_passes_nothing_there() -> None:
    mask = np.array([[True, True], [False, False]])
    feeds = {"q": normal(1, 1, 2, 4), "k": normal(1, 1, 2, 4, seed=1), "v": normal(1, 1, 2, 4, seed=2)}
    check_op(
        "y = Attention (q, k, v, m)",
        feeds,
        constants={"m": mask},
        opset=24,
        symbolic=False,
        onnxruntime=False,
        seeds=(0,),
    )
