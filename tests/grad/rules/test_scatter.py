"""Scatter and select rules against central differences."""

from __future__ import annotations

import numpy as np
import pytest

from onnxgrad import gradient
from onnxgrad.verify.running.session import run
from tests.grad.numeric import check_op, distinct, normal, op_model

PLACES_ND = np.array([[0, 1], [2, 0], [1, 2]])
REPEATED_ND = np.array([[0, 1], [2, 0], [0, 1]])
PLACES = np.array([[0, 2, 1], [2, 0, 0]])


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
def test_scatter_nd(reduction: str) -> None:
    places = PLACES_ND if reduction == "none" else REPEATED_ND
    values = distinct(15)
    check_op(
        f'y = ScatterND <reduction = "{reduction}"> (x, i, u)',
        {"x": values[:9].reshape(3, 3), "i": places, "u": values[9:12]},
    )


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
@pytest.mark.parametrize("axis", [0, -1])
def test_scatter_elements(reduction: str, axis: int) -> None:
    places = PLACES if axis == 0 else PLACES.T
    if reduction != "none":
        places = np.zeros_like(places)
    values = distinct(15)
    check_op(
        f'y = ScatterElements <axis = {axis}, reduction = "{reduction}"> (x, i, u)',
        {"x": values[:9].reshape(3, 3), "i": places, "u": values[9:15].reshape(places.shape)},
    )


def test_a_product_with_zeros_is_the_product_of_the_others() -> None:
    model = op_model(
        'y = ScatterElements <reduction = "mul"> (x, i, u)',
        {"x": normal(2), "i": np.zeros(3, np.int64), "u": normal(3)},
    )
    feeds = {
        "x": np.float32([2, 5]),
        "i": np.array([0, 0, 1]),
        "u": np.float32([0, 3, 0]),
        "y_grad": np.float32([1, 1]),
    }
    found = run(gradient(model, adjoint="input"), feeds)
    np.testing.assert_array_equal(found["u_grad"], [6, 0, 5])
    np.testing.assert_array_equal(found["x_grad"], [0, 0])


def test_ties_of_a_maximum_share_evenly() -> None:
    model = op_model(
        'y = ScatterElements <reduction = "max"> (x, i, u)',
        {"x": normal(2), "i": np.zeros(3, np.int64), "u": normal(3)},
    )
    feeds = {
        "x": np.float32([4, 1]),
        "i": np.array([0, 0, 1]),
        "u": np.float32([4, 3, 0]),
        "y_grad": np.float32([1, 1]),
    }
    found = run(gradient(model, adjoint="input"), feeds)
    np.testing.assert_array_equal(found["x_grad"], [0.5, 1])
    np.testing.assert_array_equal(found["u_grad"], [0.5, 0, 0])


@pytest.mark.parametrize(
    ("batch", "shape", "indices"),
    [
        (0, (2, 3, 2), [[0, 1], [1, 2], [0, 1]]),
        (0, (2, 3), [[0, 1], [1, 2]]),
        (1, (2, 3, 2), [[1], [0]]),
        (1, (2, 3, 2), [[[1], [1]], [[0], [2]]]),
        (2, (2, 3, 4), [[[1], [3], [0]], [[0], [2], [2]]]),
    ],
)
def test_gather_nd(batch: int, shape: tuple[int, ...], indices: list) -> None:
    check_op(
        f"y = GatherND <batch_dims = {batch}> (x, i)", {"x": normal(*shape), "i": np.array(indices)}
    )


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("axis", [0, -1])
def test_top_k(largest: int, axis: int) -> None:
    check_op(
        f"y, i = TopK <axis = {axis}, largest = {largest}> (x, k)",
        {"x": distinct(3, 4), "k": np.array([2])},
        outputs=["y"],
    )


def test_compress() -> None:
    condition = np.array([True, False, True])
    check_op("y = Compress <axis = 1> (x, c)", {"x": normal(2, 3), "c": condition})
    check_op("y = Compress <axis = 0> (x, c)", {"x": normal(4, 3), "c": condition})
    check_op("y = Compress (x, c)", {"x": normal(2, 3), "c": condition})


def test_unique() -> None:
    check_op("y, i, j, c = Unique (x)", {"x": distinct(6)}, outputs=["y"], symbolic=False)
    check_op("y = Unique <axis = 0, sorted = 0> (x)", {"x": distinct(4, 2)}, symbolic=False)


@pytest.mark.parametrize("mode", ["linear", "circular"])
def test_tensor_scatter(mode: str) -> None:
    feeds = {"x": normal(2, 3, 5, 2), "u": normal(2, 3, 2, 2), "i": np.array([1, 3])}
    check_op(f'y = TensorScatter <mode = "{mode}"> (x, u, i)', feeds, opset=24)
    del feeds["i"]
    check_op(f'y = TensorScatter <mode = "{mode}"> (x, u)', feeds, opset=24)


def test_one_hot_values() -> None:
    check_op("y = OneHot (i, d, v)", {"i": np.array([0, 2, 1]), "d": np.array(3), "v": normal(2)})
