"""MaxUnpool against central differences, and where onnxruntime puts the values."""

from __future__ import annotations

import numpy as np

from onnxgrad.grad import gradient
from onnxgrad.verify.reference.evaluate import reference
from onnxgrad.verify.running.run import run
from tests.grad.numeric import check_op, normal, op_model


def test_max_unpool() -> None:
    places = np.array([[[[1, 3], [8, 15]]]])
    check_op(
        "y = MaxUnpool <kernel_shape = [2, 2], strides = [2, 2]> (x, i)",
        {"x": normal(1, 1, 2, 2), "i": places},
    )


def test_max_unpool_into_a_larger_output() -> None:
    """onnxruntime counts in the output, as the MaxPool that it undoes did; the reference has to agree about that."""
    feeds = {"x": np.arange(5, 9, dtype=np.float32).reshape(1, 1, 2, 2)}
    constants = {"i": np.array([[[[5, 7], [13, 15]]]]), "s": np.array([1, 1, 5, 5])}
    node = "y = MaxUnpool <kernel_shape = [2, 2], strides = [2, 2]> (x, i, s)"
    model = op_model(node, feeds, constants=constants)
    y = run(model, feeds)["y"]
    np.testing.assert_array_equal(y, reference(model, feeds)["y"])
    u = np.arange(25, dtype=np.float32).reshape(1, 1, 5, 5)
    found = run(gradient(model, adjoint="input"), {**feeds, "y_grad": u})
    np.testing.assert_array_equal(
        found["x_grad"].reshape(-1), [u[y == v].item() for v in feeds["x"].reshape(-1)]
    )
    check_op(node, feeds, constants=constants)
