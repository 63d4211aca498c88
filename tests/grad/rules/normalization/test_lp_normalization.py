"""LpNormalization, and the normalizations that go through the body in the schema."""

from __future__ import annotations

import numpy as np
import pytest

from onnxgrad.grad import gradient
from onnxgrad.verify.running.run import run
from tests.grad.numeric import check_op, normal, op_model, positive


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("axis", [0, -1])
def test_lp_normalization(p: int, axis: int) -> None:
    check_op(
        f"y = LpNormalization <p = {p}, axis = {axis}> (x)", {"x": normal(2, 3, 4)}, seeds=(0,)
    )


@pytest.mark.parametrize("p", [1, 2])
def test_lp_normalization_of_zeros_passes_nothing(p: int) -> None:
    x = np.array([[0, 0], [3, 4]], np.float32)
    graph = gradient(op_model(f"y = LpNormalization <p = {p}> (x)", {"x": x}), adjoint="input")
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


def test_attention_with_a_row_that_sees_nothing_passes_nothing_there() -> None:
    mask = np.array([[True, True], [False, False]])
    feeds = {
        "q": normal(1, 1, 2, 4),
        "k": normal(1, 1, 2, 4, seed=1),
        "v": normal(1, 1, 2, 4, seed=2),
    }
    check_op(
        "y = Attention (q, k, v, m)",
        feeds,
        constants={"m": mask},
        opset=24,
        symbolic=False,
        onnxruntime=False,
        seeds=(0,),
    )
