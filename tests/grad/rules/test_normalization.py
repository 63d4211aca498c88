"""onnxgrad/grad/rules/normalization.py"""

from __future__ import annotations

import numpy as np
import pytest

from onnxgrad import gradient
from onnxgrad.verify.running.session import run
from tests.grad.numeric import check_op, normal, op_model, positive
from tests.helpers import parse


@pytest.mark.parametrize("axis", [-1, 0, 1])
@pytest.mark.parametrize("name", ["Softmax", "LogSoftmax"])
def test_softmax(name: str, axis: int) -> None:
    check_op(f"y = {name} <axis = {axis}> (x)", {"x": normal(2, 3, 4)})


def test_layer_normalization() -> None:
    check_op(
        "y = LayerNormalization (x, s, b)",
        {"x": normal(2, 3, 4), "s": normal(4), "b": normal(4, seed=1)},
    )
    check_op("y = LayerNormalization (x, s)", {"x": normal(2, 3, 4), "s": normal(1)})


@pytest.mark.covering
@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 3, 4), (1, 4), (2, 3, 1)])
@pytest.mark.parametrize("wrt", [["x"], ["s"], ["x", "s", "b"]])
def test_layer_normalization_by_products(shape: tuple[int, ...], wrt: list[str]) -> None:
    feeds = {"x": normal(*shape), "s": normal(shape[-1]), "b": normal(shape[-1], seed=1)}
    check_op("y = LayerNormalization (x, s, b)", feeds, wrt)
    check_op("y = LayerNormalization (x, s, b)", feeds, wrt, symbolic=True)
    check_op("y, m, i = LayerNormalization (x, s, b)", feeds, wrt)


def test_layer_normalization_with_all_outputs() -> None:
    feeds = {"x": normal(2, 3, 4), "s": normal(3, 4), "b": normal(3, 4, seed=1)}
    check_op("y, m, i = LayerNormalization <axis = 1> (x, s, b)", feeds)
    check_op("y, m, i = LayerNormalization <axis = 1> (x, s, b)", feeds, ["x"], outputs=["m", "i"])


def statistics() -> dict[str, object]:
    return {"s": positive(3), "b": normal(3), "m": normal(3, seed=1), "v": positive(3, seed=1)}


@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 5), (4, 3, 2, 5)])
def test_batch_normalization(shape: tuple[int, ...]) -> None:
    check_op("y = BatchNormalization (x, s, b, m, v)", {"x": normal(*shape), **statistics()})


def test_batch_normalization_in_training() -> None:
    node = "y, rm, rv = BatchNormalization <training_mode = 1, momentum = 0.7> (x, s, b, m, v)"
    check_op(node, {"x": normal(4, 3, 2, 5), **statistics()})
    check_op(node, {"x": normal(4, 3, 2, 5), **statistics()}, ["x", "s", "b"], outputs=["y"])


def test_instance_normalization() -> None:
    check_op(
        "y = InstanceNormalization (x, s, b)",
        {"x": normal(4, 3, 2, 5), "s": positive(3), "b": normal(3)},
    )


@pytest.mark.parametrize("size", [3, 4])
def test_lrn(size: int) -> None:
    check_op(
        f"y = LRN <size = {size}, alpha = 0.5, beta = 0.7, bias = 1.3> (x)",
        {"x": normal(2, 5, 3, 2)},
        onnxruntime=size % 2 == 1,
    )


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


@pytest.mark.parametrize("axes", [[1], [0, 1]])
def test_mean_variance_normalization_of_equal_numbers(axes: list[int]) -> None:
    """A single number is normalized to 0, so its gradient is 0; that of equal numbers is finite."""
    x = np.float32([[[0.3, -1.2]]])
    check_op(f"y = MeanVarianceNormalization <axes = {axes}> (x)", {"x": x}, seeds=(0,))
    equal = np.full((2, 3, 4), 0.7, np.float32)
    model = op_model(f"y = MeanVarianceNormalization <axes = {axes}> (x)", {"x": equal})
    feeds = {"x": equal, "y_grad": normal(2, 3, 4)}
    assert np.isfinite(run(gradient(model, adjoint="input"), feeds)["x_grad"]).all()


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


@pytest.mark.parametrize("stash", [1, 11, 16])
@pytest.mark.parametrize(("norm", "opset"), [("LayerNormalization", 20), ("RMSNormalization", 23)])
def test_doubles_are_normalised_in_double(norm: str, opset: int, stash: int) -> None:
    """onnxruntime computes double in double, whatever stash_type says: so does the gradient."""
    model = parse(
        f"g (double[3,4] x, double[4] s) => (double[3,4] y) {{ y = {norm} <axis = -1, stash_type = {stash}> (x, s) }}",
        opset=opset,
    )
    rng = np.random.default_rng(0)
    x, s, g = rng.standard_normal((3, 4)), rng.standard_normal(4), rng.standard_normal((3, 4))
    found = run(gradient(model, ["x", "s"], "y", adjoint="input"), {"x": x, "s": s, "y_grad": g})
    c = x - x.mean(-1, keepdims=True) if norm.startswith("Layer") else x
    r = 1 / np.sqrt((c * c).mean(-1, keepdims=True) + np.float32(1e-5).astype(float))
    h, hat = g * s, c * r
    by_x = (h - hat * (h * hat).mean(-1, keepdims=True)) * r
    by_x -= by_x.mean(-1, keepdims=True) if norm.startswith("Layer") else 0
    for name, expected in {"y": hat * s, "x_grad": by_x, "s_grad": (g * hat).sum(0)}.items():
        np.testing.assert_allclose(found[name], expected, atol=1e-12)
