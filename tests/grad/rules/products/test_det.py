"""Det: regular and singular matrices, batches, a size known at run time only."""

from __future__ import annotations

import numpy as np
import pytest

from onnxgrad.grad import gradient
from onnxgrad.verify.running.run import run
from tests.grad.numeric import check_model, check_op, normal, op_model


@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (3, 3), (5, 5), (2, 3, 3), (2, 1, 3, 3)])
def test_shapes(shape: tuple[int, ...]) -> None:
    check_op(
        "y = Det (x)", {"x": normal(*shape)}, symbolic=None if shape[-1] > 1 else False, seeds=(0,)
    )


def test_singular_matrices_have_cofactors() -> None:
    x = np.array([[1, 2, 3], [2, 4, 6], [1, 1, 1]], np.float32)
    graph = gradient(op_model("y = Det (x)", {"x": x}))
    cofactors = np.array([[-2, 4, -2], [1, -2, 1], [0, 0, 0]], np.float32)
    np.testing.assert_allclose(run(graph, {"x": x})["x_grad"], cofactors, atol=1e-6)
    np.testing.assert_array_equal(run(graph, {"x": np.zeros((3, 3), np.float32)})["x_grad"], 0)


def test_second_derivative() -> None:
    x = normal(2, 3, 3)
    first = gradient(op_model("y = Det (x)", {"x": x}), adjoint="input")
    check_model(
        first, {"x": x, "y_grad": normal(2, seed=1)}, ["x", "y_grad"], target="x_grad", seeds=(0,)
    )
